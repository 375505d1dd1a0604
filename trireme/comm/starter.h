// SPDX-License-Identifier: Apache-2.0
// Starter: passes operations to the engine of a group. Records them and explains failures for
// engines that do neither.
#pragma once

#include <trireme/comm/adapter/operation.h>
#include <trireme/comm/collectives.h>

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

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

/// The tensors on accelerators of one operation, with their copies in pinned host memory. Empty if
/// the operation has none.
class Staging {
 public:
  /// Replaces the operation's tensors on accelerators by copies in host memory. Blocks until the
  /// device has written what the operation reads.
  static Staging replace(Operation& operation);

  /// Copies results back to the device, on its current stream, without waiting for the device.
  void copy_back() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> results_;  // on the device, on the host
};

}  // namespace trireme::comm
