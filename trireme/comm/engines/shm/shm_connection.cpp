// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/shm_connection.h>

#include <trireme/base/error.h>
#include <trireme/comm/adapter/operation.h>
#include <trireme/comm/adapter/pending_operation.h>

#include <optional>
#include <utility>
#include <vector>

namespace trireme::comm {
namespace {

using shm::Communicator;

std::optional<shm::DataType> find_type(at::ScalarType type) {
  using enum shm::DataType;
  switch (type) {
    case at::kDouble:
      return kFloat64;
    case at::kFloat:
      return kFloat32;
    case at::kHalf:
      return kFloat16;
    case at::kBFloat16:
      return kBFloat16;
    case at::kChar:
      return kInt8;
    case at::kShort:
      return kInt16;
    case at::kInt:
      return kInt32;
    case at::kLong:
      return kInt64;
    case at::kByte:
      return kUInt8;
    case at::kBool:
      return kBool;
    case at::kComplexFloat:
      return kComplex64;
    case at::kComplexDouble:
      return kComplex128;
    default:
      return std::nullopt;
  }
}

// Returns the type by which ranks compare calls that only move data. Bytes if the engine does not
// have the type.
shm::DataType type_of(const Buffer& buffer) {
  return find_type(buffer.dtype()).value_or(shm::DataType::kUInt8);
}

bool is_reduction(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduce ||
         kind == OperationKind::kReduceScatter;
}

// The engine and c10d number their reductions alike, so they are converted by a cast.
static_assert(static_cast<int>(c10d::ReduceOp::AVG) == static_cast<int>(shm::ReduceOp::kAverage));
static_assert(static_cast<int>(c10d::ReduceOp::MIN) == static_cast<int>(shm::ReduceOp::kMinimum));
static_assert(static_cast<int>(c10d::ReduceOp::BXOR) == static_cast<int>(shm::ReduceOp::kXor));
static_assert(static_cast<int>(c10d::ReduceOp::PREMUL_SUM) ==
              static_cast<int>(shm::ReduceOp::kPreMultipliedSum));

shm::Reduction to_reduction(const c10d::ReduceOp& op) {
  shm::Reduction reduction = {.op = static_cast<shm::ReduceOp>(op.op_)};
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    const auto& given = dynamic_cast<const PreMultipliedSumFactor&>(*op.supplement_);
    reduction.factor =
        given.tensor_factor.defined() ? given.tensor_factor.item<double>() : given.double_factor;
  }
  return reduction;
}

// The pieces of a buffer as the engine takes them.
template <typename Pointer>
struct Pieces {
  explicit Pieces(const Buffer& buffer) {
    for (int piece = 0; piece < buffer.num_pieces(); ++piece) {
      pointers.push_back(buffer.data(piece));
      lengths.push_back(buffer.num_bytes(piece));
    }
  }
  std::vector<Pointer> pointers;
  std::vector<std::size_t> lengths;
};

void reduce_scatter(Communicator& group, const Operation& operation) {
  const Buffer& input = operation.input;
  std::vector<std::size_t> counts;
  for (int piece = 0; piece < input.num_pieces(); ++piece) {
    counts.push_back(static_cast<std::size_t>(input.length(piece)));
  }
  const void* data = input.num_pieces() > 0 ? input.data() : nullptr;
  std::vector<std::byte> joined;
  if (!input.is_block()) {  // the engine takes pieces that follow each other
    for (int piece = 0; piece < input.num_pieces(); ++piece) {
      joined.insert(joined.end(), input.data(piece), input.data(piece) + input.num_bytes(piece));
    }
    data = joined.data();
  }
  group.reduce_scatter(data, operation.output.data(), counts, type_of(input),
                       to_reduction(operation.reduction), operation.label);
}

void gather(Communicator& group, const Operation& operation) {
  const auto ranks = static_cast<std::size_t>(group.size());
  auto to = Pieces<void*>(operation.output).pointers;
  to.resize(ranks);
  const std::vector<std::size_t> bytes(ranks, operation.input.num_bytes());
  group.gather(operation.input.data(), to, bytes, operation.peer, operation.label,
               type_of(operation.input));
}

void run_collective(Communicator& group, const Operation& operation) {
  const auto& [kind, input, output, reduction, peer, tag, number, label, timeout, results, back,
               title] = operation;
  switch (kind) {
    case OperationKind::kBroadcast:
      return group.broadcast(output.data(), output.num_bytes(), peer, label, type_of(output));
    case OperationKind::kAllReduce:
      return group.all_reduce(output.data(), output.data(),
                              static_cast<std::size_t>(output.length()), type_of(output),
                              to_reduction(reduction), label);
    case OperationKind::kReduce:
      return group.reduce(output.data(), output.data(), static_cast<std::size_t>(output.length()),
                          type_of(output), to_reduction(reduction), peer, label);
    case OperationKind::kAllGather: {
      const Pieces<void*> to(output);
      return group.all_gather(input.data(), to.pointers, to.lengths, label, type_of(input));
    }
    case OperationKind::kGather:
      return gather(group, operation);
    case OperationKind::kScatter:
      return group.scatter(Pieces<const void*>(input).pointers, output.data(), output.num_bytes(),
                           peer, label, type_of(output));
    case OperationKind::kReduceScatter:
      return reduce_scatter(group, operation);
    case OperationKind::kAllToAll: {
      const Pieces<const void*> from(input);
      const Pieces<void*> to(output);
      return group.all_to_all(from.pointers, from.lengths, to.pointers, to.lengths, label,
                              type_of(input));
    }
    default:
      return group.barrier(label);
  }
}

std::shared_ptr<shm::Transfer> start_message(Communicator& group, const Operation& operation) {
  const int peer = operation.peer < 0 ? shm::PointToPoint::kAny : operation.peer;
  if (operation.kind == OperationKind::kSend) {
    return group.point_to_point().send(operation.input.data(), operation.input.num_bytes(), peer,
                                       operation.tag, operation.label);
  }
  return group.point_to_point().receive(operation.output.data(), operation.output.num_bytes(), peer,
                                        operation.tag, operation.label);
}

// The thread that waits runs the operation. Queue and messages live as long as the connection,
// which ends its operations first.
class ShmOperation final : public PendingOperation {
 public:
  using PendingOperation::PendingOperation;

  void set_job(shm::Queue& queue, std::shared_ptr<shm::Job> job) {
    queue_ = &queue;
    job_ = std::move(job);
  }
  void set_transfer(shm::PointToPoint& messages, std::shared_ptr<shm::Transfer> transfer) {
    messages_ = &messages;
    transfer_ = std::move(transfer);
  }

 protected:
  // The deadline of the group holds, not `timeout`.
  void wait_for_completion(std::chrono::milliseconds /*timeout*/) override {
    if (job_) queue_->wait(*job_);
    if (transfer_) messages_->wait(*transfer_);
  }
  void poll() override {
    if (job_) queue_->hasten();
  }

 private:
  shm::Queue* queue_ = nullptr;
  std::shared_ptr<shm::Job> job_;
  shm::PointToPoint* messages_ = nullptr;
  std::shared_ptr<shm::Transfer> transfer_;
};

}  // namespace

ShmConnection::ShmConnection(std::shared_ptr<Communicator> communicator)
    : EngineConnection("shm", communicator->rank(), communicator->size()),
      communicator_(std::move(communicator)) {}

void ShmConnection::check(const Operation& operation) const {
  if (!is_reduction(operation.kind) || find_type(operation.output.dtype())) return;
  throw UsageError(join_message(name_of(operation.kind), " does not know how to reduce ",
                                operation.output.dtype()),
                   "use a floating-point, complex, bool, uint8 or signed integer dtype");
}

bool ShmConnection::try_run(const Operation& operation) {
  if (is_message(operation.kind)) {
    communicator_->point_to_point().wait(*start_message(*communicator_, operation));
  } else {
    run_collective(*communicator_, operation);
  }
  return true;
}

ShmConnection::WorkPtr ShmConnection::submit(Operation given) {
  auto pending = c10::make_intrusive<ShmOperation>(std::move(given), rank());
  const Operation& operation = pending->operation();
  Communicator* const group = communicator_.get();
  if (is_message(operation.kind)) {
    const auto transfer = start_message(*group, operation);
    pending->set_transfer(group->point_to_point(), transfer);
    group->point_to_point().when_done(*transfer, [pending, transfer] {
      pending->set_source(transfer->source());
      pending->complete(transfer->error());
    });
    // A thread that waits moves the message. If nobody waits, the thread of the queue does.
    if (!transfer->is_done()) {
      group->transfers().submit([group, transfer] { group->point_to_point().wait(*transfer); });
    }
  } else if (operation.kind == OperationKind::kAllReduce) {
    const Buffer& data = operation.output;
    pending->set_job(
        group->collectives(),
        group->start_all_reduce(
            data.data(), data.data(), static_cast<std::size_t>(data.length()), type_of(data),
            to_reduction(operation.reduction), operation.label,
            [pending](std::exception_ptr error) { pending->complete(std::move(error)); }));
  } else {
    pending->set_job(group->collectives(), group->collectives().submit([group, pending] {
      std::exception_ptr error;
      try {
        run_collective(*group, pending->operation());
      } catch (...) {
        error = std::current_exception();
      }
      pending->complete(std::move(error));
    }));
  }
  return pending;
}

void ShmConnection::set_timeout(std::chrono::milliseconds timeout) {
  communicator_->member().set_timeout(timeout);
}

void ShmConnection::abort(const std::string& reason) { communicator_->member().abort(reason); }

}  // namespace trireme::comm
