// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/streams.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace trireme::predict {
namespace {

constexpr std::size_t kStreams = 2;
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
      if (next_[stream] == queues_[stream].size()) continue;
      throw UsageError(join_message("task ", queues_[stream][next_[stream]],
                                    " of a simulated step waits for a task behind it"),
                       "tasks may only wait for earlier tasks");
    }
    return spans_;
  }

 private:
  bool is_running(std::size_t stream) const { return left_[stream] >= 0; }

  void start_what_can() {
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      if (is_running(stream) || next_[stream] == queues_[stream].size()) continue;
      const std::size_t number = queues_[stream][next_[stream]];
      const bool is_ready = std::ranges::all_of(tasks_[number].after, [&](int earlier) {
        return is_done_[static_cast<std::size_t>(earlier)];
      });
      if (!is_ready) continue;
      left_[stream] = tasks_[number].seconds;
      spans_[number].start = now_;
    }
  }

  double rate(std::size_t stream) const {
    constexpr auto kCommunication = static_cast<std::size_t>(Stream::kCommunication);
    if (stream == kCommunication || !is_running(kCommunication)) return 1;
    const Task& other = tasks_[queues_[kCommunication][next_[kCommunication]]];
    return std::max(kSlowest, 1 - other.compute_share);
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
      const std::size_t number = queues_[stream][next_[stream]++];
      spans_[number].end = now_;
      is_done_[number] = true;
      left_[stream] = -1;
    }
  }

  const std::vector<Task>& tasks_;
  std::vector<TaskSpan> spans_;
  std::vector<bool> is_done_;
  std::array<std::vector<std::size_t>, kStreams> queues_;
  std::array<std::size_t, kStreams> next_{};
  std::array<double, kStreams> left_ = {-1, -1};  // seconds left of the running task; -1: none runs
  double now_ = 0;
};

}  // namespace

std::vector<TaskSpan> run_streams(const std::vector<Task>& tasks) { return Streams(tasks).run(); }

}  // namespace trireme::predict
