// SPDX-License-Identifier: Apache-2.0
// The greatest memory of this process over a stretch of time, as Linux counts it. The same is in
// bench/peers/data_parallel.py.
//
// What counts is what the process asked for and touched: anonymous memory, and shared memory by its
// share, a page that n processes map as 1/n of a page, so that the ranks add up to what the machine
// gave. Pages of program files do not count. The kernel keeps the peak of all of these together
// (VmHWM); the file pages and the others' share of shared memory, as they are at the end of a
// stretch, are taken off it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

namespace bench {

class PeakMemory {
 public:
  /// What is there now is not counted.
  PeakMemory()
      : baseline_(kilobytes("status", "RssAnon") + kilobytes("smaps_rollup", "Pss_Shmem")) {
    begin_stretch();
  }

  /// Returns the peak in bytes since the last call, or since this was made.
  std::int64_t end_stretch() {
    const auto elsewhere = kilobytes("status", "RssFile") + kilobytes("status", "RssShmem") -
                           kilobytes("smaps_rollup", "Pss_Shmem");
    const auto peak = kilobytes("status", "VmHWM") - elsewhere - baseline_;
    begin_stretch();
    return std::max<std::int64_t>(peak, 0) << 10;
  }

  /// Returns this process's share of shared memory now, in bytes.
  static std::int64_t shared_memory() { return kilobytes("smaps_rollup", "Pss_Shmem") << 10; }

 private:
  static std::int64_t kilobytes(const std::string& file, const std::string& name) {
    std::ifstream lines("/proc/self/" + file);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1));
    }
    throw std::runtime_error("/proc/self/" + file + " has no " + name);
  }

  static void begin_stretch() {
    std::ofstream clear("/proc/self/clear_refs");
    // 5: the peak becomes what is there now
    if (!(clear << "5" << std::flush)) {
      throw std::runtime_error("cannot write /proc/self/clear_refs, which resets VmHWM");
    }
  }

  std::int64_t baseline_;
};

}  // namespace bench
