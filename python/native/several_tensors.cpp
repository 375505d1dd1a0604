// SPDX-License-Identifier: Apache-2.0
#include <python/native/several_tensors.h>

#include <trireme/base/error.h>
#include <trireme/comm/adapter/host_fold.h>
#include <trireme/comm/adapter/pending_operation.h>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <python/native/sparse_all_reduce.h>

#include <utility>

namespace trireme::python {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Backends return no work where the options say that the call blocks.
void wait_for(const WorkPtr& work) {
  if (work) work->wait();
}

WorkPtr completed(comm::OperationKind kind, int rank, Tensors results) {
  comm::Operation operation = {.kind = kind};
  operation.results = std::move(results);
  auto work = c10::make_intrusive<comm::PendingOperation>(std::move(operation), rank);
  work->complete(nullptr);
  return work;
}

// The value of its future is a list for each input.
class GatheredLists final : public comm::PendingOperation {
 public:
  GatheredLists(int rank, std::vector<Tensors> lists)
      : PendingOperation({.kind = comm::OperationKind::kAllGather}, rank),
        lists_(std::move(lists)) {
    complete(nullptr);
  }

  Tensors result() override {
    Tensors all;
    for (const Tensors& list : lists_) all.insert(all.end(), list.begin(), list.end());
    return all;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::ListType::ofTensors()));
    future->markCompleted(c10::IValue(lists_));
    return future;
  }

 private:
  std::vector<Tensors> lists_;
};

}  // namespace

WorkPtr all_reduce_several(c10d::Backend& backend, const Tensors& tensors,
                           const c10d::AllreduceOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const auto op = options.reduceOp.op_;
  if (op == c10d::ReduceOp::AVG || op == c10d::ReduceOp::PREMUL_SUM) {
    throw UsageError(
        join_message("all_reduce: unsupported reduction operation for several tensors: ",
                     op == c10d::ReduceOp::AVG ? "AVG" : "PREMUL_SUM"),
        "make one call per tensor");
  }
  if (tensors.front().is_sparse()) {
    at::Tensor sum = tensors.front();
    for (std::size_t i = 1; i < tensors.size(); ++i) sum = sum + tensors[i];
    sum = sum.coalesce();
    sparse_all_reduce(backend, sum, options)->wait();
    for (const at::Tensor& tensor : tensors) tensor.copy_(sum);
  } else {
    at::Tensor total = tensors.front().clone(at::MemoryFormat::Contiguous);
    for (std::size_t i = 1; i < tensors.size(); ++i) comm::combine(total, tensors[i], op);
    Tensors only = {total};
    wait_for(backend.allreduce(only, options));
    for (const at::Tensor& tensor : tensors) tensor.copy_(total);
  }
  return completed(comm::OperationKind::kAllReduce, backend.getRank(), tensors);
}

WorkPtr broadcast_several(c10d::Backend& backend, const Tensors& tensors,
                          const c10d::BroadcastOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor& root = tensors[static_cast<std::size_t>(options.rootTensor)];
  Tensors only = {root};
  wait_for(backend.broadcast(only, options));
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_same(root)) tensor.copy_(root);
  }
  return completed(comm::OperationKind::kBroadcast, backend.getRank(), tensors);
}

WorkPtr all_gather_several(c10d::Backend& backend, const std::vector<Tensors>& outputs,
                           const Tensors& inputs, const c10d::AllgatherOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor own = at::stack(inputs);
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes.front() *= backend.getSize();
  at::Tensor all = at::empty(sizes, own.options());
  wait_for(backend._allgather_base(all, own, options));
  for (const Tensors& list : outputs) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      list[i].copy_(all[static_cast<std::int64_t>(i)].view(list[i].sizes()));
    }
  }
  return c10::make_intrusive<GatheredLists>(backend.getRank(), outputs);
}

}  // namespace trireme::python
