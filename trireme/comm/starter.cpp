// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/starter.h>

#include <trireme/base/error.h>
#include <trireme/comm/adapter/c10d_call.h>
#include <trireme/comm/adapter/engine_connection.h>
#include <trireme/comm/collective_checks.h>
#include <trireme/comm/device_monitor.h>
#include <trireme/comm/monitor/failure_report.h>
#include <trireme/comm/monitor/flight_recorder.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstring>

namespace trireme::comm {
namespace {

std::string first_line(const char* text) { return std::string(text, std::strcspn(text, "\n")); }

// Returns what to do about a rank in that state.
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

// Makes the error of a failed operation. Asks the other ranks what they did.
CommError error_of(const Group& group, const Failed& failed, const std::string& cause) {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - failed.started;
  const std::string place =
      join_message(failed.operation, ", number ", failed.number, ", of group '", group.name(),
                   "' on rank ", group.rank(), " of ", group.size(), " (engine ", group.engine(),
                   ") failed after ", elapsed.count(), " s: ");
  const FailureReport report =
      group.report_failure(place + cause, failed.peer < 0 ? failed.number : 0);
  group.recorder().stop_waiting(failed.serial);  // the other ranks were asked until now
  const std::string blamed =
      report.culprit < 0 ? std::string() : report.what + ". The engine says: ";
  // Only one rank reports what all ranks did. Otherwise every rank would print the same lines.
  const std::string lines =
      report.teller < 0 || report.teller == group.rank()
          ? "\nwhat each rank did last:" + report.lines
          : join_message("; rank ", report.teller, " of the group says what each rank did last");
  return CommError(join_message(place, blamed, cause, lines),
                   hint_about(report.fate, group) + ". The group cannot be used any more",
                   {.rank = group.rank(),
                    .peer = report.culprit,
                    .operation = failed.operation,
                    .sequence = failed.number,
                    .elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed)});
}

[[noreturn]] void fail(const Group& group, const Failed& failed, const std::string& cause) {
  throw error_of(group, failed, cause);
}

// Removes the hint of the engine's error, because our hint says what to do.
std::string message_without_hint(const Error& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\n  hint: "));
}

bool is_on_host(const Buffer& buffer) {
  return !buffer.whole().defined() || buffer.whole().is_cpu();
}

// Operations are made with blocks of equal pieces only (collectives.cpp).
Buffer on_host(const Buffer& buffer, bool is_read) {
  const at::Tensor& tensor = buffer.whole();
  const at::Tensor copy = at::empty_strided(tensor.sizes(), tensor.strides(),
                                            tensor.options().device(at::kCPU).pinned_memory(true));
  if (is_read) copy.copy_(tensor);
  return Buffer(copy, buffer.num_pieces());
}

// Returns whether the engine reads the output of an operation.
bool reads_output(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduce ||
         kind == OperationKind::kBroadcast;
}

}  // namespace

struct Work::Pending {
  c10::intrusive_ptr<c10d::Work> work;
  Group group;
  Staging staging = {};
  // The following fields are for engines that keep no records themselves.
  bool is_recorded = false;
  Failed context = {};
  std::vector<at::Tensor> keep_alive = {};

  void wait();
};

Work::Work() = default;
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;
Work::~Work() = default;

void Work::wait() {
  if (!pending_) return;
  const std::unique_ptr<Pending> pending = std::move(pending_);
  pending->wait();
  pending->staging.copy_back();
}

void Work::Pending::wait() {
  if (!is_recorded) {
    work->wait();
    return;
  }
  const FlightRecorder::Serial serial = context.serial;
  const bool is_on_device = group.device_monitor() != nullptr;
  if (!is_on_device) group.recorder().wait(serial);
  try {
    // An engine for accelerators makes the current stream wait, and the monitor notices the end.
    // Given a deadline, the engine would block the thread until the device is done.
    is_on_device ? work->wait() : work->wait(group.timeout());
    if (!is_on_device) group.recorder().end(serial);
  } catch (const CommError& error) {  // from an engine of Trireme
    // The threads engine names the late rank itself. Other engines only know which part of a
    // hierarchy did not come.
    if (group.is_watched()) fail(group, context, message_without_hint(error));
    group.dump(error.what());
    throw;
  } catch (const Error& error) {
    group.recorder().stop_waiting(serial);
    group.dump(error.what());
    throw;
  } catch (const std::exception& cause) {
    fail(group, context, first_line(cause.what()));
  }
}

bool Work::is_completed() const { return !pending_ || pending_->work->isCompleted(); }

namespace {

// Returns the tensor that describes the operation in the record, equal on all ranks. Undefined for
// a barrier.
const at::Tensor& shown(const Operation& operation) {
  const bool shows_input =
      operation.kind == OperationKind::kGather || operation.kind == OperationKind::kSend;
  return shows_input ? operation.input.whole() : operation.output.whole();
}

// Returns the accelerator that has one of the operation's tensors, or the CPU.
at::DeviceType device_of(const Operation& operation) {
  for (const at::Tensor* tensor : {&operation.output.whole(), &operation.input.whole()}) {
    if (tensor->defined() && !tensor->is_cpu()) return tensor->device().type();
  }
  return at::kCPU;
}

void check_has_memory(const Group& group, const Operation& operation, at::DeviceType device) {
  if (device != at::kMeta) return;
  throw UsageError(join_message(name_of(operation.kind),
                                " was given a tensor on meta, which has no memory that ", "engine ",
                                group.engine(), " of group '", group.name(), "' could carry"),
                   "give a tensor with values, on the CPU or an accelerator");
}

// An engine for accelerators takes no tensors of the CPU.
void check_on_device(const Operation& operation) {
  for (const at::Tensor* tensor : {&operation.output.whole(), &operation.input.whole()}) {
    if (tensor->defined() && tensor->is_cpu()) {
      refuse(*tensor, name_of(operation.kind), "one on the device of the other tensor");
    }
  }
}

}  // namespace

void Starter::run(const Group& group, Operation&& operation) {
  const at::DeviceType device = device_of(operation);
  EngineConnection* const engine = group.connection();
  if (device == at::kCPU && engine != nullptr && engine->keeps_records()) {
    engine->check(operation);
    if (engine->try_run(operation)) return;
  }
  start(group, std::move(operation)).wait();
}

Work Starter::start(const Group& group, Operation&& operation) {
  const at::DeviceType device = device_of(operation);
  if (device == at::kCPU) return start_on_carrier(group, std::move(operation));
  check_has_memory(group, operation, device);
  if (group.stages(device)) {
    Staging staging = Staging::replace(operation);
    Work work = start_on_carrier(group, std::move(operation));
    work.pending_->staging = std::move(staging);
    return work;
  }
  const Group& carrier = group.carrier(device);
  if (DeviceMonitor* const monitor = carrier.device_monitor()) {
    check_on_device(operation);
    monitor->check();
  }
  return start_on_carrier(carrier, std::move(operation));
}

Work Starter::start_on_carrier(const Group& group, Operation&& operation) {
  Work work;
  EngineConnection* const engine = group.connection();
  if (engine != nullptr) engine->check(operation);
  if (engine != nullptr && engine->keeps_records()) {
    work.pending_ = std::make_unique<Work::Pending>(
        Work::Pending{.work = engine->submit(std::move(operation)), .group = group});
    return work;
  }
  const bool is_to_one = is_message(operation.kind);
  const char* const name = name_of(operation.kind);
  const int peer = is_to_one ? operation.peer : -1;
  operation.number = is_to_one ? 0 : group.next_sequence_number();
  const std::uint64_t number = is_to_one ? group.next_message_number() : operation.number;
  const at::Tensor& tensor = shown(operation);
  const FlightRecorder::Serial serial = group.recorder().begin(
      {.number = number,
       .name = name,
       .type = tensor.defined() ? c10::toString(tensor.scalar_type()) : std::string_view(),
       .count = tensor.defined() ? tensor.numel() : 0,
       .label = operation.label,
       .peer = peer});
  try {
    work.pending_ = std::make_unique<Work::Pending>(
        Work::Pending{.group = group,
                      .is_recorded = true,
                      .context = {name, number, serial, peer, std::chrono::steady_clock::now()},
                      .keep_alive = {operation.output.whole(), operation.input.whole()}});
    operation.timeout = group.timeout();
    work.pending_->work = engine != nullptr ? engine->submit(std::move(operation))
                                            : start_on(*group.backend(), operation);
    if (DeviceMonitor* const monitor = group.device_monitor()) {
      group.recorder().wait(serial);
      monitor->follow({.work = work.pending_->work,
                       .serial = serial,
                       .started = work.pending_->context.started,
                       .failure = [group = group.unowned(),
                                   failed = work.pending_->context](const auto& cause) {
                         return std::make_exception_ptr(error_of(group, failed, cause));
                       }});
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& cause) {
    const std::string message =
        join_message("engine ", group.engine(), " cannot start ", name, " (number ", number,
                     " of group '", group.name(), "'): ", first_line(cause.what()));
    group.dump(message);
    throw CommError(message,
                    "it may not know the dtype or the device of the tensor; if its connection is "
                    "broken, another rank ended before");
  }
  return work;
}

Staging Staging::replace(Operation& operation) {
  const at::NoGradGuard no_grad;
  Staging staging;
  if (!is_on_host(operation.input)) operation.input = on_host(operation.input, /*is_read=*/true);
  if (!is_on_host(operation.output)) {
    const at::Tensor on_device = operation.output.whole();
    operation.output = on_host(operation.output, reads_output(operation.kind));
    staging.results_.emplace_back(on_device, operation.output.whole());
  }
  return staging;
}

void Staging::copy_back() const {
  const at::NoGradGuard no_grad;
  for (const auto& [on_device, on_host] : results_) {
    on_device.copy_(on_host, /*non_blocking=*/true);
  }
}

}  // namespace trireme::comm
