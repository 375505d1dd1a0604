// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/collectives.h>

#include <trireme/base/error.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

namespace trireme::comm {
namespace {

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMinimum:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMaximum:
      return c10d::ReduceOp::MAX;
  }
  throw InternalError("unknown ReduceOp", "this is a defect in Trireme; please report it");
}

// The same memory as one dimension without autograd, which is all that an engine needs to see.
// Reading the storage of a dense tensor in memory order is right for any permutation of its
// dimensions.
at::Tensor flat(const at::Tensor& tensor, const char* operation) {
  if (!tensor.defined() || !tensor.is_non_overlapping_and_dense()) {
    throw UsageError(
        join_message(operation, " was given ",
                     tensor.defined()
                         ? join_message("a tensor with gaps or overlaps (sizes ", tensor.sizes(),
                                        ", strides ", tensor.strides(), ")")
                         : std::string("an undefined tensor"),
                     ", expected a dense one"),
        "pass tensor.contiguous()");
  }
  return tensor.detach().as_strided({tensor.numel()}, {1});
}

// Like flat, for operations that concatenate slices: there memory order must be row-major order.
at::Tensor flat_rows(const at::Tensor& tensor, const char* operation) {
  at::Tensor result = flat(tensor, operation);
  if (!tensor.is_contiguous()) {
    throw UsageError(join_message(operation, " was given a permuted tensor (sizes ", tensor.sizes(),
                                  ", strides ", tensor.strides(), "), expected a contiguous one"),
                     "pass tensor.contiguous()");
  }
  return result;
}

void check_multiple(const at::Tensor& large, const at::Tensor& small, const Group& group,
                    const char* operation, const char* large_name, const char* small_name) {
  if (large.scalar_type() == small.scalar_type() && large.numel() == small.numel() * group.size())
    return;
  throw UsageError(join_message(operation, " over ", group.size(), " ranks: ", large_name, " is ",
                                large.sizes(), " of ", large.scalar_type(), ", ", small_name,
                                " is ", small.sizes(), " of ", small.scalar_type()),
                   join_message(large_name, " needs ", group.size(), " times the elements of ",
                                small_name, " and the same dtype"));
}

std::string first_line(const char* text) { return std::string(text, std::strcspn(text, "\n")); }

[[noreturn]] void fail(const Group& group, const char* operation, std::uint64_t sequence_number,
                       std::chrono::steady_clock::time_point started, const std::exception& cause) {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
  throw CommError(
      join_message(operation, " (number ", sequence_number, " of group '", group.name(), "', rank ",
                   group.rank(), " of ", group.size(), ", engine ", group.engine(),
                   ") failed after ", elapsed.count(), " s: ", first_line(cause.what())),
      join_message("another rank ended, or did not make this call within ",
                   static_cast<double>(group.timeout().count()) / 1000,
                   " s; its own log says why. The group cannot be used any more"));
}

}  // namespace

struct Work::Pending {
  c10::intrusive_ptr<c10d::Work> work;
  Group group;
  const char* operation;
  std::uint64_t sequence_number;
  std::chrono::steady_clock::time_point started;
  std::vector<at::Tensor> keep_alive;
};

Work::Work() = default;
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;
Work::~Work() = default;

void Work::wait() {
  if (!pending_) return;
  const std::unique_ptr<Pending> pending = std::move(pending_);
  try {
    pending->work->wait(pending->group.timeout());
  } catch (const std::exception& cause) {
    fail(pending->group, pending->operation, pending->sequence_number, pending->started, cause);
  }
}

bool Work::is_completed() const { return !pending_ || pending_->work->isCompleted(); }

// Starts operations on a group's backend; a group of one has nothing to do.
class Starter {
 public:
  template <typename Call>
  static Work start(const Group& group, const char* operation, std::vector<at::Tensor> keep_alive,
                    const Call& call) {
    Work work;
    if (group.size() == 1) return work;
    const std::uint64_t sequence_number = group.next_sequence_number();
    try {
      work.pending_ = std::make_unique<Work::Pending>(
          Work::Pending{call(*group.backend()), group, operation, sequence_number,
                        std::chrono::steady_clock::now(), std::move(keep_alive)});
    } catch (const std::exception& cause) {
      throw CommError(join_message("engine ", group.engine(), " cannot start ", operation,
                                   " (number ", sequence_number, " of group '", group.name(),
                                   "'): ", first_line(cause.what())),
                      "it may not know the dtype or the device of the tensor; if its connection is "
                      "broken, another rank ended before");
    }
    return work;
  }
};

Work all_reduce_async(const at::Tensor& tensor, const Group& group, ReduceOp op) {
  std::vector<at::Tensor> tensors = {flat(tensor, "all-reduce")};
  return Starter::start(group, "all-reduce", tensors, [&](c10d::Backend& backend) {
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op);
    return backend.allreduce(tensors, options);
  });
}

Work broadcast_async(const at::Tensor& tensor, int root, const Group& group) {
  if (root < 0 || root >= group.size()) {
    throw UsageError(join_message("broadcast from rank ", root, " of group '", group.name(),
                                  "', which has ranks 0 to ", group.size() - 1),
                     "give a root that is in the group");
  }
  std::vector<at::Tensor> tensors = {flat(tensor, "broadcast").view(at::kByte)};
  return Starter::start(group, "broadcast", tensors, [&](c10d::Backend& backend) {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return backend.broadcast(tensors, options);
  });
}

Work all_gather_async(const at::Tensor& output, const at::Tensor& input, const Group& group) {
  check_multiple(output, input, group, "all-gather", "output", "input");
  // Bytes, so that every dtype travels over every engine.
  at::Tensor out = flat_rows(output, "all-gather").view(at::kByte);
  at::Tensor in = flat_rows(input, "all-gather").view(at::kByte);
  if (group.size() == 1) out.copy_(in);
  return Starter::start(group, "all-gather", {out, in},
                        [&](c10d::Backend& backend) { return backend._allgather_base(out, in); });
}

Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                          ReduceOp op) {
  check_multiple(input, output, group, "reduce-scatter", "input", "output");
  at::Tensor out = flat_rows(output, "reduce-scatter");
  at::Tensor in = flat_rows(input, "reduce-scatter");
  if (group.size() == 1) out.copy_(in);
  return Starter::start(group, "reduce-scatter", {out, in}, [&](c10d::Backend& backend) {
    c10d::ReduceScatterOptions options;
    options.reduceOp = to_c10d(op);
    return backend._reduce_scatter_base(out, in, options);
  });
}

void all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op) {
  all_reduce_async(tensor, group, op).wait();
}
void broadcast(const at::Tensor& tensor, int root, const Group& group) {
  broadcast_async(tensor, root, group).wait();
}
void all_gather(const at::Tensor& output, const at::Tensor& input, const Group& group) {
  all_gather_async(output, input, group).wait();
}
void reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Group& group,
                    ReduceOp op) {
  reduce_scatter_async(output, input, group, op).wait();
}

void barrier(const Group& group) {
  Starter::start(group, "barrier", {}, [](c10d::Backend& backend) {
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

}  // namespace trireme::comm
