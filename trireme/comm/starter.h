// SPDX-License-Identifier: Apache-2.0
// Gives operations to the engine of a group, and records and explains what engines do not.
#pragma once

#include <trireme/comm/adapter/operation.h>
#include <trireme/comm/collectives.h>

namespace trireme::comm {

/// The way from a group to its engine, the same for every collective and message.
class Starter {
 public:
  /// Returns when the operation is done.
  static void run(const Group& group, Operation&& operation);
  /// Returns when it has been started.
  static Work start(const Group& group, Operation&& operation);
};

}  // namespace trireme::comm
