// SPDX-License-Identifier: Apache-2.0
// Simulates the streams of one device: computation and communication run beside each other, and
// communication may take a share of the computing power.
#pragma once

#include <vector>

namespace trireme::predict {

/// What a stream does.
enum class Stream { kCompute = 0, kCommunication = 1 };

/// One task of a stream. A stream runs one task at a time. Computations run in the order of the
/// list. Of the communication that can start, the first in the list does: parameters are gathered
/// ahead while gradients are still computed. All ranks are alike, so that all choose the same.
struct Task {
  Stream stream = Stream::kCompute;
  double seconds = 0;        ///< time alone
  std::vector<int> after{};  ///< earlier tasks of the list that must have ended before it starts
  double compute_share = 0;  ///< share of computing power that it takes while it runs
};

/// When a task ran, in seconds from the start.
struct TaskSpan {
  double start = 0;
  double end = 0;
};

/// Runs all tasks and returns their times. While communication runs, a computation is slower by its
/// compute_share. Throws UsageError if a task waits for a later one, so that nothing can go on.
std::vector<TaskSpan> run_streams(const std::vector<Task>& tasks);

}  // namespace trireme::predict
