// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/detail/starter.h>

#include <trireme/base/error.h>
#include <trireme/comm/monitor/failure_report.h>
#include <trireme/comm/monitor/flight_recorder.h>
#include <trireme/comm/shm/communicator.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstring>
#include <utility>

namespace trireme::comm {
namespace {

std::string first_line(const char* text) { return std::string(text, std::strcspn(text, "\n")); }

// How to go on where that rank is to blame.
std::string hint_about(RankStatus fate, const Group& group) {
  const std::string deadline = join_message(static_cast<double>(group.timeout().count()) / 1000,
                                            " s (TRIREME_TIMEOUT, in seconds)");
  switch (fate) {
    case RankStatus::kEnded:
      return "its own log or exit status says why: a signal, an exception, an early return. Where "
             "its data ended first, give all ranks equally many batches (Remainder::kWrap or "
             "kDrop), or let those that are done call join()";
    case RankStatus::kStopped:
      return "let it go on (kill -CONT), or end the run";
    case RankStatus::kSilent:
      return "look at that process and its host";
    case RankStatus::kIdle:
      return "a debugger attached to that process shows what it waits for";
    case RankStatus::kComputes:
      return "a rank that computes for long needs a longer deadline than " + deadline;
    case RankStatus::kWaits:
      return "every rank of a group must make the same calls in the same order";
    default:
      return "another rank ended, made another call, or did not make this one within " + deadline +
             "; its own log says why";
  }
}

struct Failed {
  const char* operation;
  std::uint64_t number;
  FlightRecorder::Serial serial;
  int peer;
  std::chrono::steady_clock::time_point started;
};

[[noreturn]] void fail(const Group& group, const Failed& failed, const std::string& cause) {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - failed.started;
  const std::string place =
      join_message(failed.operation, ", number ", failed.number, ", of group '", group.name(),
                   "' on rank ", group.rank(), " of ", group.size(), " (engine ", group.engine(),
                   ") failed after ", elapsed.count(), " s: ");
  const FailureReport report =
      group.report_failure(place + cause, failed.peer < 0 ? failed.number : 0);
  group.recorder().stop_waiting(failed.serial);  // until now the others were asked
  const std::string blamed =
      report.culprit < 0 ? std::string() : report.what + ". The engine says: ";
  // Only one rank reports them; otherwise every rank would print the same lines.
  const std::string lines =
      report.teller < 0 || report.teller == group.rank()
          ? "\nwhat each rank did last:" + report.lines
          : join_message("; rank ", report.teller, " of the group says what each rank did last");
  throw CommError(join_message(place, blamed, cause, lines),
                  hint_about(report.fate, group) + ". The group cannot be used any more",
                  {.rank = group.rank(),
                   .peer = report.culprit,
                   .operation = failed.operation,
                   .sequence = failed.number,
                   .elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed)});
}

// Without its hint: ours says what to do.
std::string message_without_hint(const Error& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\n  hint: "));
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
  FlightRecorder::Serial serial = 0;
  int peer = -1;
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
  const Group& group = pending->group;
  const Failed failed{pending->operation, pending->sequence_number, pending->serial, pending->peer,
                      pending->started};
  group.recorder().wait(pending->serial);
  try {
    pending->work->wait(group.timeout());
    group.recorder().end(pending->serial);
  } catch (const CommError& error) {  // of an engine of ours
    // Threads of one process are named by their engine; of others it knows no more than which part
    // of the hierarchy did not come.
    if (group.is_watched()) fail(group, failed, message_without_hint(error));
    group.dump(error.what());
    throw;
  } catch (const Error& error) {
    group.recorder().stop_waiting(pending->serial);
    group.dump(error.what());
    throw;
  } catch (const std::exception& cause) {
    fail(group, failed, first_line(cause.what()));
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
                    std::string_view label, const Call& call, int peer) {
  const std::uint64_t sequence_number =
      peer < 0 ? group.next_sequence_number() : group.next_message_number();
  const bool has_tensor = !keep_alive.empty();
  const FlightRecorder::Serial serial = group.recorder().begin(
      {.number = sequence_number,
       .name = operation,
       .type = has_tensor ? c10::toString(keep_alive.front().scalar_type()) : std::string_view(),
       .count = has_tensor ? keep_alive.front().numel() : 0,
       .label = label,
       .peer = peer});
  Work work;
  try {
    work.pending_ =
        std::make_unique<Work::Pending>(Work::Pending{.work = call(*group.backend()),
                                                      .job = nullptr,
                                                      .transfer = nullptr,
                                                      .group = group,
                                                      .operation = operation,
                                                      .sequence_number = sequence_number,
                                                      .serial = serial,
                                                      .peer = peer,
                                                      .started = std::chrono::steady_clock::now(),
                                                      .keep_alive = std::move(keep_alive)});
  } catch (const Error&) {
    throw;
  } catch (const std::exception& cause) {
    const std::string message = join_message("engine ", group.engine(), " cannot start ", operation,
                                             " (number ", sequence_number, " of group '",
                                             group.name(), "'): ", first_line(cause.what()));
    group.dump(message);
    throw CommError(message,
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
