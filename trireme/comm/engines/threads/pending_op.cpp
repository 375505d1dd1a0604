// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/threads/pending_op.h>

#include <trireme/base/error.h>
#include <trireme/comm/adapter/host_fold.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

namespace trireme::comm::threads {
namespace {

// Each rank has one device, whose stream its operations wait for.
at::Device device_of(OperationKind kind, int rank, const std::vector<at::Tensor>& inputs,
                     const std::vector<at::Tensor>& outputs) {
  std::optional<at::Device> device;
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const at::Tensor& tensor : *tensors) {
      if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_meta()) {
        throw UsageError(
            join_message(name_of(kind), " between threads was given ",
                         tensor.defined() ? join_message("a tensor on ", tensor.device(),
                                                         " of layout ", tensor.layout())
                                          : std::string("an undefined tensor"),
                         ", expected a dense one with memory"),
            "give it memory first, or tensor.to_dense()");
      }
      if (!device) device = tensor.device();
      if (tensor.device() == *device) continue;
      throw UsageError(join_message(name_of(kind), " was given tensors on ", *device, " and ",
                                    tensor.device(), " by rank ", rank),
                       "give tensors of one device; other ranks may use other devices");
    }
  }
  return device.value_or(at::kCPU);
}

// Returns a single tensor unchanged, with its strides; otherwise a tensor for each piece.
std::vector<at::Tensor> tensors_of(const Buffer& buffer) {
  if (buffer.num_pieces() == 1 && buffer.is_block()) return {buffer.whole()};
  return buffer.pieces();
}

using PendingOps = std::span<const std::shared_ptr<PendingOp>>;

void copy_all(const at::Tensor& to, const at::Tensor& from) {
  to.copy_(from.sizes() == to.sizes() ? from : from.reshape(to.sizes()), /*non_blocking=*/true);
}

// A true division, also where an accelerator would multiply by the reciprocal of a number.
void divide(const at::Tensor& sum, std::size_t ranks) {
  const bool cut_off = at::isIntegralType(sum.scalar_type(), /*includeBool=*/false);
  const at::Tensor divisor = at::full({}, static_cast<std::int64_t>(ranks), sum.options());
  if (cut_off) {
    sum.div_(divisor, "trunc");
  } else {
    sum.div_(divisor);
  }
}

// Combines the terms in order on `device`. Sums and products of fp16 and bf16 are computed in fp32
// and rounded once.
at::Tensor fold_on(at::Device device, const std::vector<at::Tensor>& terms,
                   c10d::ReduceOp::RedOpType op) {
  using c10d::ReduceOp;
  const at::Tensor& first = terms.front();
  const bool is_sum = op == ReduceOp::SUM || op == ReduceOp::AVG;
  const bool widen =
      at::isReducedFloatingType(first.scalar_type()) && (is_sum || op == ReduceOp::PRODUCT);
  const at::TensorOptions options = first.options().device(device);
  at::Tensor folded = at::empty(first.sizes(), widen ? options.dtype(at::kFloat) : options);
  const bool is_ordered = has_streams(device);  // the processor does not wait for a copy by itself
  folded.copy_(first, is_ordered);
  for (std::size_t rank = 1; rank < terms.size(); ++rank) {
    combine(folded, terms[rank].to(device, terms[rank].scalar_type(), is_ordered),
            is_sum ? ReduceOp::SUM : op);
  }
  if (op == ReduceOp::AVG) divide(folded, terms.size());
  return widen ? folded.to(first.scalar_type()) : folded;
}

// Returns the contributions of the ranks to an operation that writes its result to the same
// tensors.
std::vector<at::Tensor> terms_of(PendingOps ops) {
  std::vector<at::Tensor> terms;
  for (const auto& pending : ops) terms.push_back(pending->outputs.front());
  return terms;
}

void broadcast(PendingOps ops, std::size_t root) {
  for (std::size_t rank = 0; rank < ops.size(); ++rank) {
    if (rank != root) copy_all(ops[rank]->outputs.front(), ops[root]->outputs.front());
  }
}

void all_reduce(PendingOps ops) {
  const PendingOp& first = *ops.front();
  const at::Tensor folded = fold_on(first.device, terms_of(ops), first.call.reduction);
  for (const auto& pending : ops) copy_all(pending->outputs.front(), folded);
}

void reduce(PendingOps ops, std::size_t root) {
  const PendingOp& result = *ops[root];
  copy_all(result.outputs.front(), fold_on(result.device, terms_of(ops), result.call.reduction));
}

// The root has one output for each rank.
void gather(PendingOps ops, std::size_t root) {
  for (std::size_t rank = 0; rank < ops.size(); ++rank) {
    copy_all(ops[root]->outputs[rank], ops[rank]->inputs.front());
  }
}

// The root has one input for each rank.
void scatter(PendingOps ops, std::size_t root) {
  for (std::size_t rank = 0; rank < ops.size(); ++rank) {
    copy_all(ops[rank]->outputs.front(), ops[root]->inputs[rank]);
  }
}

void all_gather(PendingOps ops) {
  for (std::size_t rank = 0; rank < ops.size(); ++rank) gather(ops, rank);
}

// Every rank has one input for each rank.
void reduce_scatter(PendingOps ops) {
  for (std::size_t rank = 0; rank < ops.size(); ++rank) {
    const PendingOp& to = *ops[rank];
    std::vector<at::Tensor> terms;
    for (const auto& from : ops) terms.push_back(from->inputs[rank]);
    copy_all(to.outputs.front(), fold_on(to.device, terms, to.call.reduction));
  }
}

// Every rank has one input and one output for each rank.
void all_to_all(PendingOps ops) {
  for (std::size_t to = 0; to < ops.size(); ++to) {
    for (std::size_t from = 0; from < ops.size(); ++from) {
      const std::int64_t given = ops[from]->inputs[to].numel();
      const std::int64_t expected = ops[to]->outputs[from].numel();
      if (given == expected) continue;
      throw UsageError(join_message("rank ", from, " gives rank ", to, " ", given,
                                    " elements, which expects ", expected),
                       "what a rank gives another must be what that one expects of it");
    }
  }
  for (std::size_t to = 0; to < ops.size(); ++to) {
    for (std::size_t from = 0; from < ops.size(); ++from) {
      copy_all(ops[to]->outputs[from], ops[from]->inputs[to]);
    }
  }
}

void compute(PendingOps ops) {
  const OperationSummary& call = ops.front()->call;
  const auto root = static_cast<std::size_t>(std::max(call.peer, 0));
  switch (call.kind) {
    case OperationKind::kSend:
    case OperationKind::kReceive:
      return copy_all(ops.back()->outputs.front(), ops.front()->inputs.front());
    case OperationKind::kBroadcast:
      return broadcast(ops, root);
    case OperationKind::kAllReduce:
      return all_reduce(ops);
    case OperationKind::kReduce:
      return reduce(ops, root);
    case OperationKind::kAllGather:
      return all_gather(ops);
    case OperationKind::kGather:
      return gather(ops, root);
    case OperationKind::kScatter:
      return scatter(ops, root);
    case OperationKind::kReduceScatter:
      return reduce_scatter(ops);
    case OperationKind::kAllToAll:
      return all_to_all(ops);
    case OperationKind::kBarrier:
      return;
  }
}

std::vector<at::Device> devices_of(PendingOps ops) {
  std::vector<at::Device> devices;
  for (const auto& pending : ops) {
    if (std::ranges::count(devices, pending->device) == 0) devices.push_back(pending->device);
  }
  return devices;
}

}  // namespace

PendingOp::PendingOp(const Operation& operation, int which)
    : call(summary_of(operation)),
      rank(which),
      inputs(tensors_of(operation.input)),
      outputs(tensors_of(operation.output)),
      device(device_of(operation.kind, rank, inputs, outputs)),
      ready(record_current(device)),
      work(c10::intrusive_ptr<PendingOperation>()) {}

PendingOp::~PendingOp() {
  if (!is_done() || !copied_ || is_followed_.load(std::memory_order_acquire)) return;
  try {
    for (const c10::Event& event : *copied_) event.synchronize();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): its next user is told
  }
}

void PendingOp::finish(std::shared_ptr<const Events> copied) {
  copied_ = std::move(copied);
  is_done_.store(true, std::memory_order_release);
}

bool PendingOp::has_ended() const {
  return is_done() && (!copied_ || std::ranges::all_of(*copied_, [](const c10::Event& event) {
           return event.query();
         }));
}

void PendingOp::wait_on_stream() {
  if (copied_) wait_on_device(device, *copied_);
  is_followed_.store(true, std::memory_order_release);
}

std::shared_ptr<const Events> execute(PendingOps ops, CopyStreams& streams) {
  // Switches off autograd and version counters. The thread of the sender may run a receive, and its
  // modes are not those of the receiver.
  const at::AutoDispatchBelowADInplaceOrView guard;
  const PendingOp& first = *ops.front();
  const CopyStreams::Lane lane = is_message(first.call.kind)
                                     ? CopyStreams::Lane{first.rank, first.call.peer}
                                     : CopyStreams::Lane{-1, -1};
  const std::vector<c10::Stream> used = streams.take(lane, devices_of(ops));
  if (used.empty()) {
    compute(ops);
    return nullptr;
  }
  // A copy between devices may run on a stream of either device, so each stream waits for all
  // events.
  for (const c10::Stream& stream : used) {
    for (const auto& pending : ops) {
      if (pending->ready) wait_on_stream(stream, *pending->ready);
    }
  }
  try {
    const CurrentStreams current(used);
    compute(ops);
  } catch (...) {
    for (const c10::Stream& stream : used) stream.synchronize();
    throw;
  }
  auto copied = std::make_shared<Events>();
  for (const c10::Stream& stream : used) {
    copied->emplace_back(stream.device_type());
    copied->back().record(stream);
  }
  return copied;
}

}  // namespace trireme::comm::threads
