// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/threads/threads_work.h>

#include <utility>

namespace trireme::comm::threads {

ThreadsWork::ThreadsWork(std::shared_ptr<GroupState> state, std::shared_ptr<PendingOp> pending,
                         c10d::OpType type, std::chrono::milliseconds timeout)
    : Work(pending->call.rank, type),
      state_(std::move(state)),
      pending_(std::move(pending)),
      timeout_(timeout) {}

bool ThreadsWork::isCompleted() { return pending_->has_ended() || exception() != nullptr; }

bool ThreadsWork::isSuccess() const { return pending_->is_done(); }

std::exception_ptr ThreadsWork::exception() const { return state_->error_of(*pending_); }

bool ThreadsWork::wait(std::chrono::milliseconds timeout) {
  state_->wait(*pending_, timeout > kNoTimeout ? timeout : timeout_);
  return true;
}

void ThreadsWork::synchronize() {
  if (pending_->is_done()) pending_->wait_on_stream();
}

}  // namespace trireme::comm::threads
