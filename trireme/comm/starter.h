// SPDX-License-Identifier: Apache-2.0
// Starter: passes operations to the engine of a group. Records them and explains failures for
// engines that do neither.
#pragma once

#include <trireme/comm/adapter/operation.h>
#include <trireme/comm/collectives.h>

namespace trireme::comm {

/// Starts every collective and message of a group, on the engine for the device of its tensors.
class Starter {
 public:
  /// Starts the operation and blocks until it is done.
  static void run(const Group& group, Operation&& operation);
  /// Starts the operation and returns at once.
  static Work start(const Group& group, Operation&& operation);

 private:
  // Starts it on the engine of this very group.
  static Work start_on_carrier(const Group& group, Operation&& operation);
};

}  // namespace trireme::comm
