// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/threads/threads.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/adapter/adapter_backend.h>
#include <trireme/comm/adapter/engine_connection.h>
#include <trireme/comm/adapter/pending_operation.h>
#include <trireme/comm/engines/threads/group_state.h>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace trireme::comm {
namespace {

// Carries strided tensors of any dtype on any device, which may differ between ranks. Messages
// match by sender, receiver and tag, the oldest first. Any number may be outstanding. Collectives
// match by their number. No call waits for another rank or for a device. The rank that completes
// an operation gives the copies to streams, and `wait` of each rank's work makes its current
// stream follow them. Failures are CommError, thrown by `wait`, and UsageError.
class ThreadsConnection final : public EngineConnection {
 public:
  ThreadsConnection(std::shared_ptr<threads::GroupState> state, int rank, int size);
  ~ThreadsConnection() override;

  TensorForm form() const override { return TensorForm::kAny; }
  void check(const Operation& operation) const override;
  WorkPtr submit(Operation operation) override;
  void abort(const std::string& reason) override { state_->abort(rank(), reason); }

 private:
  const std::shared_ptr<threads::GroupState> state_;
};

// Completed when its copies have been given to streams. Copies on a device may take longer. The
// stream of the thread that waits then waits for them.
class ThreadsOperation final : public PendingOperation {
 public:
  ThreadsOperation(const Operation& operation, int rank, std::shared_ptr<threads::GroupState> state)
      : PendingOperation({.kind = operation.kind,
                          .peer = operation.peer,
                          .number = operation.number,
                          .results = operation.results},
                         rank),
        state_(std::move(state)),
        timeout_(operation.timeout) {}

  void set_pending(std::shared_ptr<threads::PendingOp> pending) { pending_ = std::move(pending); }

  bool isCompleted() override { return pending_->has_ended() || exception() != nullptr; }
  bool isSuccess() const override { return pending_->is_done(); }
  std::exception_ptr exception() const override { return state_->error_of(*pending_); }
  bool wait(std::chrono::milliseconds timeout) override {
    state_->wait(*pending_, timeout > kNoTimeout ? timeout : timeout_);
    return true;
  }
  void synchronize() override {
    if (pending_->is_done()) pending_->wait_on_stream();
  }

  // Called when the last holder drops the operation. Its part in the group refers to it by a weak
  // pointer and may live on. It must not be kept alive by this object.
  void release_resources() override {
    pending_.reset();
    state_.reset();
  }

 private:
  std::shared_ptr<threads::GroupState> state_;
  const std::chrono::milliseconds timeout_;
  std::shared_ptr<threads::PendingOp> pending_;
};

ThreadsConnection::ThreadsConnection(std::shared_ptr<threads::GroupState> state, int rank, int size)
    : EngineConnection("threads", rank, size), state_(std::move(state)) {
  state_->enter(rank);
}

ThreadsConnection::~ThreadsConnection() { state_->leave(rank()); }

void ThreadsConnection::check(const Operation& operation) const {
  if (operation.kind == OperationKind::kReceive && operation.peer < 0) {
    throw UsageError("receive from any rank: messages between threads meet by their sender",
                     "name the sender");
  }
  if (operation.reduction.op_ <= c10d::ReduceOp::BXOR) return;
  throw UsageError(
      join_message(name_of(operation.kind), " between threads does not know a pre-multiplied sum"),
      "multiply before a sum");
}

ThreadsConnection::WorkPtr ThreadsConnection::submit(Operation operation) {
  auto work = c10::make_intrusive<ThreadsOperation>(operation, rank(), state_);
  work->set_pending(state_->start(operation, rank(), work));
  return work;
}

using threads::GroupState;

// The groups of this process, by the number that rank 0 writes into the store.
class GroupStates {
 public:
  std::uint64_t add(const std::shared_ptr<GroupState>& state) {
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
    groups_[++last_] = state;
    return last_;
  }
  std::shared_ptr<GroupState> find(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = groups_.find(number);
    return found == groups_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<GroupState>> groups_;
  std::uint64_t last_ = 0;
};

GroupStates& groups_of_process() {
  static GroupStates groups;
  return groups;
}

// Returns a name for this process. Process identifiers are unique within a host or container only,
// so a random number is added.
std::string process_name() {
  static const std::uint64_t chance = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
  }();
  return join_message(::getpid(), " (", std::hex, chance, ")");
}

// Every rank writes its process, so that all of them notice if one is in another process.
void check_processes(const EngineContext& context) {
  const auto key = [](int rank) { return join_message("threads/process/", rank); };
  const std::string own = process_name();
  context.store->set(key(context.rank), own);
  std::vector<std::string> keys;
  for (int rank = 0; rank < context.size; ++rank) keys.push_back(key(rank));
  context.store->wait(keys, context.timeout);
  const std::string first = context.store->get_to_str(key(0));
  for (int rank = 1; rank < context.size; ++rank) {
    const std::string other = context.store->get_to_str(key(rank));
    if (other == first) continue;
    throw ConfigError(join_message("engine threads: rank ", rank, " of '", context.group_name,
                                   "' is in process ", other, ", rank 0 in process ", first,
                                   "; its ranks are threads of one process"),
                      "take engine shm or gloo between processes");
  }
}

c10::intrusive_ptr<c10d::Backend> connect_threads(const EngineContext& context) {
  check_processes(context);
  const std::string key = "threads/group";
  std::shared_ptr<GroupState> state;
  if (context.rank == 0) {
    state = std::make_shared<GroupState>(context.group_name, context.size, context.world_ranks);
    context.store->set(key, std::to_string(groups_of_process().add(state)));
  } else {
    context.store->wait({key}, context.timeout);
    state = groups_of_process().find(
        parse_number<std::uint64_t>(context.store->get_to_str(key)).value());
  }
  if (!state) {
    throw CommError(join_message("rank 0 of '", context.group_name, "' has left before rank ",
                                 context.rank, " could connect"),
                    "its own message says why");
  }
  return c10::make_intrusive<AdapterBackend>(
      std::make_shared<ThreadsConnection>(std::move(state), context.rank, context.size),
      context.timeout);
}

}  // namespace

Engine threads_engine() {
  return {.name = "threads",
          .scope = Scope::kOneHost,
          .unavailable_because = []() -> std::string { return ""; },
          .connect = connect_threads,
          .summation_order = [](const EngineContext&) { return SummationOrder::kRank; }};
}

}  // namespace trireme::comm
