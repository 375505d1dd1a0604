// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/streams.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>

namespace trireme::predict {
namespace {

constexpr std::size_t kStreams = 2;
constexpr auto kCompute = static_cast<std::size_t>(Stream::kCompute);
constexpr auto kCommunication = static_cast<std::size_t>(Stream::kCommunication);
constexpr double kSlowest = 0.05;  // a computation never stops altogether

class Streams {
 public:
  explicit Streams(const std::vector<Task>& tasks)
      : tasks_(tasks),
        spans_(tasks.size()),
        missing_(tasks.size(), 0),
        first_waiting_(tasks.size() + 1, 0),
        has_begun_(tasks.size(), false) {
    for (const Task& task : tasks) {
      for (const int earlier : task.after) ++first_waiting_[static_cast<std::size_t>(earlier) + 1];
    }
    std::partial_sum(first_waiting_.begin(), first_waiting_.end(), first_waiting_.begin());
    waiting_.resize(first_waiting_.back());
    std::vector<std::size_t> next = first_waiting_;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      for (const int earlier : tasks[i].after)
        waiting_[next[static_cast<std::size_t>(earlier)]++] = i;
      missing_[i] = tasks[i].after.size();
      if (missing_[i] == 0) make_ready(i);
    }
  }

  std::vector<TaskSpan> run() {
    while (true) {
      start_what_can();
      const double step = shortest();
      if (step == std::numeric_limits<double>::infinity()) break;
      advance(step);
    }
    const auto first = std::ranges::find(has_begun_, false);
    if (first != has_begun_.end()) {
      throw UsageError(join_message("task ", first - has_begun_.begin(),
                                    " of a simulated step waits for a task behind it"),
                       "tasks may only wait for earlier tasks");
    }
    return spans_;
  }

 private:
  bool is_running(std::size_t stream) const { return left_[stream] >= 0; }

  bool is_communication(std::size_t number) const {
    return tasks_[number].stream == Stream::kCommunication;
  }

  void make_ready(std::size_t number) {
    if (is_communication(number)) ready_.push(number);
  }

  // Computation runs in order, and communication in the order of what is ready.
  void start_what_can() {
    if (!is_running(kCompute)) {
      while (next_ < tasks_.size() && is_communication(next_)) ++next_;
      if (next_ < tasks_.size() && missing_[next_] == 0) start(kCompute, next_++);
    }
    if (!is_running(kCommunication) && !ready_.empty()) {
      const std::size_t number = ready_.top();
      ready_.pop();
      start(kCommunication, number);
    }
  }

  void start(std::size_t stream, std::size_t number) {
    running_[stream] = number;
    left_[stream] = tasks_[number].seconds;
    spans_[number].start = now_;
    has_begun_[number] = true;
  }

  void end(std::size_t number) {
    spans_[number].end = now_;
    for (std::size_t i = first_waiting_[number]; i < first_waiting_[number + 1]; ++i) {
      if (--missing_[waiting_[i]] == 0) make_ready(waiting_[i]);
    }
  }

  double rate(std::size_t stream) const {
    if (stream == kCommunication || !is_running(kCommunication)) return 1;
    return std::max(kSlowest, 1 - tasks_[running_[kCommunication]].compute_share);
  }

  double shortest() const {
    double step = std::numeric_limits<double>::infinity();
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      if (is_running(stream)) step = std::min(step, left_[stream] / rate(stream));
    }
    return step;
  }

  void advance(double step) {
    std::array<double, kStreams> rates{};
    for (std::size_t stream = 0; stream < kStreams; ++stream) rates[stream] = rate(stream);
    now_ += step;
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      if (!is_running(stream)) continue;
      left_[stream] -= step * rates[stream];
      constexpr double kRounding = 1e-15;
      if (left_[stream] > kRounding) continue;
      end(running_[stream]);
      left_[stream] = -1;
    }
  }

  const std::vector<Task>& tasks_;
  std::vector<TaskSpan> spans_;
  std::vector<std::size_t> missing_;        // number of tasks that each waits for
  std::vector<std::size_t> first_waiting_;  // for each task: its first place in waiting_
  std::vector<std::size_t> waiting_;        // tasks that wait for another one
  std::vector<bool> has_begun_;
  std::size_t next_ = 0;  // the computation that follows
  // Communication that can begin, the first in front.
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready_;
  std::array<std::size_t, kStreams> running_{};
  std::array<double, kStreams> left_ = {-1, -1};  // seconds left of the running task; -1: none runs
  double now_ = 0;
};

}  // namespace

std::vector<TaskSpan> run_streams(const std::vector<Task>& tasks) { return Streams(tasks).run(); }

}  // namespace trireme::predict
