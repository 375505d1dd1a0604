// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/adapter/c10d_call.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <vector>

namespace trireme::comm {
namespace {

using Tensors = std::vector<at::Tensor>;

// Returns the memory of a block as one dimension without autograd, which is all that a backend
// needs. For a dense tensor, memory order is right for any permutation of its dimensions.
at::Tensor flat(const Buffer& buffer) {
  return buffer.whole().detach().as_strided({buffer.whole().numel()}, {1});
}

at::Tensor flat_bytes(const Buffer& buffer) { return flat(buffer).view(at::kByte); }

// Returns a tensor for each rank; none if the buffer has no piece.
std::vector<Tensors> slices_of(const Buffer& buffer) {
  if (buffer.num_pieces() == 0) return {};
  const at::Tensor bytes = flat_bytes(buffer);
  return {bytes.view({buffer.num_pieces(), bytes.numel() / buffer.num_pieces()}).unbind()};
}

// Returns the split sizes for alltoall_base, in bytes. Empty if all pieces have equal length.
std::vector<std::int64_t> split_bytes(const Buffer& buffer) {
  std::vector<std::int64_t> bytes;
  if (buffer.is_even()) return bytes;
  for (int piece = 0; piece < buffer.num_pieces(); ++piece) {
    bytes.push_back(static_cast<std::int64_t>(buffer.num_bytes(piece)));
  }
  return bytes;
}

}  // namespace

c10::intrusive_ptr<c10d::Work> start_on(c10d::Backend& backend, const Operation& operation,
                                        bool is_async) {
  const auto& [kind, input, output, reduction, peer, tag, number, label, timeout, results, back,
               title] = operation;
  const auto with = [&](auto options) {
    if (operation.timeout > kNoTimeout) options.timeout = operation.timeout;
    options.asyncOp = is_async;
    return options;
  };
  switch (kind) {
    case OperationKind::kSend: {
      Tensors tensors = {flat_bytes(input)};
      return backend.send(tensors, peer, tag);
    }
    case OperationKind::kReceive: {
      Tensors tensors = {flat_bytes(output)};
      if (peer < 0) return backend.recvAnysource(tensors, tag);
      return backend.recv(tensors, peer, tag);
    }
    case OperationKind::kBroadcast: {
      Tensors tensors = {flat_bytes(output)};
      return backend.broadcast(tensors, with(c10d::BroadcastOptions{.rootRank = peer}));
    }
    case OperationKind::kAllReduce: {
      Tensors tensors = {flat(output)};
      return backend.allreduce(tensors, with(c10d::AllreduceOptions{.reduceOp = reduction}));
    }
    case OperationKind::kReduce: {
      Tensors tensors = {flat(output)};
      return backend.reduce(tensors,
                            with(c10d::ReduceOptions{.reduceOp = reduction, .rootRank = peer}));
    }
    case OperationKind::kAllGather: {
      at::Tensor into = flat_bytes(output);
      at::Tensor from = flat_bytes(input);
      return backend._allgather_base(into, from, with(c10d::AllgatherOptions{}));
    }
    case OperationKind::kGather: {
      std::vector<Tensors> outputs = slices_of(output);
      Tensors inputs = {flat_bytes(input)};
      return backend.gather(outputs, inputs, with(c10d::GatherOptions{.rootRank = peer}));
    }
    case OperationKind::kScatter: {
      Tensors outputs = {flat_bytes(output)};
      std::vector<Tensors> inputs = slices_of(input);
      return backend.scatter(outputs, inputs, with(c10d::ScatterOptions{.rootRank = peer}));
    }
    case OperationKind::kReduceScatter: {
      at::Tensor into = flat(output);
      at::Tensor from = flat(input);
      return backend._reduce_scatter_base(into, from,
                                          with(c10d::ReduceScatterOptions{.reduceOp = reduction}));
    }
    case OperationKind::kAllToAll: {
      at::Tensor into = flat_bytes(output);
      at::Tensor from = flat_bytes(input);
      std::vector<std::int64_t> output_splits = split_bytes(output);  // Gloo clears them
      std::vector<std::int64_t> input_splits = split_bytes(input);
      return backend.alltoall_base(into, from, output_splits, input_splits,
                                   with(c10d::AllToAllOptions{}));
    }
    default:
      return backend.barrier(with(c10d::BarrierOptions{}));
  }
}

}  // namespace trireme::comm
