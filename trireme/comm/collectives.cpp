// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/collectives.h>

#include <trireme/base/error.h>
#include <trireme/comm/collective_checks.h>
#include <trireme/comm/engines/shm/communicator.h>
#include <trireme/comm/starter.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace trireme::comm {
namespace {

// Trireme and c10d number their reductions alike, so they are converted by a cast.
static_assert(static_cast<int>(ReduceOp::kAverage) == c10d::ReduceOp::AVG);
static_assert(static_cast<int>(ReduceOp::kMinimum) == c10d::ReduceOp::MIN);
static_assert(static_cast<int>(ReduceOp::kXor) == c10d::ReduceOp::BXOR);

c10d::ReduceOp::RedOpType to_c10d(ReduceOp op) {
  return static_cast<c10d::ReduceOp::RedOpType>(op);
}

// Returns the memory of a dense tensor as one dimension, without autograd.
at::Tensor flat(const at::Tensor& tensor) {
  return tensor.detach().as_strided({tensor.numel()}, {1});
}

// Does what every gathering collective does in a group of one rank. Returns false: nothing is left
// to do.
bool copy_alone(const at::Tensor& output, const at::Tensor& input) {
  flat(output).copy_(flat(input));
  return false;
}

// Each of the following functions checks the arguments of a call and fills in its operation. It
// returns false if nothing is left to do.

bool prepare_all_reduce(Operation& to, const Group& group, const at::Tensor& tensor, ReduceOp op) {
  check_dense(tensor, "all-reduce");
  if (!is_needed(group, "all-reduce")) return false;
  before_read(tensor);
  to.kind = OperationKind::kAllReduce;
  to.output = Buffer(tensor);
  to.reduction.op_ = to_c10d(op);
  return true;
}

bool prepare_reduce(Operation& to, const Group& group, const at::Tensor& tensor, int root,
                    ReduceOp op) {
  check_dense(tensor, "reduce");
  if (!is_needed(group, "reduce")) return false;
  before_read(tensor);
  check_peer(root, group, "reduce");
  to.kind = OperationKind::kReduce;
  to.output = Buffer(tensor);
  to.reduction.op_ = to_c10d(op);
  to.peer = root;
  return true;
}

bool prepare_broadcast(Operation& to, const Group& group, const at::Tensor& tensor, int root) {
  check_dense(tensor, "broadcast");
  check_peer(root, group, "broadcast");
  if (!is_needed(group, "broadcast")) return false;
  group.rank() == root ? before_read(tensor) : before_write(tensor);
  to.kind = OperationKind::kBroadcast;
  to.output = Buffer(tensor);
  to.peer = root;
  return true;
}

bool prepare_all_gather(Operation& to, const Group& group, const at::Tensor& output,
                        const at::Tensor& input) {
  check_rows(output, "all-gather");
  check_rows(input, "all-gather");
  check_multiple(output, input, group, "all-gather", "output", "input");
  before_write(output);
  if (!is_needed(group, "all-gather")) return copy_alone(output, input);
  to.kind = OperationKind::kAllGather;
  to.input = Buffer(input);
  to.output = Buffer(output, group.size());
  return true;
}

// `large` exists on the root only.
void check_rooted(const at::Tensor& large, const at::Tensor& small, int root, const Group& group,
                  const char* operation, const char* large_name, const char* small_name) {
  check_peer(root, group, operation);
  check_rows(small, operation);
  if (group.rank() != root) return;
  check_rows(large, operation);
  check_multiple(large, small, group, operation, large_name, small_name);
}

bool prepare_gather(Operation& to, const Group& group, const at::Tensor& output,
                    const at::Tensor& input, int root) {
  check_rooted(output, input, root, group, "gather", "output", "input");
  if (group.rank() == root) before_write(output);
  if (!is_needed(group, "gather")) return copy_alone(output, input);
  to.kind = OperationKind::kGather;
  to.input = Buffer(input);
  if (group.rank() == root) to.output = Buffer(output, group.size());
  to.peer = root;
  return true;
}

bool prepare_scatter(Operation& to, const Group& group, const at::Tensor& output,
                     const at::Tensor& input, int root) {
  check_rooted(input, output, root, group, "scatter", "input", "output");
  before_write(output);
  if (!is_needed(group, "scatter")) return copy_alone(output, input);
  to.kind = OperationKind::kScatter;
  if (group.rank() == root) to.input = Buffer(input, group.size());
  to.output = Buffer(output);
  to.peer = root;
  return true;
}

bool prepare_reduce_scatter(Operation& to, const Group& group, const at::Tensor& output,
                            const at::Tensor& input, ReduceOp op) {
  check_rows(output, "reduce-scatter");
  check_rows(input, "reduce-scatter");
  check_multiple(input, output, group, "reduce-scatter", "input", "output");
  before_write(output);
  if (!is_needed(group, "reduce-scatter")) return copy_alone(output, input);
  to.kind = OperationKind::kReduceScatter;
  to.input = Buffer(input, group.size());
  to.output = Buffer(output);
  to.reduction.op_ = to_c10d(op);
  return true;
}

bool prepare_all_to_all(Operation& to, const Group& group, const at::Tensor& output,
                        const at::Tensor& input) {
  check_all_to_all(output, input, group);
  before_write(output);
  if (!is_needed(group, "all-to-all")) return copy_alone(output, input);
  to.kind = OperationKind::kAllToAll;
  to.input = Buffer(input, group.size());
  to.output = Buffer(output, group.size());
  return true;
}

bool prepare_send(Operation& to, const Group& group, const at::Tensor& tensor, int peer, int tag) {
  check_rows(tensor, "send");
  check_other(peer, group, "send");
  before_read(tensor);
  to.kind = OperationKind::kSend;
  to.input = Buffer(tensor);
  to.peer = peer;
  to.tag = tag;
  return true;
}

bool prepare_receive(Operation& to, const Group& group, const at::Tensor& tensor, int peer,
                     int tag) {
  check_rows(tensor, "receive");
  check_other(peer, group, "receive");
  before_write(tensor);
  to.kind = OperationKind::kReceive;
  to.output = Buffer(tensor);
  to.peer = peer;
  to.tag = tag;
  return true;
}

template <typename Prepare, typename... Arguments>
void run(const Group& group, std::string_view label, const Prepare& prepare,
         const Arguments&... arguments) {
  Operation operation;
  if (!prepare(operation, group, arguments...)) return;
  operation.label = label;
  Starter::run(group, std::move(operation));
}

template <typename Prepare, typename... Arguments>
Work start(const Group& group, std::string_view label, const Prepare& prepare,
           const Arguments&... arguments) {
  Operation operation;
  if (!prepare(operation, group, arguments...)) return {};
  operation.label = label;
  return Starter::start(group, std::move(operation));
}

}  // namespace

void all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op, std::string_view label) {
  run(group, label, prepare_all_reduce, tensor, op);
}

Work all_reduce_async(const at::Tensor& tensor, const Group& group, ReduceOp op,
                      std::string_view label) {
  return start(group, label, prepare_all_reduce, tensor, op);
}

void all_reduce_ordered(const at::Tensor& tensor, const Group& group, std::string_view label) {
  check_dense(tensor, "ordered all-reduce");
  if (!is_needed(group, "ordered all-reduce")) return;
  if (group.carrier(tensor.device().type()).summation_order() == SummationOrder::kRank) {
    all_reduce(tensor, group, ReduceOp::kSum, label);
    return;
  }
  // Slices have equal lengths. The last ones are padded with zeros that nobody reads.
  const at::Tensor whole = flat(tensor);
  const std::int64_t ranks = group.size();
  const std::int64_t slice = (whole.numel() + ranks - 1) / ranks;
  if (slice == 0) return;
  const at::Tensor padded = at::zeros({ranks, slice}, whole.options());
  padded.flatten().slice(0, 0, whole.numel()).copy_(whole);
  const at::Tensor contributions = at::empty_like(padded);
  all_to_all(contributions, padded, group, label);
  // Half precision is added in fp32 and rounded once, as the shared-memory engine does.
  const bool is_half = at::isReducedFloatingType(whole.scalar_type());
  const at::Tensor terms = is_half ? contributions.to(at::kFloat) : contributions;
  const at::Tensor sum = terms.select(0, 0);
  for (std::int64_t rank = 1; rank < ranks; ++rank) sum.add_(terms.select(0, rank));
  all_gather(padded, sum.to(whole.scalar_type()), group, label);
  whole.copy_(padded.flatten().slice(0, 0, whole.numel()));
}

void reduce(const at::Tensor& tensor, int root, const Group& group, ReduceOp op,
            std::string_view label) {
  run(group, label, prepare_reduce, tensor, root, op);
}

void broadcast(const at::Tensor& tensor, int root, const Group& group, std::string_view label) {
  run(group, label, prepare_broadcast, tensor, root);
}

Work broadcast_async(const at::Tensor& tensor, int root, const Group& group,
                     std::string_view label) {
  return start(group, label, prepare_broadcast, tensor, root);
}

void all_gather(const at::Tensor& output, const at::Tensor& input, const Group& group,
                std::string_view label) {
  run(group, label, prepare_all_gather, output, input);
}

Work all_gather_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                      std::string_view label) {
  return start(group, label, prepare_all_gather, output, input);
}

void gather(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
            std::string_view label) {
  run(group, label, prepare_gather, output, input, root);
}

Work gather_async(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
                  std::string_view label) {
  return start(group, label, prepare_gather, output, input, root);
}

void scatter(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
             std::string_view label) {
  run(group, label, prepare_scatter, output, input, root);
}

Work scatter_async(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
                   std::string_view label) {
  return start(group, label, prepare_scatter, output, input, root);
}

void reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Group& group,
                    ReduceOp op, std::string_view label) {
  run(group, label, prepare_reduce_scatter, output, input, op);
}

Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                          ReduceOp op, std::string_view label) {
  return start(group, label, prepare_reduce_scatter, output, input, op);
}

void all_to_all(const at::Tensor& output, const at::Tensor& input, const Group& group,
                std::string_view label) {
  run(group, label, prepare_all_to_all, output, input);
}

Work all_to_all_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                      std::string_view label) {
  return start(group, label, prepare_all_to_all, output, input);
}

void send(const at::Tensor& tensor, int peer, const Group& group, int tag) {
  run(group, {}, prepare_send, tensor, peer, tag);
}

Work send_async(const at::Tensor& tensor, int peer, const Group& group, int tag) {
  return start(group, {}, prepare_send, tensor, peer, tag);
}

void receive(const at::Tensor& tensor, int peer, const Group& group, int tag) {
  run(group, {}, prepare_receive, tensor, peer, tag);
}

Work receive_async(const at::Tensor& tensor, int peer, const Group& group, int tag) {
  return start(group, {}, prepare_receive, tensor, peer, tag);
}

void barrier(const Group& group) {
  if (is_needed(group, "barrier")) Starter::run(group, Operation{});
}

std::vector<std::string> all_gather_text(const std::string& text, const Group& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const at::Tensor length = at::empty({1}, at::kLong);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(text.size());
  const at::Tensor lengths = at::empty({group.size()}, at::kLong);
  all_gather(lengths, length, group);
  const std::span<const std::int64_t> sizes(lengths.const_data_ptr<std::int64_t>(), ranks);

  // Texts are padded to the longest one. At least one byte, because an engine may refuse an empty
  // tensor.
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
