// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/collectives.h>

#include <trireme/base/error.h>
#include <trireme/comm/detail/checks.h>
#include <trireme/comm/detail/starter.h>
#include <trireme/comm/shm/communicator.h>
#include <trireme/comm/shm_backend/shared_memory_backend.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace trireme::comm {
namespace {

struct Names {
  c10d::ReduceOp::RedOpType c10d;
  shm::ReduceOp shm;
};

Names names_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return {c10d::ReduceOp::SUM, shm::ReduceOp::kSum};
    case ReduceOp::kAverage:
      return {c10d::ReduceOp::AVG, shm::ReduceOp::kAverage};
    case ReduceOp::kProduct:
      return {c10d::ReduceOp::PRODUCT, shm::ReduceOp::kProduct};
    case ReduceOp::kMinimum:
      return {c10d::ReduceOp::MIN, shm::ReduceOp::kMinimum};
    case ReduceOp::kMaximum:
      return {c10d::ReduceOp::MAX, shm::ReduceOp::kMaximum};
    case ReduceOp::kAnd:
      return {c10d::ReduceOp::BAND, shm::ReduceOp::kAnd};
    case ReduceOp::kOr:
      return {c10d::ReduceOp::BOR, shm::ReduceOp::kOr};
    case ReduceOp::kXor:
      return {c10d::ReduceOp::BXOR, shm::ReduceOp::kXor};
  }
  throw InternalError("unknown ReduceOp", "this is a defect in Trireme; please report it");
}

// The same memory as one dimension without autograd, which is all that a c10d engine needs to see.
// Reading the storage of a dense tensor in memory order is right for any permutation of its
// dimensions.
at::Tensor flat(const at::Tensor& tensor) {
  return tensor.detach().as_strided({tensor.numel()}, {1});
}

// Bytes, so that every dtype travels over every engine.
at::Tensor flat_bytes(const at::Tensor& tensor) { return flat(tensor).view(at::kByte); }

std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

// The shared-memory engine, where it carries the group; it takes CPU tensors alone.
shm::Communicator* shared_memory(const Group& group, const at::Tensor& tensor,
                                 const char* operation) {
  shm::Communicator* shared = group.shared_memory();
  if (shared != nullptr && !tensor.device().is_cpu()) refuse_device(tensor, operation, group);
  return shared;
}

// What follows runs in the background too, where it must not keep the group: the last handle would
// end the group on the group's own thread.

std::vector<std::size_t> equal_parts(const at::Tensor& whole, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  return std::vector<std::size_t>(ranks, whole.nbytes() / ranks);
}

template <typename Pointer>
std::vector<Pointer> part_pointers(const at::Tensor& whole, int size) {
  std::vector<Pointer> pointers;
  auto* data = static_cast<std::byte*>(whole.data_ptr());
  const std::size_t part = whole.nbytes() / static_cast<std::size_t>(size);
  for (int rank = 0; rank < size; ++rank) {
    pointers.push_back(data + static_cast<std::size_t>(rank) * part);
  }
  return pointers;
}

void all_gather_shared(shm::Communicator& shared, const at::Tensor& output, const at::Tensor& input,
                       std::string_view label) {
  shared.all_gather(input.data_ptr(), part_pointers<void*>(output, shared.size()),
                    equal_parts(output, shared.size()), label, to_moved_type(output.scalar_type()));
}

void gather_shared(shm::Communicator& shared, const at::Tensor& output, const at::Tensor& input,
                   int root, std::string_view label) {
  const auto ranks = static_cast<std::size_t>(shared.size());
  const auto pieces = shared.rank() == root ? part_pointers<void*>(output, shared.size())
                                            : std::vector<void*>(ranks);
  const std::vector<std::size_t> bytes(ranks, input.nbytes());
  shared.gather(input.data_ptr(), pieces, bytes, root, label, to_moved_type(input.scalar_type()));
}

void scatter_shared(shm::Communicator& shared, const at::Tensor& output, const at::Tensor& input,
                    int root, std::string_view label) {
  const auto pieces = shared.rank() == root
                          ? part_pointers<const void*>(input, shared.size())
                          : std::vector<const void*>(static_cast<std::size_t>(shared.size()));
  shared.scatter(pieces, output.data_ptr(), output.nbytes(), root, label,
                 to_moved_type(output.scalar_type()));
}

void reduce_scatter_shared(shm::Communicator& shared, const at::Tensor& output,
                           const at::Tensor& input, ReduceOp op, std::string_view label) {
  const std::vector<std::size_t> counts(static_cast<std::size_t>(shared.size()), count_of(output));
  shared.reduce_scatter(input.data_ptr(), output.data_ptr(), counts,
                        to_shared_memory_type(input.scalar_type(), "reduce-scatter"),
                        {.op = names_of(op).shm}, label);
}

void all_to_all_shared(shm::Communicator& shared, const at::Tensor& output, const at::Tensor& input,
                       std::string_view label) {
  const auto bytes = equal_parts(input, shared.size());
  shared.all_to_all(part_pointers<const void*>(input, shared.size()), bytes,
                    part_pointers<void*>(output, shared.size()), bytes, label,
                    to_moved_type(input.scalar_type()));
}

// Whether the shared-memory engine carries the group, so that a blocking call need not start work
// in the background.
bool is_shared(const Group& group) {
  return group.rank() >= 0 && group.size() > 1 && group.shared_memory() != nullptr;
}

// `large` is the root's alone.
void check_rooted(const at::Tensor& large, const at::Tensor& small, int root, const Group& group,
                  const char* operation, const char* large_name, const char* small_name) {
  check_peer(root, group, operation);
  check_rows(small, operation);
  if (group.rank() != root) return;
  check_rows(large, operation);
  check_multiple(large, small, group, operation, large_name, small_name);
}

// One tensor for each rank.
std::vector<at::Tensor> slices_of(const at::Tensor& bytes, int size) {
  return bytes.view({size, bytes.numel() / size}).unbind();
}

}  // namespace

void all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op, std::string_view label) {
  check_dense(tensor, "all-reduce");
  if (!is_needed(group, "all-reduce")) return;
  before_read(tensor);
  if (auto* shared = shared_memory(group, tensor, "all-reduce")) {
    const auto type = to_shared_memory_type(tensor.scalar_type(), "all-reduce");
    shared->all_reduce(tensor.data_ptr(), tensor.data_ptr(), count_of(tensor), type,
                       {.op = names_of(op).shm}, label);
    return;
  }
  all_reduce_async(tensor, group, op, label).wait();
}

Work all_reduce_async(const at::Tensor& tensor, const Group& group, ReduceOp op,
                      std::string_view label) {
  check_dense(tensor, "all-reduce");
  if (!is_needed(group, "all-reduce")) return {};
  before_read(tensor);
  if (auto* shared = shared_memory(group, tensor, "all-reduce")) {
    const auto type = to_shared_memory_type(tensor.scalar_type(), "all-reduce");
    auto job = shared->start_all_reduce(
        tensor.data_ptr(), tensor.data_ptr(), count_of(tensor), type, {.op = names_of(op).shm},
        label, [tensor](const std::exception_ptr&) {});  // which keeps it alive
    return Starter::follow(group, shared->collectives(), std::move(job));
  }
  std::vector<at::Tensor> tensors = {flat(tensor)};
  return Starter::start(group, "all-reduce", tensors, label, [&](c10d::Backend& backend) {
    c10d::AllreduceOptions options;
    options.reduceOp = names_of(op).c10d;
    return backend.allreduce(tensors, options);
  });
}

void all_reduce_ordered(const at::Tensor& tensor, const Group& group, std::string_view label) {
  check_dense(tensor, "ordered all-reduce");
  if (!is_needed(group, "ordered all-reduce")) return;
  if (group.summation_order() == SummationOrder::kRank) {
    all_reduce(tensor, group, ReduceOp::kSum, label);
    return;
  }
  // Slices of one length; the last ones are padded with zeros that nobody reads.
  const at::Tensor whole = flat(tensor);
  const std::int64_t ranks = group.size();
  const std::int64_t slice = (whole.numel() + ranks - 1) / ranks;
  if (slice == 0) return;
  const at::Tensor padded = at::zeros({ranks, slice}, whole.options());
  padded.flatten().slice(0, 0, whole.numel()).copy_(whole);
  const at::Tensor contributions = at::empty_like(padded);
  all_to_all(contributions, padded, group, label);
  // Half precision is folded in fp32 and rounded once, as shared memory does it.
  const bool is_half = at::isReducedFloatingType(whole.scalar_type());
  const at::Tensor terms = is_half ? contributions.to(at::kFloat) : contributions;
  const at::Tensor sum = terms.select(0, 0);
  for (std::int64_t rank = 1; rank < ranks; ++rank) sum.add_(terms.select(0, rank));
  all_gather(padded, sum.to(whole.scalar_type()), group, label);
  whole.copy_(padded.flatten().slice(0, 0, whole.numel()));
}

void reduce(const at::Tensor& tensor, int root, const Group& group, ReduceOp op,
            std::string_view label) {
  check_dense(tensor, "reduce");
  if (!is_needed(group, "reduce")) return;
  before_read(tensor);
  check_peer(root, group, "reduce");
  if (auto* shared = shared_memory(group, tensor, "reduce")) {
    const auto type = to_shared_memory_type(tensor.scalar_type(), "reduce");
    shared->reduce(tensor.data_ptr(), tensor.data_ptr(), count_of(tensor), type,
                   {.op = names_of(op).shm}, root, label);
    return;
  }
  std::vector<at::Tensor> tensors = {flat(tensor)};
  Starter::start(group, "reduce", tensors, label, [&](c10d::Backend& backend) {
    c10d::ReduceOptions options;
    options.reduceOp = names_of(op).c10d;
    options.rootRank = root;
    return backend.reduce(tensors, options);
  }).wait();
}

Work broadcast_async(const at::Tensor& tensor, int root, const Group& group,
                     std::string_view label) {
  check_dense(tensor, "broadcast");
  check_peer(root, group, "broadcast");
  if (!is_needed(group, "broadcast")) return {};
  group.rank() == root ? before_read(tensor) : before_write(tensor);
  if (auto* shared = shared_memory(group, tensor, "broadcast")) {
    return Starter::submit(group, shared->collectives(),
                           [shared, tensor, root, text = std::string(label)] {
                             shared->broadcast(tensor.data_ptr(), tensor.nbytes(), root, text,
                                               to_moved_type(tensor.scalar_type()));
                           });
  }
  std::vector<at::Tensor> tensors = {flat_bytes(tensor)};
  return Starter::start(group, "broadcast", tensors, label, [&](c10d::Backend& backend) {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return backend.broadcast(tensors, options);
  });
}

void broadcast(const at::Tensor& tensor, int root, const Group& group, std::string_view label) {
  check_dense(tensor, "broadcast");
  check_peer(root, group, "broadcast");
  if (!is_needed(group, "broadcast")) return;
  group.rank() == root ? before_read(tensor) : before_write(tensor);
  if (auto* shared = shared_memory(group, tensor, "broadcast")) {
    shared->broadcast(tensor.data_ptr(), tensor.nbytes(), root, label,
                      to_moved_type(tensor.scalar_type()));
    return;
  }
  broadcast_async(tensor, root, group, label).wait();
}

Work all_gather_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                      std::string_view label) {
  check_rows(output, "all-gather");
  check_rows(input, "all-gather");
  check_multiple(output, input, group, "all-gather", "output", "input");
  before_write(output);
  if (!is_needed(group, "all-gather")) {
    flat_bytes(output).copy_(flat_bytes(input));
    return {};
  }
  if (auto* shared = shared_memory(group, output, "all-gather")) {
    return Starter::submit(group, shared->collectives(),
                           [shared, output, input, text = std::string(label)] {
                             all_gather_shared(*shared, output, input, text);
                           });
  }
  at::Tensor out = flat_bytes(output);
  at::Tensor in = flat_bytes(input);
  return Starter::start(group, "all-gather", {out, in}, label,
                        [&](c10d::Backend& backend) { return backend._allgather_base(out, in); });
}

void all_gather(const at::Tensor& output, const at::Tensor& input, const Group& group,
                std::string_view label) {
  if (!is_shared(group)) return all_gather_async(output, input, group, label).wait();
  check_rows(output, "all-gather");
  check_rows(input, "all-gather");
  check_multiple(output, input, group, "all-gather", "output", "input");
  before_write(output);
  all_gather_shared(*shared_memory(group, output, "all-gather"), output, input, label);
}

Work gather_async(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
                  std::string_view label) {
  check_rooted(output, input, root, group, "gather", "output", "input");
  if (group.rank() == root) before_write(output);
  if (!is_needed(group, "gather")) {
    flat_bytes(output).copy_(flat_bytes(input));
    return {};
  }
  if (auto* shared = shared_memory(group, input, "gather")) {
    return Starter::submit(group, shared->collectives(),
                           [shared, output, input, root, text = std::string(label)] {
                             gather_shared(*shared, output, input, root, text);
                           });
  }
  std::vector<at::Tensor> in = {flat_bytes(input)};
  std::vector<std::vector<at::Tensor>> pieces;
  if (group.rank() == root) pieces.push_back(slices_of(flat_bytes(output), group.size()));
  return Starter::start(group, "gather", {in.front(), output}, label, [&](c10d::Backend& backend) {
    c10d::GatherOptions options;
    options.rootRank = root;
    return backend.gather(pieces, in, options);
  });
}

void gather(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
            std::string_view label) {
  if (!is_shared(group)) return gather_async(output, input, root, group, label).wait();
  check_rooted(output, input, root, group, "gather", "output", "input");
  if (group.rank() == root) before_write(output);
  gather_shared(*shared_memory(group, input, "gather"), output, input, root, label);
}

Work scatter_async(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
                   std::string_view label) {
  check_rooted(input, output, root, group, "scatter", "input", "output");
  before_write(output);
  if (!is_needed(group, "scatter")) {
    flat_bytes(output).copy_(flat_bytes(input));
    return {};
  }
  if (auto* shared = shared_memory(group, output, "scatter")) {
    return Starter::submit(group, shared->collectives(),
                           [shared, output, input, root, text = std::string(label)] {
                             scatter_shared(*shared, output, input, root, text);
                           });
  }
  std::vector<at::Tensor> out = {flat_bytes(output)};
  std::vector<std::vector<at::Tensor>> pieces;
  if (group.rank() == root) pieces.push_back(slices_of(flat_bytes(input), group.size()));
  return Starter::start(group, "scatter", {out.front(), input}, label, [&](c10d::Backend& backend) {
    c10d::ScatterOptions options;
    options.rootRank = root;
    return backend.scatter(out, pieces, options);
  });
}

void scatter(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
             std::string_view label) {
  if (!is_shared(group)) return scatter_async(output, input, root, group, label).wait();
  check_rooted(input, output, root, group, "scatter", "input", "output");
  before_write(output);
  scatter_shared(*shared_memory(group, output, "scatter"), output, input, root, label);
}

Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                          ReduceOp op, std::string_view label) {
  check_rows(output, "reduce-scatter");
  check_rows(input, "reduce-scatter");
  check_multiple(input, output, group, "reduce-scatter", "input", "output");
  before_write(output);
  if (!is_needed(group, "reduce-scatter")) {
    flat(output).copy_(flat(input));
    return {};
  }
  if (auto* shared = shared_memory(group, input, "reduce-scatter")) {
    return Starter::submit(group, shared->collectives(),
                           [shared, output, input, op, text = std::string(label)] {
                             reduce_scatter_shared(*shared, output, input, op, text);
                           });
  }
  at::Tensor out = flat(output);
  at::Tensor in = flat(input);
  return Starter::start(group, "reduce-scatter", {out, in}, label, [&](c10d::Backend& backend) {
    c10d::ReduceScatterOptions options;
    options.reduceOp = names_of(op).c10d;
    return backend._reduce_scatter_base(out, in, options);
  });
}

void reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Group& group,
                    ReduceOp op, std::string_view label) {
  if (!is_shared(group)) return reduce_scatter_async(output, input, group, op, label).wait();
  check_rows(output, "reduce-scatter");
  check_rows(input, "reduce-scatter");
  check_multiple(input, output, group, "reduce-scatter", "input", "output");
  before_write(output);
  reduce_scatter_shared(*shared_memory(group, input, "reduce-scatter"), output, input, op, label);
}

Work all_to_all_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                      std::string_view label) {
  check_all_to_all(output, input, group);
  before_write(output);
  if (!is_needed(group, "all-to-all")) {
    flat_bytes(output).copy_(flat_bytes(input));
    return {};
  }
  if (auto* shared = shared_memory(group, input, "all-to-all")) {
    return Starter::submit(group, shared->collectives(),
                           [shared, output, input, text = std::string(label)] {
                             all_to_all_shared(*shared, output, input, text);
                           });
  }
  at::Tensor out = flat_bytes(output);
  at::Tensor in = flat_bytes(input);
  return Starter::start(group, "all-to-all", {out, in}, label, [&](c10d::Backend& backend) {
    std::vector<std::int64_t> equal;
    return backend.alltoall_base(out, in, equal, equal);
  });
}

void all_to_all(const at::Tensor& output, const at::Tensor& input, const Group& group,
                std::string_view label) {
  if (!is_shared(group)) return all_to_all_async(output, input, group, label).wait();
  check_all_to_all(output, input, group);
  before_write(output);
  all_to_all_shared(*shared_memory(group, input, "all-to-all"), output, input, label);
}

Work send_async(const at::Tensor& tensor, int peer, const Group& group, int tag) {
  check_rows(tensor, "send");
  check_other(peer, group, "send");
  before_read(tensor);
  if (auto* shared = shared_memory(group, tensor, "send")) {
    return Starter::follow(
        group, shared->point_to_point().send(tensor.data_ptr(), tensor.nbytes(), peer, tag),
        tensor);
  }
  std::vector<at::Tensor> tensors = {flat_bytes(tensor)};
  return Starter::start(
      group, "send", tensors, {},
      [&](c10d::Backend& backend) { return backend.send(tensors, peer, tag); }, peer);
}

void send(const at::Tensor& tensor, int peer, const Group& group, int tag) {
  check_rows(tensor, "send");
  check_other(peer, group, "send");
  before_read(tensor);
  if (auto* shared = shared_memory(group, tensor, "send")) {
    shm::PointToPoint& messages = shared->point_to_point();
    messages.wait(*messages.send(tensor.data_ptr(), tensor.nbytes(), peer, tag));
    return;
  }
  send_async(tensor, peer, group, tag).wait();
}

Work receive_async(const at::Tensor& tensor, int peer, const Group& group, int tag) {
  check_rows(tensor, "receive");
  check_other(peer, group, "receive");
  before_write(tensor);
  if (auto* shared = shared_memory(group, tensor, "receive")) {
    return Starter::follow(
        group, shared->point_to_point().receive(tensor.data_ptr(), tensor.nbytes(), peer, tag),
        tensor);
  }
  std::vector<at::Tensor> tensors = {flat_bytes(tensor)};
  return Starter::start(
      group, "receive", tensors, {},
      [&](c10d::Backend& backend) { return backend.recv(tensors, peer, tag); }, peer);
}

void receive(const at::Tensor& tensor, int peer, const Group& group, int tag) {
  check_rows(tensor, "receive");
  check_other(peer, group, "receive");
  before_write(tensor);
  if (auto* shared = shared_memory(group, tensor, "receive")) {
    shm::PointToPoint& messages = shared->point_to_point();
    messages.wait(*messages.receive(tensor.data_ptr(), tensor.nbytes(), peer, tag));
    return;
  }
  receive_async(tensor, peer, group, tag).wait();
}

void barrier(const Group& group) {
  if (!is_needed(group, "barrier")) return;
  if (auto* shared = group.shared_memory()) {
    shared->barrier();
    return;
  }
  Starter::start(group, "barrier", {}, {}, [](c10d::Backend& backend) {
    return backend.barrier();
  }).wait();
}

std::vector<std::string> all_gather_text(const std::string& text, const Group& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const at::Tensor length = at::empty({1}, at::kLong);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(text.size());
  const at::Tensor lengths = at::empty({group.size()}, at::kLong);
  all_gather(lengths, length, group);
  const std::span<const std::int64_t> sizes(lengths.const_data_ptr<std::int64_t>(), ranks);

  // Padded to the longest; one byte at least, for an engine may refuse an empty tensor.
  const std::int64_t longest =
      std::max<std::int64_t>(1, *std::max_element(sizes.begin(), sizes.end()));
  const at::Tensor own = at::empty({longest}, at::kByte);
  std::memset(own.mutable_data_ptr(), 0, static_cast<std::size_t>(longest));
  std::memcpy(own.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = at::empty({longest * group.size()}, at::kByte);
  all_gather(all, own, group);

  std::vector<std::string> texts(ranks);
  const auto* bytes = reinterpret_cast<const char*>(all.const_data_ptr<std::uint8_t>());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    texts[rank].assign(bytes + static_cast<std::int64_t>(rank) * longest,
                       static_cast<std::size_t>(sizes[rank]));
  }
  return texts;
}

at::Tensor zeros_registered(at::IntArrayRef sizes, const at::TensorOptions& options,
                            const Group& group) {
  shm::Communicator* shared = group.shared_memory();
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  if (shared == nullptr || !options.device().is_cpu() || count == 0) {
    return at::zeros(sizes, options);
  }
  const auto allocation =
      shared->allocate(static_cast<std::size_t>(count) * options.dtype().itemsize());
  return at::from_blob(allocation->data(), sizes, [allocation](void*) {}, options);
}

}  // namespace trireme::comm
