// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/run_tracker.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trireme::launch {
namespace {

using Seconds = std::chrono::duration<double>;

std::optional<double> median_of(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Returns the median of sorted values without one of them.
std::optional<double> median_without(const std::vector<double>& sorted, double value) {
  if (sorted.size() < 2) return std::nullopt;
  const auto left_out =
      static_cast<std::size_t>(std::ranges::lower_bound(sorted, value) - sorted.begin());
  const auto at = [&](std::size_t index) { return sorted[index < left_out ? index : index + 1]; };
  const std::size_t count = sorted.size() - 1;
  const std::size_t half = count / 2;
  return count % 2 == 1 ? at(half) : (at(half - 1) + at(half)) / 2;
}

double rounded(double seconds) {
  constexpr double kMicro = 1e6;
  return std::round(seconds * kMicro) / kMicro;
}

}  // namespace

std::string describe(const SlowRank& slow) {
  return join_message("rank ", slow.rank, " (process ", slow.process, " on ", slow.host, ") ",
                      slow.is_slow ? "is slow: " : "is slow no more: ", rounded(slow.own_seconds),
                      " s of its own in a step, the median of the others is ",
                      rounded(slow.others_seconds), " s");
}

void RunTracker::begin(std::vector<WorkerStatus> workers) {
  std::ranges::sort(workers, {}, &WorkerStatus::first_rank);
  ranks_.clear();
  for (const WorkerStatus& worker : workers) {
    for (int i = 0; i < worker.ranks; ++i) {
      Rank& rank = ranks_.emplace_back();
      rank.known.rank = worker.first_rank + i;
      rank.known.host = worker.host;
      rank.known.process = worker.ranks == 1 ? worker.process : 0;
    }
  }
  facts.world_size = static_cast<int>(ranks_.size());
  facts.came = facts.world_size;
  facts.workers = std::move(workers);
  facts.state = RunState::kRunning;
}

void RunTracker::take(const RankProgress& progress, Clock::time_point now) {
  Rank* const found = find(progress.rank);
  if (found == nullptr || found->known.state != "running") return;
  RankStatus& known = found->known;
  known.process = progress.process;
  // A worker may send anything; the sum of the largest world must not overflow.
  constexpr std::int64_t kMostMemory = std::int64_t{1} << 42;
  known.memory_bytes = std::min(progress.memory_bytes, kMostMemory);
  if (progress.reports == 0) return;
  known.epoch = progress.epoch;
  known.step = progress.step;
  known.of_steps = progress.of_steps;
  std::deque<Sample>& window = found->window;
  // Another process has taken over, which counts from its own first step.
  if (!window.empty() && progress.reports < window.back().reports) window.clear();
  if (!window.empty() && progress.reports == window.back().reports) return;
  constexpr std::int64_t kMostMilliseconds = std::int64_t{1} << 40;
  constexpr std::size_t kMostSamples = 64;
  const std::chrono::milliseconds age(std::min(progress.age_ms, kMostMilliseconds));
  window.push_back({.time = now - age,
                    .reports = progress.reports,
                    .samples = progress.samples,
                    .tokens = progress.tokens,
                    .own_microseconds = progress.own_microseconds});
  const auto is_left_out = [&] {
    if (window.size() <= 2) return false;
    // Of long steps the window has enough to compare ranks, however long that takes.
    const bool is_old = window.back().time - window[1].time >= kWindow &&
                        window.back().reports - window[1].reports >= kFewestSteps;
    return is_old || window.size() > kMostSamples;
  };
  while (is_left_out()) window.pop_front();
}

// The ranks of a run follow each other, whether it has all of them or those of one host.
RunTracker::Rank* RunTracker::find(int rank) {
  if (ranks_.empty() || rank < ranks_.front().known.rank) return nullptr;
  const auto index = static_cast<std::size_t>(rank - ranks_.front().known.rank);
  if (index >= ranks_.size() || ranks_[index].known.rank != rank) return nullptr;
  return &ranks_[index];
}

void RunTracker::rank_ended(int rank, const std::string& how) {
  Rank* const found = find(rank);
  if (found == nullptr) return;
  found->known.state = how;
  found->known.memory_bytes = 0;
}

void RunTracker::end_attempt(const std::string& how) {
  for (Rank& rank : ranks_) {
    if (rank.known.state == "running") rank_ended(rank.known.rank, how);
  }
}

void RunTracker::add_failure(FailureStatus failure) {
  ++facts.failure_count;
  if (!failure.host.empty()) ++facts.host_failures[failure.host];
  facts.failures.push_back(std::move(failure));
  if (facts.failures.size() > kMostFailures) facts.failures.erase(facts.failures.begin());
}

std::optional<double> RunTracker::Rank::own_seconds() const {
  if (window.size() < 2) return std::nullopt;
  const std::int64_t steps = window.back().reports - window.front().reports;
  const std::int64_t own = window.back().own_microseconds - window.front().own_microseconds;
  if (own <= 0) return std::nullopt;
  constexpr double kMicro = 1e-6;
  return static_cast<double>(own) * kMicro / static_cast<double>(steps);
}

RankStatus RunTracker::Rank::status(Clock::time_point now) const {
  RankStatus status = known;
  if (window.empty()) return status;
  status.seconds_since_step = std::max(0.0, Seconds(now - window.back().time).count());
  if (window.size() < 2) return status;
  const Sample& first = window.front();
  const Sample& last = window.back();
  const auto steps = static_cast<double>(last.reports - first.reports);
  double seconds = Seconds(last.time - first.time).count();
  // A rank that makes no steps any more gets slower.
  constexpr double kPatience = 2;
  const double idle = *status.seconds_since_step;
  if (idle > kPatience + 2 * seconds / steps) seconds += idle;
  if (!(seconds > 0)) return status;
  status.steps_per_second = steps / seconds;
  if (last.samples > first.samples)
    status.samples_per_second = static_cast<double>(last.samples - first.samples) / seconds;
  if (last.tokens > first.tokens)
    status.tokens_per_second = static_cast<double>(last.tokens - first.tokens) / seconds;
  status.own_seconds_per_step = own_seconds();
  return status;
}

std::vector<SlowRank> RunTracker::find_slow(double factor) {
  constexpr int kChecks = 3;
  std::vector<double> all;
  for (const Rank& rank : ranks_) {
    if (const auto own = rank.own_seconds()) all.push_back(*own);
  }
  std::ranges::sort(all);
  std::vector<SlowRank> changed;
  for (Rank& rank : ranks_) {
    if (rank.window.size() < 2 || rank.known.state != "running") continue;
    const std::int64_t reports = rank.window.back().reports;
    const auto own = rank.own_seconds();
    const bool has_news = std::exchange(rank.reports_at_check, reports) != reports;
    if (!has_news || !own || reports - rank.window.front().reports < kFewestSteps) continue;
    const auto median = median_without(all, *own);
    if (!median) continue;
    const bool is_slow = *own > factor * *median;
    rank.checks = is_slow == rank.known.is_slow ? 0 : rank.checks + 1;
    if (rank.checks < kChecks) continue;
    rank.checks = 0;
    rank.known.is_slow = is_slow;
    changed.push_back({.rank = rank.known.rank,
                       .host = rank.known.host,
                       .process = rank.known.process,
                       .is_slow = is_slow,
                       .own_seconds = *own,
                       .others_seconds = *median});
  }
  return changed;
}

RunStatus RunTracker::status(Clock::time_point now, double seconds) const {
  RunStatus status = facts;
  status.now = seconds;
  status.ranks.clear();
  std::vector<double> steps;
  std::vector<double> samples;
  std::vector<double> tokens;
  const auto add = [](std::vector<double>& values, const std::optional<double>& value) {
    if (value) values.push_back(*value);
  };
  bool is_first = true;
  for (const Rank& rank : ranks_) {
    const RankStatus one = rank.status(now);
    add(steps, one.steps_per_second);
    add(samples, one.samples_per_second);
    add(tokens, one.tokens_per_second);
    status.memory_bytes += one.memory_bytes;
    status.of_steps = std::max(status.of_steps, one.of_steps);
    status.step = is_first ? one.step : std::min(status.step, one.step);
    status.epoch = is_first ? one.epoch : std::min(status.epoch, one.epoch);
    is_first = false;
    status.ranks.push_back(one);
  }
  status.steps_per_second = median_of(std::move(steps));
  status.samples_per_second = median_of(std::move(samples));
  status.tokens_per_second = median_of(std::move(tokens));
  const std::int64_t left = status.of_steps - status.step;
  const bool is_moving = status.steps_per_second && *status.steps_per_second > 0;
  if (status.state == RunState::kRunning && status.of_steps > 0 && left >= 0 && is_moving)
    status.expected_end = seconds + static_cast<double>(left) / *status.steps_per_second;
  return status;
}

}  // namespace trireme::launch
