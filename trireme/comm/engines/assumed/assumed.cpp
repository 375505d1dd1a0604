// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/assumed/assumed.h>

#include <trireme/base/error.h>
#include <trireme/comm/adapter/adapter_backend.h>
#include <trireme/comm/adapter/pending_operation.h>

#include <ATen/core/grad_mode.h>

#include <utility>

namespace trireme::comm {
namespace {

// Replaces the values of one rank by the result of a reduction over equal values of all ranks.
void reduce(const at::Tensor& values, const c10d::ReduceOp& reduction, int ranks) {
  switch (reduction.op_) {
    case c10d::ReduceOp::SUM:
      values.mul_(ranks);
      return;
    case c10d::ReduceOp::PRODUCT:
      values.pow_(ranks);
      return;
    case c10d::ReduceOp::BXOR:
      if (ranks % 2 == 0) values.zero_();
      return;
    case c10d::ReduceOp::PREMUL_SUM:
      throw UsageError("a pre-multiplied sum has no assumed result", "multiply before a sum");
    default:  // the mean, the least, the greatest, and, or
      return;
  }
}

void copy_values(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() == from.numel()) to.copy_(from.reshape(to.sizes()));
}

class AssumedConnection final : public EngineConnection {
 public:
  AssumedConnection(int rank, int size) : EngineConnection("assumed", rank, size) {}

  TensorForm form() const override { return TensorForm::kAny; }

  void check(const Operation& operation) const override {
    if (operation.kind != OperationKind::kReceive) return;
    throw UsageError(join_message("a message is received from rank ", operation.peer,
                                  ", which does not exist while a step is predicted"),
                     "receive messages after the first training step only, or leave this part out "
                     "if world.launcher is `prediction`");
  }

  WorkPtr submit(Operation operation) override {
    const at::NoGradGuard no_grad;
    complete(operation);
    auto work = c10::make_intrusive<PendingOperation>(std::move(operation), rank());
    work->complete(nullptr);
    return work;
  }

  void abort(const std::string& /*reason*/) override {}

 private:
  void complete(const Operation& operation) const {
    const auto gives_to = [&](const at::Tensor& from) {
      for (const at::Tensor& to : operation.output.pieces()) copy_values(to, from);
    };
    switch (operation.kind) {
      case OperationKind::kAllReduce:
        return reduce(operation.output.piece(), operation.reduction, size());
      case OperationKind::kReduce:
        if (operation.peer == rank()) {
          reduce(operation.output.piece(), operation.reduction, size());
        }
        return;
      case OperationKind::kReduceScatter:
        copy_values(operation.output.piece(), operation.input.piece(rank()));
        return reduce(operation.output.piece(), operation.reduction, size());
      case OperationKind::kAllGather:
        return gives_to(operation.input.piece());
      case OperationKind::kGather:
        if (operation.peer == rank()) gives_to(operation.input.piece());
        return;
      case OperationKind::kScatter:
        if (operation.peer == rank())
          copy_values(operation.output.piece(), operation.input.piece(rank()));
        return;
      case OperationKind::kAllToAll:
        return gives_to(operation.input.piece(rank()));
      case OperationKind::kBroadcast:
      case OperationKind::kSend:
      case OperationKind::kReceive:
      case OperationKind::kBarrier:
        return;
    }
  }
};

}  // namespace

Engine assumed_engine() {
  return {.name = "assumed",
          .scope = Scope::kAnyHosts,
          .has_other_ranks = false,
          .unavailable_because = []() -> std::string { return ""; },
          .connect = [](const EngineContext& context) -> c10::intrusive_ptr<c10d::Backend> {
            return c10::make_intrusive<AdapterBackend>(
                std::make_shared<AssumedConnection>(context.rank, context.size), context.timeout);
          },
          .summation_order = [](const EngineContext&) { return SummationOrder::kRank; }};
}

}  // namespace trireme::comm
