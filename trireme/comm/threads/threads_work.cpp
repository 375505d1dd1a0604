// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/threads/threads_work.h>

#include <utility>

namespace trireme::comm::threads {

ThreadsWork::ThreadsWork(std::shared_ptr<Room> room, std::shared_ptr<Party> party,
                         c10d::OpType type, std::chrono::milliseconds timeout)
    : Work(party->call.rank, type),
      room_(std::move(room)),
      party_(std::move(party)),
      timeout_(timeout) {}

bool ThreadsWork::isCompleted() { return party_->has_ended() || exception() != nullptr; }

bool ThreadsWork::isSuccess() const { return party_->is_done(); }

std::exception_ptr ThreadsWork::exception() const { return room_->error_of(*party_); }

bool ThreadsWork::wait(std::chrono::milliseconds timeout) {
  room_->wait(*party_, timeout > kNoTimeout ? timeout : timeout_);
  return true;
}

void ThreadsWork::synchronize() {
  if (party_->is_done()) party_->let_follow();
}

}  // namespace trireme::comm::threads
