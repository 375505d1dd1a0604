// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/hierarchy/hierarchical_connection.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/format_ranks.h>
#include <trireme/comm/adapter/c10d_call.h>

#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

namespace trireme::comm {
namespace {

std::string name_of(const c10::intrusive_ptr<c10d::Backend>& backend) {
  return backend ? backend->getBackendName() : "none";
}

// Returns the pieces of a buffer as flat bytes, which is what the phases move.
std::vector<at::Tensor> bytes_of_pieces(const Buffer& buffer) {
  std::vector<at::Tensor> bytes = buffer.pieces();
  for (at::Tensor& piece : bytes) piece = bytes_of(piece.view({-1}));
  return bytes;
}

void run_phases(Phases& phases, const Operation& operation) {
  const auto& [kind, input, output, reduction, peer, tag, number, label, timeout, results, back,
               title] = operation;
  switch (kind) {
    case OperationKind::kBroadcast:
      return phases.broadcast(bytes_of(output.piece()), peer);
    case OperationKind::kAllReduce:
      return phases.all_reduce(output.piece(), reduction);
    case OperationKind::kReduce:
      return phases.reduce(output.piece(), peer, reduction);
    case OperationKind::kAllGather:
      return phases.all_gather(bytes_of(input.piece()), bytes_of_pieces(output));
    case OperationKind::kGather:
      return phases.gather(bytes_of(input.piece()), bytes_of_pieces(output), peer);
    case OperationKind::kScatter:
      return phases.scatter(bytes_of_pieces(input), bytes_of(output.piece()), peer);
    case OperationKind::kReduceScatter: {
      std::vector<at::Tensor> parts = input.pieces();
      for (at::Tensor& part : parts) part = part.view({-1});
      return phases.reduce_scatter(parts, output.piece(), reduction);
    }
    case OperationKind::kAllToAll:
      return phases.all_to_all(bytes_of_pieces(input), bytes_of_pieces(output));
    default:
      return phases.barrier();
  }
}

// A message that another backend carries. The thread that waits for it or asks for its state
// completes it.
class ForwardedMessage final : public PendingOperation {
 public:
  /// @param source_of converts a rank of that backend to a rank of the whole group; empty if they
  /// are equal.
  ForwardedMessage(Operation operation, int rank, c10::intrusive_ptr<c10d::Work> work,
                   std::vector<int> source_of)
      : PendingOperation(std::move(operation), rank),
        work_(std::move(work)),
        source_of_(std::move(source_of)) {}

  bool isCompleted() override {
    if (!work_->isCompleted()) return false;
    if (work_->isSuccess()) finish_once();
    return true;
  }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  bool wait(std::chrono::milliseconds timeout) override {
    work_->wait(timeout);
    finish_once();
    return PendingOperation::wait();
  }
  int sourceRank() const override {
    const int source = work_->sourceRank();
    return source < 0 || source_of_.empty() ? source : source_of_[static_cast<std::size_t>(source)];
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }

 private:
  void finish_once() {
    std::call_once(once_, [this] { complete(nullptr); });
  }

  const c10::intrusive_ptr<c10d::Work> work_;
  const std::vector<int> source_of_;
  std::once_flag once_;
};

}  // namespace

HierarchicalConnection::HierarchicalConnection(int rank, HostMap hosts,
                                               HierarchyConnections connections,
                                               const Options& options)
    : EngineConnection(options.name, rank, hosts.num_ranks()),
      hosts_(std::move(hosts)),
      options_(options),
      inside_name_(name_of(connections.inside)),
      across_name_(name_of(connections.across)),
      flat_name_(name_of(connections.flat)),
      connections_(std::move(connections)) {
  if (rank < 0 || rank >= hosts_.num_ranks()) {
    throw UsageError(
        join_message("rank ", rank, " of a hierarchy of ", hosts_.num_ranks(), " ranks"),
        "give a rank of the group");
  }
  const int host = hosts_.host_of(rank);
  const int local = hosts_.local_of(rank);
  const bool leads = local < hosts_.num_leaders() && hosts_.num_hosts() > 1;
  const auto local_size = static_cast<std::size_t>(hosts_.local_size(host));
  check_connection("inside the host", connections_.inside, local, local_size > 1 ? local_size : 0);
  check_connection("across hosts", connections_.across, host,
                   leads ? static_cast<std::size_t>(hosts_.num_hosts()) : 0);
  check_connection("between all ranks", connections_.flat, rank,
                   hosts_.num_hosts() > 1 ? static_cast<std::size_t>(hosts_.num_ranks()) : 0);
  worker_ = std::make_unique<Worker>();
}

HierarchicalConnection::~HierarchicalConnection() { worker_.reset(); }

void HierarchicalConnection::check_connection(const char* which,
                                              const c10::intrusive_ptr<c10d::Backend>& connection,
                                              int rank, std::size_t size) const {
  const bool fits = size == 0 ? connection == nullptr
                              : connection != nullptr && connection->getRank() == rank &&
                                    connection->getSize() == static_cast<int>(size);
  if (fits) return;
  throw UsageError(
      join_message("the connection ", which, " of rank ", this->rank(), " is ",
                   connection == nullptr ? std::string("missing")
                                         : join_message("rank ", connection->getRank(), " of ",
                                                        connection->getSize()),
                   ", expected ",
                   size == 0 ? std::string("none") : join_message("rank ", rank, " of ", size)),
      "connect the ranks of a host in rank order, and the leaders of one place in host order");
}

void HierarchicalConnection::abort(const std::string& reason) {
  const HierarchyConnections closing = break_down(reason);
  for (const auto& backend : {closing.inside, closing.across, closing.flat}) {
    if (backend) backend->abort();
  }
}

HierarchyConnections HierarchicalConnection::break_down(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (broken_.empty()) broken_ = reason;
  return std::exchange(connections_, {});
}

HierarchyConnections HierarchicalConnection::connections_or_throw() {
  const std::lock_guard lock(mutex_);
  if (broken_.empty()) return connections_;
  throw CommError(join_message("this group broke before: ", broken_),
                  "make a new group, or end the process");
}

std::string HierarchicalConnection::describe(Phase phase) const {
  const int host = hosts_.host_of(rank());
  const int local = hosts_.local_of(rank());
  switch (phase) {
    case Phase::kQueue:
      return "waiting for earlier collectives of the group";
    case Phase::kInside:
      return join_message("inside host ", host, " (", format_ranks(hosts_.members(host)), " by ",
                          inside_name_, ")");
    case Phase::kAcross:
      return join_message("across hosts (", format_ranks(hosts_.leaders(local)), " by ",
                          across_name_, ")");
    case Phase::kFlat:
      return join_message("between all ranks (by ", flat_name_, ")");
  }
  throw InternalError("unknown phase", "this is a defect in Trireme; please report it");
}

void HierarchicalConnection::check(const Operation& operation) const {
  const bool is_from_any = operation.kind == OperationKind::kReceive && operation.peer < 0;
  // If all messages of this rank come over the same backend, that backend can receive from any
  // rank.
  const bool has_one_way =
      hosts_.num_hosts() == 1 || hosts_.local_size(hosts_.host_of(rank())) == 1;
  if (!is_from_any || options_.receive_from_any || has_one_way) return;
  throw UsageError(
      "receive from any rank, over hosts: a message may come by one of two engines, and neither "
      "can be asked whether one is there",
      "name the source, or set HierarchyOptions::receive_from_any on all ranks");
}

HierarchicalConnection::WorkPtr HierarchicalConnection::submit(Operation operation) {
  if (is_message(operation.kind)) return submit_message(std::move(operation));
  connections_or_throw();
  auto work = c10::make_intrusive<PhasedOperation>(std::move(operation), rank(),
                                                   [this](Phase phase) { return describe(phase); });
  worker_->submit([this, work] { run(work); });
  return work;
}

HierarchicalConnection::WorkPtr HierarchicalConnection::submit_message(Operation operation) {
  const HierarchyConnections connections = connections_or_throw();
  const int host = hosts_.host_of(rank());
  const bool is_near =
      operation.peer < 0 ? !connections.flat : hosts_.host_of(operation.peer) == host;
  Operation there = operation;
  if (!is_near || (options_.receive_from_any && connections.flat)) {
    auto work = start_on(*connections.flat, there);
    return c10::make_intrusive<ForwardedMessage>(std::move(operation), rank(), std::move(work),
                                                 std::vector<int>());
  }
  // The backend inside the host knows local ranks only.
  if (there.peer >= 0) there.peer = hosts_.local_of(there.peer);
  auto work = start_on(*connections.inside, there);
  return c10::make_intrusive<ForwardedMessage>(std::move(operation), rank(), std::move(work),
                                               hosts_.members(host));
}

void HierarchicalConnection::run(const c10::intrusive_ptr<PhasedOperation>& work) {
  std::exception_ptr failure;
  HierarchyConnections closing;  // closed after `complete`, because closing may take long
  try {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    Phases phases(hosts_, rank(), connections_or_throw(), options_.one_leader_below, scratch_,
                  *work);
    run_phases(phases, work->operation());
  } catch (const UsageError&) {  // an engine refused its arguments on every rank
    failure = std::current_exception();
  } catch (const std::exception& cause) {
    failure = std::current_exception();
    const std::string text = message_of(cause);
    closing = break_down(text.substr(0, text.find('\n')));
  }
  work->complete(failure);
}

}  // namespace trireme::comm
