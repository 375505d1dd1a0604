// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/threads/threads_backend.h>

#include <trireme/base/error.h>
#include <trireme/comm/threads/threads_work.h>

#include <numeric>
#include <utility>

namespace trireme::comm {
namespace {

using c10d::OpType;
using threads::Call;
using threads::Kind;

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* operation) {
  if (tensors.size() == 1) return tensors.front();
  throw UsageError(
      join_message(operation, " was given a list of ", tensors.size(), " tensors, expected one"),
      "make one call per tensor");
}

void check_contiguous(const at::Tensor& tensor, const char* operation) {
  if (tensor.is_contiguous()) return;
  throw UsageError(join_message(operation, " was given a tensor of sizes ", tensor.sizes(),
                                " and strides ", tensor.strides(), ", expected a contiguous one"),
                   "pass tensor.contiguous()");
}

void check_times(const at::Tensor& large, const at::Tensor& small, int ranks,
                 const char* operation) {
  check_contiguous(large, operation);
  if (large.numel() == small.numel() * ranks && large.scalar_type() == small.scalar_type()) return;
  throw UsageError(
      join_message(operation, " over ", ranks, " ranks was given ", large.sizes(), " of ",
                   large.scalar_type(), " and ", small.sizes(), " of ", small.scalar_type()),
      "one needs as many times the elements of the other as there are ranks, and the "
      "same dtype");
}

// One list with a tensor for each rank, each like `one`.
void check_pieces(const std::vector<std::vector<at::Tensor>>& lists, const at::Tensor& one,
                  int ranks, const char* operation) {
  if (lists.size() != 1 || std::ssize(lists.front()) != ranks) {
    throw UsageError(join_message(operation, " over ", ranks, " ranks was given ", lists.size(),
                                  " lists of tensors, expected one with a tensor for each rank"),
                     "give one list with a tensor for each rank");
  }
  for (const at::Tensor& piece : lists.front()) {
    if (piece.numel() == one.numel() && piece.scalar_type() == one.scalar_type()) continue;
    throw UsageError(join_message(operation, " was given ", piece.sizes(), " of ",
                                  piece.scalar_type(), " in its list and ", one.sizes(), " of ",
                                  one.scalar_type(), " as this rank's tensor"),
                     "give tensors of one size and dtype");
  }
}

c10d::ReduceOp::RedOpType known(const c10d::ReduceOp& op, const char* operation) {
  if (op.op_ <= c10d::ReduceOp::BXOR) return op.op_;
  throw UsageError(
      join_message(operation, " between threads does not know reduction ",
                   static_cast<int>(op.op_)),
      "use a sum, average, product, minimum, maximum, and, or, or xor; multiply before "
      "a sum");
}

// The parts of the first dimension that each rank is given; equal ones where no sizes are given.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor, const std::vector<std::int64_t>& given,
                                 int ranks) {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  std::vector<std::int64_t> sizes = given;
  if (sizes.empty() && rows % ranks == 0) {
    sizes.assign(static_cast<std::size_t>(ranks), rows / ranks);
  }
  if (std::ssize(sizes) != ranks ||
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != rows) {
    throw UsageError(join_message("all-to-all over ", ranks, " ranks cannot split ", rows,
                                  " rows by ", sizes.size(), " sizes"),
                     "give one size per rank, with the rows as their sum; or none, and rows that "
                     "divide by the ranks");
  }
  const at::Tensor whole = tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor;
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back(whole.narrow(0, begin, size));
    begin += size;
  }
  return parts;
}

}  // namespace

ThreadsBackend::ThreadsBackend(std::shared_ptr<threads::GroupState> state, int rank, int size,
                               std::chrono::milliseconds timeout)
    : Backend(rank, size), state_(std::move(state)), timeout_(timeout) {
  state_->enter(rank);
  init();
}

ThreadsBackend::~ThreadsBackend() { state_->leave(getRank()); }

ThreadsBackend::WorkPointer ThreadsBackend::start(OpType type, Call call, Tensors inputs,
                                                  Tensors outputs, bool is_async,
                                                  std::chrono::milliseconds timeout) {
  call.rank = getRank();
  auto work = c10::make_intrusive<threads::ThreadsWork>(
      state_, state_->start(call, std::move(inputs), std::move(outputs)), type,
      timeout > kNoTimeout ? timeout : timeout_.load());
  if (!is_async) work->wait(kNoTimeout);
  return work;
}

void ThreadsBackend::check_rank(std::int64_t rank, const char* operation) const {
  if (rank >= 0 && rank < getSize()) return;
  throw UsageError(join_message(operation, " names rank ", rank, " of a group of ", getSize()),
                   "give a rank that is in the group");
}

ThreadsBackend::WorkPointer ThreadsBackend::broadcast(Tensors& tensors,
                                                      const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only(tensors, "broadcast");
  check_rank(options.rootRank, "broadcast");
  return start(OpType::BROADCAST,
               {.kind = Kind::kBroadcast,
                .peer = static_cast<int>(options.rootRank),
                .dtype = tensor.scalar_type(),
                .elements = tensor.numel()},
               {tensor}, {tensor}, options.asyncOp, options.timeout);
}

ThreadsBackend::WorkPointer ThreadsBackend::allreduce(Tensors& tensors,
                                                      const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "all-reduce");
  return start(OpType::ALLREDUCE,
               {.kind = Kind::kAllReduce,
                .op = known(options.reduceOp, "all-reduce"),
                .dtype = tensor.scalar_type(),
                .elements = tensor.numel()},
               {tensor}, {tensor}, options.asyncOp, options.timeout);
}

ThreadsBackend::WorkPointer ThreadsBackend::reduce(Tensors& tensors,
                                                   const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "reduce");
  check_rank(options.rootRank, "reduce");
  return start(OpType::REDUCE,
               {.kind = Kind::kReduce,
                .peer = static_cast<int>(options.rootRank),
                .op = known(options.reduceOp, "reduce"),
                .dtype = tensor.scalar_type(),
                .elements = tensor.numel()},
               {tensor}, {tensor}, options.asyncOp, options.timeout);
}

ThreadsBackend::WorkPointer ThreadsBackend::allgather(std::vector<Tensors>& outputs,
                                                      Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only(inputs, "all-gather");
  check_pieces(outputs, input, getSize(), "all-gather");
  return start(OpType::ALLGATHER,
               {.kind = Kind::kAllGather, .dtype = input.scalar_type(), .elements = input.numel()},
               {input}, outputs.front(), options.asyncOp, options.timeout);
}

ThreadsBackend::WorkPointer ThreadsBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& options) {
  check_times(output, input, getSize(), "all-gather");
  return start(OpType::_ALLGATHER_BASE,
               {.kind = Kind::kAllGather, .dtype = input.scalar_type(), .elements = input.numel()},
               {input}, output.view({getSize(), input.numel()}).unbind(), options.asyncOp,
               options.timeout);
}

ThreadsBackend::WorkPointer ThreadsBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                   const c10d::GatherOptions& options) {
  const at::Tensor& input = only(inputs, "gather");
  check_rank(options.rootRank, "gather");
  const bool is_root = getRank() == options.rootRank;
  if (is_root) check_pieces(outputs, input, getSize(), "gather");
  return start(OpType::GATHER,
               {.kind = Kind::kGather,
                .peer = static_cast<int>(options.rootRank),
                .dtype = input.scalar_type(),
                .elements = input.numel()},
               {input}, is_root ? outputs.front() : Tensors(), options.asyncOp, options.timeout);
}

ThreadsBackend::WorkPointer ThreadsBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                    const c10d::ScatterOptions& options) {
  const at::Tensor& output = only(outputs, "scatter");
  check_rank(options.rootRank, "scatter");
  const bool is_root = getRank() == options.rootRank;
  if (is_root) check_pieces(inputs, output, getSize(), "scatter");
  return start(OpType::SCATTER,
               {.kind = Kind::kScatter,
                .peer = static_cast<int>(options.rootRank),
                .dtype = output.scalar_type(),
                .elements = output.numel()},
               is_root ? inputs.front() : Tensors(), {output}, options.asyncOp, options.timeout);
}

ThreadsBackend::WorkPointer ThreadsBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  check_times(input, output, getSize(), "reduce-scatter");
  return start(OpType::_REDUCE_SCATTER_BASE,
               {.kind = Kind::kReduceScatter,
                .op = known(options.reduceOp, "reduce-scatter"),
                .dtype = input.scalar_type(),
                .elements = input.numel()},
               {input}, {output}, options.asyncOp, options.timeout);
}

ThreadsBackend::WorkPointer ThreadsBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                          std::vector<std::int64_t>& output_splits,
                                                          std::vector<std::int64_t>& input_splits,
                                                          const c10d::AllToAllOptions& options) {
  return start(OpType::ALLTOALL_BASE, {.kind = Kind::kAllToAll, .dtype = input.scalar_type()},
               parts_of(input, input_splits, getSize()), parts_of(output, output_splits, getSize()),
               options.asyncOp, options.timeout);
}

ThreadsBackend::WorkPointer ThreadsBackend::send(Tensors& tensors, int destination, int tag) {
  const at::Tensor& tensor = only(tensors, "send");
  check_rank(destination, "send");
  return start(OpType::SEND,
               {.kind = Kind::kSend,
                .peer = destination,
                .tag = tag,
                .dtype = tensor.scalar_type(),
                .elements = tensor.numel()},
               {tensor}, {}, true, kNoTimeout);
}

ThreadsBackend::WorkPointer ThreadsBackend::recv(Tensors& tensors, int source, int tag) {
  const at::Tensor& tensor = only(tensors, "receive");
  check_rank(source, "receive");
  return start(OpType::RECV,
               {.kind = Kind::kReceive,
                .peer = source,
                .tag = tag,
                .dtype = tensor.scalar_type(),
                .elements = tensor.numel()},
               {}, {tensor}, true, kNoTimeout);
}

ThreadsBackend::WorkPointer ThreadsBackend::barrier(const c10d::BarrierOptions& options) {
  return start(OpType::BARRIER, {.kind = Kind::kBarrier}, {}, {}, options.asyncOp, options.timeout);
}

void ThreadsBackend::abort(const std::string& reason) { state_->abort(getRank(), reason); }

void ThreadsBackend::abort() { abort(join_message("rank ", getRank(), " aborted the group")); }

}  // namespace trireme::comm
