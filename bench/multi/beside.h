// SPDX-License-Identifier: Apache-2.0
// Two ways of one work, timed sample by sample in turns, so that what drifts on the machine touches
// both.
#pragma once

#include <algorithm>
#include <ctime>
#include <functional>
#include <vector>

namespace bench {

inline double now(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Seconds that one call takes.
inline double seconds_of(const std::function<void()>& call, int calls,
                         clockid_t clock = CLOCK_MONOTONIC) {
  const double began = now(clock);
  for (int i = 0; i < calls; ++i) call();
  return (now(clock) - began) / calls;
}

inline double median(std::vector<double> figures) {
  const auto middle = figures.begin() + static_cast<std::ptrdiff_t>(figures.size() / 2);
  std::ranges::nth_element(figures, middle);
  return *middle;
}

struct Beside {
  double plain, other;
};

/// Medians over `samples` of `calls` calls each, after as many to warm up.
inline Beside measure_beside(const std::function<void()>& plain, const std::function<void()>& other,
                             int calls, int samples, clockid_t clock = CLOCK_MONOTONIC) {
  seconds_of(plain, calls);
  seconds_of(other, calls);
  std::vector<double> of_plain;
  std::vector<double> of_other;
  for (int sample = 0; sample < samples; ++sample) {
    of_plain.push_back(seconds_of(plain, calls, clock));
    of_other.push_back(seconds_of(other, calls, clock));
  }
  return {.plain = median(of_plain), .other = median(of_other)};
}

}  // namespace bench
