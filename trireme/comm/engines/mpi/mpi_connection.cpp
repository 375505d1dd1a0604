// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/mpi/mpi_connection.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/comm/engines/mpi/reduction.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <utility>
#include <vector>

namespace trireme::comm::mpi {
namespace {

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

}  // namespace

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

}  // namespace trireme::comm::mpi
