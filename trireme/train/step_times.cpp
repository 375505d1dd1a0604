// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/step_times.h>

#include <algorithm>
#include <utility>

namespace trireme {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::kData:
      return "data";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kCommunication:
      return "communication";
    case Phase::kOptimizer:
      return "optimizer";
    default:
      return "callbacks";
  }
}

StepSeconds sum_of(std::span<const PhaseSpan> spans) {
  StepSeconds sums;
  for (const PhaseSpan& span : spans) {
    const auto add = [&](double& sum) { sum += span.seconds(); };
    switch (span.phase) {
      case Phase::kData:
        add(sums.data);
        break;
      case Phase::kForward:
        add(sums.forward);
        break;
      case Phase::kBackward:
        add(sums.backward);
        break;
      case Phase::kCommunication:
        add(sums.communication);
        break;
      case Phase::kOptimizer:
        add(sums.optimizer);
        break;
      default:
        add(sums.callbacks);
    }
  }
  return sums;
}

namespace detail {

void StepTimer::split_last(Phase phase, double seconds) {
  if (running_.empty() || !(seconds > 0)) return;
  PhaseSpan& last = running_.back();
  const auto part = std::chrono::round<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(std::min(seconds, last.seconds())));
  const PhaseSpan split{phase, last.end - part, last.end};
  last.end = split.begin;
  running_.push_back(split);
}

std::span<const PhaseSpan> StepTimer::end_step() {
  std::swap(running_, ended_);
  running_.clear();
  return ended_;
}

}  // namespace detail
}  // namespace trireme
