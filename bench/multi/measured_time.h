// SPDX-License-Identifier: Apache-2.0
// The time that a stretch of a program takes: by the clock, and of cores.
#pragma once

#include <chrono>
#include <ctime>

namespace bench {

class MeasuredTime {
 public:
  /// Seconds since this was made.
  double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }

  /// Seconds that all threads of this process, ended ones included, have used cores since.
  double used() const { return used_by_process() - used_before_; }

 private:
  static double used_by_process() {
    timespec used{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
  }

  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double used_before_ = used_by_process();
};

}  // namespace bench
