// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/trace_writer.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/warning.h>
#include <trireme/comm/collectives.h>
#include <trireme/report/append_file.h>
#include <trireme/train/model.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <fstream>
#include <limits>
#include <utility>

namespace trireme::detail {
namespace {

constexpr std::size_t kExchanges = 32;

struct Times {
  std::int64_t sent = 0;      // before the exchange began
  std::int64_t received = 0;  // after it
};

// Returns the times of all ranks, by exchange and rank.
std::vector<std::vector<Times>> exchange(const comm::Group& group,
                                         const std::function<std::int64_t()>& clock) {
  const auto size = static_cast<std::size_t>(group.size());
  std::vector<std::vector<Times>> all(kExchanges, std::vector<Times>(size));
  std::vector<std::int64_t> own;
  for (std::size_t number = 0; number < kExchanges; ++number) {
    const at::Tensor received = at::empty({group.size()}, at::kLong);
    own.push_back(clock());
    comm::all_gather(received, at::tensor({own.back()}, at::kLong), group, "clocks");
    own.push_back(clock());
  }
  const std::int64_t num_times = group.size() * static_cast<std::int64_t>(own.size());
  const at::Tensor times = at::empty({num_times}, at::kLong);
  comm::all_gather(times, at::tensor(own, at::kLong), group, "clocks");
  const std::int64_t* next = times.const_data_ptr<std::int64_t>();
  for (std::size_t rank = 0; rank < size; ++rank) {
    for (auto& exchange : all) {
      exchange[rank] = {next[0], next[1]};
      next += 2;
    }
  }
  return all;
}

}  // namespace

std::vector<ClockOffset> measure_clock_offsets(const comm::Group& group,
                                               const std::function<std::int64_t()>& clock) {
  std::vector<ClockOffset> offsets(static_cast<std::size_t>(group.size()));
  if (group.size() == 1) return offsets;
  const auto exchanges = exchange(group, clock);
  for (std::size_t rank = 1; rank < offsets.size(); ++rank) {
    std::int64_t least = std::numeric_limits<std::int64_t>::min();
    std::int64_t most = std::numeric_limits<std::int64_t>::max();
    for (const std::vector<Times>& times : exchanges) {
      least = std::max(least, times[0].sent - times[rank].received);
      most = std::min(most, times[0].received - times[rank].sent);
    }
    offsets[rank] = {.offset = least + (most - least) / 2, .error = (most - least + 1) / 2};
  }
  return offsets;
}

}  // namespace trireme::detail

namespace trireme {
namespace {

using std::chrono::steady_clock;

std::int64_t nanoseconds(steady_clock::time_point moment) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(moment.time_since_epoch()).count();
}

std::int64_t now() { return nanoseconds(steady_clock::now()); }

// The time of a training on one rank, by its own clock.
struct Stretch {
  std::int64_t begin = 0;
  std::int64_t duration = 0;
  std::int64_t first_offset = 0;  // to rank 0's clock at the beginning
  std::int64_t last_offset = 0;   // and at the end; linear in between

  std::int64_t on_first_clock(std::int64_t time) const {
    const auto passed = static_cast<double>(time - begin);
    const double share = duration > 0 ? passed / static_cast<double>(duration) : 0;
    const auto drift = static_cast<double>(last_offset - first_offset);
    return time + first_offset + static_cast<std::int64_t>(share * drift);
  }
};

}  // namespace

TraceWriter::TraceWriter(TraceWriterOptions options) : options_(std::move(options)) {
  if (options_.first_step >= 1 && options_.num_steps >= 1) return;
  throw UsageError(join_message("a trace of ", options_.num_steps, " steps from step ",
                                options_.first_step, " on"),
                   "give numbers from 1 on");
}

void TraceWriter::on_run_begin(const RunContext& run) {
  file_.reset();
  num_steps_ = 0;
  // Comes before everything that may throw, because other ranks wait in this collective.
  offsets_ = detail::measure_clock_offsets(run.model.options().group, now);
  if (run.is_dry_run) return report::check_can_write(options_.folder);
  const auto name = join_message("trace-rank", run.rank, ".json");
  file_ = std::make_unique<report::TraceFile>(options_.folder / name, run.rank);
  began_ = Clock::now();
}

double TraceWriter::microseconds(Clock::time_point moment) const {
  return std::chrono::duration<double, std::micro>(moment - began_).count();
}

void TraceWriter::on_step_end(const StepEndContext& step) {
  ++num_steps_;
  const std::int64_t last = options_.first_step + options_.num_steps - 1;
  if (!file_ || num_steps_ < options_.first_step || num_steps_ > last || step.spans.empty()) return;
  std::vector<report::TraceEvent> events;
  const auto add = [&](std::string name, report::TraceEvent::Row row, Clock::time_point begin,
                       Clock::time_point end) {
    events.push_back({.name = std::move(name),
                      .row = row,
                      .begin = microseconds(begin),
                      .duration = std::chrono::duration<double, std::micro>(end - begin).count(),
                      .epoch = step.epoch,
                      .global_step = step.global_step});
  };
  add(join_message("step ", step.global_step), report::TraceEvent::Row::kSteps,
      step.spans.front().begin, step.spans.back().end);
  for (const PhaseSpan& span : step.spans) {
    add(std::string(name_of(span.phase)), report::TraceEvent::Row::kPhases, span.begin, span.end);
  }
  file_->add(events);
}

void TraceWriter::add_since(const std::string& name, Clock::time_point begin, std::int64_t epoch,
                            std::int64_t global_step) {
  if (!file_) return;
  const report::TraceEvent event{.name = name,
                                 .row = report::TraceEvent::Row::kSteps,
                                 .begin = microseconds(begin),
                                 .duration = microseconds(Clock::now()) - microseconds(begin),
                                 .epoch = epoch,
                                 .global_step = global_step};
  file_->add({&event, 1});
}

void TraceWriter::on_evaluation_begin(const EvaluationContext& /*evaluation*/) {
  evaluation_began_ = Clock::now();
}

void TraceWriter::on_evaluation_end(const EvaluationEndContext& evaluation) {
  add_since("evaluation", evaluation_began_, evaluation.epoch, evaluation.global_step);
}

void TraceWriter::on_checkpoint_begin(const CheckpointContext& /*checkpoint*/) {
  checkpoint_began_ = Clock::now();
}

void TraceWriter::on_checkpoint_end(const CheckpointEndContext& checkpoint) {
  if (checkpoint.is_asynchronous) return;  // events of a row must not overlap
  add_since("checkpoint", checkpoint_began_, checkpoint.epoch, checkpoint.global_step);
}

// Returns a line with the beginning of the training on this rank's clock, followed by the completed
// contents of its file.
std::string TraceWriter::own_trace() const {
  TextWriter text;
  text << nanoseconds(began_) << '\n'
       << std::ifstream(file_->path(), std::ios::binary).rdbuf() << "]";
  return text.str();
}

void TraceWriter::on_run_end(const RunContext& run) {
  if (run.is_dry_run) return;
  const comm::Group& group = run.model.options().group;
  const std::int64_t duration = now() - nanoseconds(began_);
  const auto offsets = detail::measure_clock_offsets(group, now);
  const std::vector<std::string> all = comm::all_gather_text(own_trace(), group);
  file_->close();
  file_.reset();
  if (run.rank != 0) return;
  const std::int64_t zero = nanoseconds(began_);
  std::vector<report::RankTrace> traces;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::size_t line = all[rank].find('\n');
    // All ranks begin and end a training together, so they have the duration of rank 0.
    Stretch stretch{.duration = duration,
                    .first_offset = offsets_[rank].offset,
                    .last_offset = offsets[rank].offset};
    std::from_chars(all[rank].data(), all[rank].data() + line, stretch.begin);
    const auto align = [stretch, zero](double microseconds) {
      const auto time = stretch.begin + static_cast<std::int64_t>(microseconds * 1e3);
      return static_cast<double>(stretch.on_first_clock(time) - zero) / 1e3;
    };
    traces.push_back({.text = all[rank].substr(line + 1), .align = align});
    if (rank == 0) continue;
    const std::int64_t error = std::max(offsets_[rank].error, offsets[rank].error);
    traces.back().clock_error = static_cast<double>(error) / 1e3;
  }
  // Only warns of failures: the training is done, and each rank's own trace exists.
  try {
    report::AppendFile(options_.folder / "trace.json", /*starts_anew=*/true)
        .append(report::merge_traces(traces));
  } catch (const Error& error) {
    warn("the traces of all ranks were not put together: ", error.what());
  }
}

// What was written stays and is readable.
void TraceWriter::on_failure(const FailureContext& /*failure*/) noexcept { file_.reset(); }

}  // namespace trireme
