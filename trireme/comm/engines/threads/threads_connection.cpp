// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/threads/threads_connection.h>

#include <trireme/base/error.h>
#include <trireme/comm/adapter/pending_operation.h>

#include <utility>

namespace trireme::comm {
namespace {

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

}  // namespace

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

}  // namespace trireme::comm
