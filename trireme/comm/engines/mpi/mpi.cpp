// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/mpi/mpi.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/comm/adapter/adapter_backend.h>
#include <trireme/comm/adapter/engine_connection.h>
#include <trireme/comm/adapter/operation.h>
#include <trireme/comm/engines/mpi/load.h>
#include <trireme/comm/engines/mpi/module.h>
#include <trireme/comm/engines/mpi/progress.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::comm::mpi {
namespace {

// In which dtype MPI reduces elements that it may not support, and what is done before and after.
// Reduces fp16 and bf16 as fp32, and rounds once. The average of integers is truncated. For bool,
// the sum is `or` and the product is `and`.
class Reduction {
 public:
  // Throws UsageError if `op` is not defined for the dtype.
  Reduction(OperationKind operation, at::ScalarType type, const c10d::ReduceOp& op, int size);

  Element element() const { return element_; }
  Fold fold() const { return fold_; }

  // Returns this rank's contiguous contribution. It may be `input` itself, which is not changed.
  at::Tensor contribution(const at::Tensor& input) const;
  // Returns this rank's contribution. If `data` can be reduced in place, returns `data`, scaled if
  // necessary.
  at::Tensor contribution_in_place(const at::Tensor& data) const;
  // Returns the tensor that receives the result for `output`.
  at::Tensor landing(const at::Tensor& output) const;
  // Makes `work` copy the reduced `landed` to `output` at its end.
  void deliver(const at::Tensor& landed, const at::Tensor& output, MpiOperation& work) const;

 private:
  at::ScalarType type_;  // in which MPI folds
  Element element_ = Element::kUint8;
  Fold fold_ = Fold::kSum;
  int divisor_ = 1;
  at::Tensor factor_;  // undefined: none
};

using RedOpType = c10d::ReduceOp::RedOpType;

// For bool, the sum is `or` and the product is `and`: the maximum and minimum of its bytes.
Fold fold_of(RedOpType op, bool is_bool) {
  switch (op) {
    case RedOpType::PRODUCT:
      return is_bool ? Fold::kMinimum : Fold::kProduct;
    case RedOpType::MIN:
      return Fold::kMinimum;
    case RedOpType::MAX:
      return Fold::kMaximum;
    case RedOpType::BAND:
      return Fold::kAnd;
    case RedOpType::BOR:
      return Fold::kOr;
    case RedOpType::BXOR:
      return Fold::kXor;
    default:
      return is_bool ? Fold::kMaximum : Fold::kSum;
  }
}

Element element_of(at::ScalarType type, OperationKind kind) {
  switch (type) {
    case at::kDouble:
      return Element::kFloat64;
    case at::kFloat:
      return Element::kFloat32;
    case at::kChar:
      return Element::kInt8;
    case at::kShort:
      return Element::kInt16;
    case at::kInt:
      return Element::kInt32;
    case at::kLong:
      return Element::kInt64;
    case at::kByte:
    case at::kBool:
      return Element::kUint8;
    case at::kComplexFloat:
      return Element::kComplex64;
    case at::kComplexDouble:
      return Element::kComplex128;
    default:
      throw UsageError(join_message(name_of(kind), " cannot reduce elements of ", type),
                       "convert the tensor to a standard dtype");
  }
}

at::Tensor factor_of(const c10d::ReduceOp& op) {
  const auto& given = dynamic_cast<const PreMultipliedSumFactor&>(*op.supplement_);
  return given.tensor_factor.defined() ? given.tensor_factor.reshape({})
                                       : at::scalar_tensor(given.double_factor, at::kDouble);
}

Reduction::Reduction(OperationKind operation, at::ScalarType type, const c10d::ReduceOp& op,
                     int size)
    : type_(type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type) {
  check_reduction(operation, op, type);
  const RedOpType kind = op;
  element_ = element_of(type_, operation);
  fold_ = fold_of(kind, type == at::kBool);
  if (kind == RedOpType::AVG) divisor_ = size;
  if (kind == RedOpType::PREMUL_SUM) factor_ = factor_of(op);
}

at::Tensor Reduction::contribution(const at::Tensor& input) const {
  at::Tensor ready = input.to(type_).contiguous();
  if (!factor_.defined()) return ready;
  return ready.is_same(input) ? ready.mul(factor_).to(type_) : ready.mul_(factor_);
}

at::Tensor Reduction::contribution_in_place(const at::Tensor& data) const {
  at::Tensor ready = data.to(type_).contiguous();
  return factor_.defined() ? ready.mul_(factor_) : ready;
}

at::Tensor Reduction::landing(const at::Tensor& output) const {
  if (output.is_contiguous() && output.scalar_type() == type_) return output;
  return at::empty(output.sizes(), output.options().dtype(type_));
}

void Reduction::deliver(const at::Tensor& landed, const at::Tensor& output,
                        MpiOperation& work) const {
  if (divisor_ == 1 && landed.is_same(output)) {
    work.then([output] {});  // keeps the memory
    return;
  }
  work.then([landed, output, divisor = divisor_] {
    if (divisor != 1 && at::isIntegralType(landed.scalar_type(), true)) {
      landed.div_(divisor, "trunc");
    } else if (divisor != 1) {
      landed.div_(divisor);
    }
    if (!landed.is_same(output)) output.copy_(landed);
  });
}

// Supports reductions of fp64, fp32, fp16, bf16, int8 to int64, uint8, bool and complex types. MPI
// cannot cancel a collective. So if MPI fails or a deadline passes, the connection is given up:
// running operations fail, and later ones throw c10::DistBackendError.
class MpiConnection final : public EngineConnection {
 public:
  MpiConnection(std::shared_ptr<Connection> connection, int rank, int size);

  TensorForm form() const override { return TensorForm::kBlock; }
  void check(const Operation& operation) const override;
  WorkPtr submit(Operation operation) override;
  void abort(const std::string& reason) override;

 private:
  void start(MpiOperation& work) const;
  Reduction reduction_of(const Operation& operation) const;

  const std::shared_ptr<Connection> connection_;
  const int highest_tag_;
};

// Returns a piece of a buffer; nothing if the buffer has no pieces.
Bytes bytes_of(const Buffer& buffer, int piece = 0) {
  if (buffer.num_pieces() == 0) return {};
  return {buffer.data(piece), static_cast<std::int64_t>(buffer.num_bytes(piece))};
}

std::vector<Bytes> bytes_of_pieces(const Buffer& buffer) {
  std::vector<Bytes> all;
  for (int piece = 0; piece < buffer.num_pieces(); ++piece) all.push_back(bytes_of(buffer, piece));
  return all;
}

std::vector<std::int64_t> sizes_of_pieces(const Buffer& buffer) {
  std::vector<std::int64_t> all;
  for (const Bytes& piece : bytes_of_pieces(buffer)) all.push_back(piece.size);
  return all;
}

void start_all_reduce(MpiOperation& work, const at::Tensor& tensor, const Reduction& reduction) {
  const at::Tensor data = reduction.contribution_in_place(tensor);
  reduction.deliver(data, tensor, work);
  work.start([&](Communicator& ranks) {
    return ranks.all_reduce(data.data_ptr(), data.numel(), reduction.element(), reduction.fold());
  });
}

void start_reduce(MpiOperation& work, const at::Tensor& tensor, const Reduction& reduction,
                  int root, bool is_root) {
  const at::Tensor data =
      is_root ? reduction.contribution_in_place(tensor) : reduction.contribution(tensor);
  if (is_root) {
    reduction.deliver(data, tensor, work);
  } else {
    work.then([data] {});
  }
  work.start([&](Communicator& ranks) {
    return ranks.reduce(data.data_ptr(), is_root ? data.data_ptr() : nullptr, data.numel(),
                        reduction.element(), reduction.fold(), root);
  });
}

void start_reduce_scatter(MpiOperation& work, const Operation& operation,
                          const Reduction& reduction) {
  const at::Tensor output = operation.output.piece();
  const at::Tensor contribution = reduction.contribution(operation.input.whole());
  const at::Tensor landed = reduction.landing(output);
  work.then([contribution] {});
  reduction.deliver(landed, output, work);
  work.start([&](Communicator& ranks) {
    return ranks.reduce_scatter(contribution.data_ptr(), landed.data_ptr(),
                                operation.input.lengths(), reduction.element(), reduction.fold());
  });
}

MpiConnection::MpiConnection(std::shared_ptr<Connection> connection, int rank, int size)
    : EngineConnection("mpi", rank, size),
      connection_(std::move(connection)),
      highest_tag_(connection_->communicator().highest_tag()) {}

void MpiConnection::check(const Operation& operation) const {
  const OperationKind kind = operation.kind;
  if (kind == OperationKind::kAllReduce || kind == OperationKind::kReduce ||
      kind == OperationKind::kReduceScatter) {
    static_cast<void>(reduction_of(operation));
  }
  if (!is_message(kind) || (operation.tag >= 0 && operation.tag <= highest_tag_)) return;
  throw UsageError(join_message(name_of(kind), " was given tag ", operation.tag,
                                ", expected one from 0 to ", highest_tag_),
                   "choose another tag");
}

Reduction MpiConnection::reduction_of(const Operation& operation) const {
  return {operation.kind, operation.output.dtype(), operation.reduction, size()};
}

void MpiConnection::start(MpiOperation& work) const {
  const Operation& operation = work.operation();
  const Buffer& in = operation.input;
  const Buffer& out = operation.output;
  const int peer = operation.peer;
  switch (operation.kind) {
    case OperationKind::kAllReduce:
      return start_all_reduce(work, out.piece(), reduction_of(operation));
    case OperationKind::kReduce:
      return start_reduce(work, out.piece(), reduction_of(operation), peer, peer == rank());
    case OperationKind::kReduceScatter:
      return start_reduce_scatter(work, operation, reduction_of(operation));
    case OperationKind::kBroadcast:
      return work.start([&](Communicator& ranks) { return ranks.broadcast(bytes_of(out), peer); });
    case OperationKind::kAllGather:
      return work.start([&](Communicator& ranks) {
        return ranks.all_gather(in.data(), out.data(), sizes_of_pieces(out));
      });
    case OperationKind::kGather:
      return work.start([&](Communicator& ranks) {
        return ranks.gather(bytes_of(in), bytes_of(out).data, peer);
      });
    case OperationKind::kScatter:
      return work.start([&](Communicator& ranks) {
        return ranks.scatter(bytes_of(in).data, bytes_of(out), peer);
      });
    case OperationKind::kAllToAll:
      return work.start([&](Communicator& ranks) {
        return ranks.all_to_all(bytes_of_pieces(in), bytes_of_pieces(out));
      });
    case OperationKind::kSend:
      return work.start(
          [&](Communicator& ranks) { return ranks.send(bytes_of(in), peer, operation.tag); });
    case OperationKind::kReceive:
      return work.start([&](Communicator& ranks) {
        return ranks.receive(bytes_of(out), peer < 0 ? kAnyRank : peer, operation.tag);
      });
    case OperationKind::kBarrier:
      return work.start([](Communicator& ranks) { return ranks.barrier(); });
  }
}

MpiConnection::WorkPtr MpiConnection::submit(Operation operation) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  auto work = c10::make_intrusive<MpiOperation>(connection_, std::move(operation), rank());
  try {
    start(*work);
  } catch (const c10::Error& failure) {  // given up before, or a copy lacks memory
    // MPI may still write to the buffers of an operation that has started, so it is kept for ever.
    if (work->has_started()) connection_->progress().abandon(work, message_of(failure));
    throw;
  } catch (const std::exception& failure) {
    connection_->progress().abandon(work, failure.what());
    throw_broken(join_message(describe(work->operation()), " could not start: ", failure.what()));
  }
  connection_->progress().add(work);
  return work;
}

void MpiConnection::abort(const std::string& reason) {
  connection_->progress().give_up(*connection_, reason);
}

}  // namespace
}  // namespace trireme::comm::mpi

namespace trireme::comm {
namespace {

// Blocks until all ranks of the group are about to connect. From then on MPI blocks without a
// deadline.
void rendezvous(const EngineContext& context) {
  if (context.store->add("here", 1) == context.size) context.store->set("all here", "");
  context.store->wait({"all here"}, context.timeout);
}

// If its own launcher has not started MPI, every process is a world of one rank.
void check_world(const mpi::Module& module, int world_rank, int highest_rank) {
  if (module.world_size() > highest_rank && module.world_rank() == world_rank) return;
  throw ConfigError(
      join_message("engine mpi: ", module.library(), " says that this is rank ",
                   module.world_rank(), " of ", module.world_size(), ", expected rank ", world_rank,
                   " of ", highest_rank + 1, " or more"),
      "start the program by the mpirun of the MPI that Trireme was built with, or by srun with the "
      "--mpi plug-in that it supports (srun --mpi=list)");
}

c10::intrusive_ptr<c10d::Backend> connect_mpi(const EngineContext& context) {
  mpi::Module& module = mpi::load_module();
  mpi::check_launcher(module.family(), Environment::of_process());
  const std::vector<int>& world_ranks = context.world_ranks;
  rendezvous(context);
  mpi::Progress& progress = mpi::Progress::of(module);
  auto communicator = progress.exclusively([&] {
    module.begin();
    check_world(module, world_ranks[static_cast<std::size_t>(context.rank)],
                *std::ranges::max_element(world_ranks));
    return module.connect(world_ranks);
  });
  return c10::make_intrusive<AdapterBackend>(
      std::make_shared<mpi::MpiConnection>(
          std::make_shared<mpi::Connection>(progress, std::move(communicator)), context.rank,
          context.size),
      context.timeout);
}

}  // namespace

Engine mpi_engine() {
  return {.name = "mpi",
          .scope = Scope::kAnyHosts,
          .unavailable_because = mpi::why_module_is_missing,
          .connect = connect_mpi,
          // MPI chooses an algorithm by size. With two ranks the order does not matter, because
          // addition commutes.
          .summation_order = [](const EngineContext& context) {
            return context.size <= 2 ? SummationOrder::kRank : SummationOrder::kUnspecified;
          }};
}

}  // namespace trireme::comm
