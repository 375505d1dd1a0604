// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/detail/starter.h>

#include <trireme/base/error.h>
#include <trireme/comm/monitor/recorder.h>
#include <trireme/comm/shm/communicator.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstring>
#include <utility>

namespace trireme::comm {
namespace {

std::string first_line(const char* text) { return std::string(text, std::strcspn(text, "\n")); }

[[noreturn]] void fail(const Group& group, const char* operation, std::uint64_t sequence_number,
                       std::chrono::steady_clock::time_point started, const std::exception& cause) {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
  const std::string message =
      join_message(operation, ", number ", sequence_number, ", of group '", group.name(),
                   "' on rank ", group.rank(), " of ", group.size(), " (engine ", group.engine(),
                   ") failed after ", elapsed.count(), " s: ", first_line(cause.what()));
  throw CommError(
      join_message(message, "\nwhat each rank did last:", group.report_failure(message)),
      join_message("another rank ended, made another call, or did not make this one within ",
                   static_cast<double>(group.timeout().count()) / 1000,
                   " s; its own log says why. The group cannot be used any more"),
      {.rank = group.rank(),
       .peer = -1,
       .operation = operation,
       .sequence = sequence_number,
       .elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed)});
}

}  // namespace

struct Work::Pending {
  c10::intrusive_ptr<c10d::Work> work;      // of a c10d engine,
  std::shared_ptr<shm::Job> job;            // or of the shared-memory engine,
  std::shared_ptr<shm::Transfer> transfer;  // or a message of it
  shm::Queue* queue = nullptr;
  Group group;
  const char* operation = "";
  std::uint64_t sequence_number = 0;
  std::chrono::steady_clock::time_point started;
  std::vector<at::Tensor> keep_alive;
};

Work::Work() = default;
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;
Work::~Work() = default;

void Work::wait() {
  if (!pending_) return;
  const std::unique_ptr<Pending> pending = std::move(pending_);
  if (pending->job) {
    pending->queue->wait(*pending->job);
    return;
  }
  if (pending->transfer) {
    pending->group.shared_memory()->point_to_point().wait(*pending->transfer);
    return;
  }
  try {
    pending->work->wait(pending->group.timeout());
    pending->group.recorder().end(pending->sequence_number);
  } catch (const Error& error) {  // of an engine of ours, which says who is to blame
    pending->group.dump(error.what());
    throw;
  } catch (const std::exception& cause) {
    fail(pending->group, pending->operation, pending->sequence_number, pending->started, cause);
  }
}

bool Work::is_completed() const {
  if (!pending_) return true;
  if (pending_->transfer) return pending_->transfer->is_done();
  if (!pending_->job) return pending_->work->isCompleted();
  if (pending_->job->is_done()) return true;
  pending_->queue->hasten();  // who asks again and again does not wait
  return false;
}

Work Starter::start(const Group& group, const char* operation, std::vector<at::Tensor> keep_alive,
                    std::string_view label, const Call& call) {
  const std::uint64_t sequence_number = group.next_sequence_number();
  group.recorder().begin(
      sequence_number, operation,
      keep_alive.empty() ? std::string_view() : c10::toString(keep_alive.front().scalar_type()),
      keep_alive.empty() ? 0 : keep_alive.front().numel(), label);
  Work work;
  try {
    work.pending_ =
        std::make_unique<Work::Pending>(Work::Pending{.work = call(*group.backend()),
                                                      .job = nullptr,
                                                      .transfer = nullptr,
                                                      .group = group,
                                                      .operation = operation,
                                                      .sequence_number = sequence_number,
                                                      .started = std::chrono::steady_clock::now(),
                                                      .keep_alive = std::move(keep_alive)});
  } catch (const Error&) {
    throw;
  } catch (const std::exception& cause) {
    throw CommError(join_message("engine ", group.engine(), " cannot start ", operation,
                                 " (number ", sequence_number, " of group '", group.name(),
                                 "'): ", first_line(cause.what())),
                    "it may not know the dtype or the device of the tensor; if its connection is "
                    "broken, another rank ended before");
  }
  return work;
}

Work Starter::follow(const Group& group, std::shared_ptr<shm::Transfer> transfer,
                     const at::Tensor& keep_alive) {
  // Whoever waits moves it; a thread does where nobody waits.
  shm::Communicator* shared = group.shared_memory();
  if (!transfer->is_done()) {
    shared->transfers().submit(
        [shared, transfer, keep_alive] { shared->point_to_point().wait(*transfer); });
  }
  Work work;
  work.pending_ = std::make_unique<Work::Pending>();
  work.pending_->group = group;
  work.pending_->transfer = std::move(transfer);
  return work;
}

Work Starter::follow(const Group& group, shm::Queue& queue, std::shared_ptr<shm::Job> job) {
  Work work;
  work.pending_ = std::make_unique<Work::Pending>();
  work.pending_->group = group;
  work.pending_->queue = &queue;
  work.pending_->job = std::move(job);
  return work;
}

}  // namespace trireme::comm
