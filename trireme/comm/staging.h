// SPDX-License-Identifier: Apache-2.0
// Staging: copies of device tensors in the memory of the host, for operations that the engine of
// CPU tensors carries.
#pragma once

#include <trireme/comm/adapter/operation.h>

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace trireme::comm {

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
