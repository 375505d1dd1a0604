// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/streams.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <limits>
#include <list>

namespace trireme::predict {
namespace {

constexpr std::size_t kStreams = 2;
constexpr auto kCommunication = static_cast<std::size_t>(Stream::kCommunication);
constexpr double kSlowest = 0.05;  // a computation never stops altogether

class Streams {
 public:
  explicit Streams(const std::vector<Task>& tasks)
      : tasks_(tasks), spans_(tasks.size()), is_done_(tasks.size(), false) {
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      queues_[static_cast<std::size_t>(tasks[i].stream)].push_back(i);
    }
  }

  std::vector<TaskSpan> run() {
    while (true) {
      start_what_can();
      const double step = shortest();
      if (step == std::numeric_limits<double>::infinity()) break;
      advance(step);
    }
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      if (queues_[stream].empty()) continue;
      throw UsageError(join_message("task ", queues_[stream].front(),
                                    " of a simulated step waits for a task behind it"),
                       "tasks may only wait for earlier tasks");
    }
    return spans_;
  }

 private:
  bool is_running(std::size_t stream) const { return left_[stream] >= 0; }

  bool is_ready(std::size_t number) const {
    return std::ranges::all_of(tasks_[number].after, [&](int earlier) {
      return is_done_[static_cast<std::size_t>(earlier)];
    });
  }

  void start_what_can() {
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      std::list<std::size_t>& queue = queues_[stream];
      if (is_running(stream) || queue.empty()) continue;
      const auto end = stream == kCommunication ? queue.end() : std::next(queue.begin());
      const auto first =
          std::find_if(queue.begin(), end, [&](std::size_t number) { return is_ready(number); });
      if (first == end) continue;
      running_[stream] = *first;
      left_[stream] = tasks_[*first].seconds;
      spans_[*first].start = now_;
      queue.erase(first);
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
      spans_[running_[stream]].end = now_;
      is_done_[running_[stream]] = true;
      left_[stream] = -1;
    }
  }

  const std::vector<Task>& tasks_;
  std::vector<TaskSpan> spans_;
  std::vector<bool> is_done_;
  std::array<std::list<std::size_t>, kStreams> queues_;  // tasks that have not begun
  std::array<std::size_t, kStreams> running_{};
  std::array<double, kStreams> left_ = {-1, -1};  // seconds left of the running task; -1: none runs
  double now_ = 0;
};

}  // namespace

std::vector<TaskSpan> run_streams(const std::vector<Task>& tasks) { return Streams(tasks).run(); }

}  // namespace trireme::predict
