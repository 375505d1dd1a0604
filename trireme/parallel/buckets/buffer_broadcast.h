// SPDX-License-Identifier: Apache-2.0
// Copies the buffers of rank 0 (such as batch norm's running statistics) to every rank, once a
// step, while backward runs.
#pragma once

#include <trireme/comm/collectives.h>

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace trireme::detail {

/// Broadcasts a tensor in place, as comm::broadcast, but also if its strides leave gaps or its
/// elements share memory (expand). The strides must be the same on all ranks. Collective, blocking.
void broadcast_strided(const at::Tensor& tensor, int root, const comm::Group& group,
                       std::string_view label = {});

/// Broadcasts all buffers of one device as one message. Not thread-safe.
class BufferBroadcast {
 public:
  /// @param buffers must keep their memory while this lives. Any strides are allowed, the same on
  ///     all ranks.
  /// @param group the ranks that receive the buffers of its rank 0.
  BufferBroadcast(const std::vector<at::Tensor>& buffers, comm::Group group);

  /// Starts the broadcasts. Collective, does not block.
  void start();
  /// Waits for the broadcasts and copies the values into the buffers. Every start() must be
  /// followed by a finish(). Blocks.
  void finish();

 private:
  struct Copy {
    at::Tensor values;  // the elements of the buffer, each once
    at::Tensor dense;   // a contiguous copy, which is sent
  };
  struct Message {
    std::vector<at::Tensor> buffers;  // the bytes of each buffer, or of its dense copy
    std::vector<Copy> copies;         // for buffers that are not dense
    at::Tensor bytes;                 // the message: all buffers one after the other
    comm::Work work;
  };

  comm::Group group_;
  std::vector<Message> messages_;  // one for each device
};

}  // namespace trireme::detail
