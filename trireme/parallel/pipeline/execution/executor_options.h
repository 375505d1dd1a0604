// SPDX-License-Identifier: Apache-2.0
// What a rank tells the executor besides the program.
#pragma once

#include <trireme/parallel/pipeline/messages/messenger.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace trireme::pipeline {

/// What actions do that are not the executor's own. One that the schedule has not may be empty.
struct Callbacks {
  std::function<void(int stage)> gather{};
  std::function<void(int stage)> free{};
  /// Finds the sum of one stage, and of all micro-batches so far, in `.grad()`. @param micro_batch
  /// Action::kNone for all of them.
  std::function<void(int stage, int micro_batch)> reduce{};
  /// Finds in `.grad()` what the step has given, divided.
  std::function<void(int stage)> step{};
};

struct ExecutorOptions {
  at::Device device = at::kCPU;  ///< of the stages of this rank
  MessageOptions messages{};     ///< the same on all ranks
  Callbacks callbacks{};
  std::string name{};  ///< of this rank where it fails; empty: its number in the group
};

}  // namespace trireme::pipeline
