// SPDX-License-Identifier: Apache-2.0
// Gives every rank the buffers of rank 0 (running statistics of batch norm), once a step, while
// backward runs.
#pragma once

#include <trireme/comm/collectives.h>

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace trireme::detail {

/// comm::broadcast of a tensor whose strides are the same on all ranks, and may leave gaps or have
/// elements share memory (expand). Collective, blocking.
void broadcast_strided(const at::Tensor& tensor, int root, const comm::Group& group,
                       std::string_view label = {});

/// Sends all buffers of one device as one message. `start` and `finish` are collective. Not
/// thread-safe.
class BufferBroadcast {
 public:
  /// @param buffers keep their memory as long as this lives; of any strides, the same on all ranks.
  BufferBroadcast(const std::vector<at::Tensor>& buffers, comm::Group group);

  void start();
  void finish();

 private:
  struct Copy {
    at::Tensor values;  // in the buffer
    at::Tensor dense;   // whose bytes travel
  };
  struct Message {
    std::vector<at::Tensor> buffers;  // as bytes
    std::vector<Copy> copies;         // of those that are not dense
    at::Tensor bytes;                 // [sum of their bytes]
    comm::Work work;
  };

  comm::Group group_;
  std::vector<Message> messages_;  // one a device
};

}  // namespace trireme::detail
