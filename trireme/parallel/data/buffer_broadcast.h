// SPDX-License-Identifier: Apache-2.0
// Gives every rank the buffers of rank 0 (running statistics of batch norm), once a step, while
// backward runs.
#pragma once

#include <trireme/comm/collectives.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::detail {

/// Sends all buffers of one device as one message. `start` and `finish` are collective. Not
/// thread-safe.
class BufferBroadcast {
 public:
  /// @param buffers dense tensors that keep their memory as long as this lives.
  BufferBroadcast(const std::vector<at::Tensor>& buffers, comm::Group group);

  void start();
  void finish();

 private:
  struct Message {
    std::vector<at::Tensor> buffers;  // as bytes
    at::Tensor bytes;                 // [sum of their bytes]
    comm::Work work;
  };

  comm::Group group_;
  std::vector<Message> messages_;  // one a device
};

}  // namespace trireme::detail
