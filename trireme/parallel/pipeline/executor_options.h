// SPDX-License-Identifier: Apache-2.0
// ExecutorOptions: the settings of one rank of a pipeline, besides the program that all ranks
// share. They are its device, how it sends messages, and its callbacks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

namespace trireme::pipeline {

/// Options of the messages of a pipeline. All ranks pass the same values.
struct MessageOptions {
  /// The maximum number of sends to one rank that it has not received yet; the next send waits.
  /// By default, the engine of the group decides.
  std::optional<int> outstanding{};
  /// The number of receives that are started before their turn. Each may need one more buffer.
  int receives_ahead = 2;
};

/// Functions for actions that the executor does not perform itself. A function may be empty if the
/// schedule of this rank has no such action; otherwise the executor refuses the program.
struct Callbacks {
  std::function<void(int stage)> gather{};  ///< gathers the parameters of a stage
  std::function<void(int stage)> free{};    ///< frees the gathered parameters of a stage
  /// Reduces the gradients of a stage over data ranks. When it is called, `.grad()` holds the sum
  /// of that stage over the micro-batches so far. `micro_batch` is Action::kNone for all
  /// micro-batches.
  std::function<void(int stage, int micro_batch)> reduce{};
  /// Steps the optimizer of a stage. When it is called, `.grad()` holds the gradients of the step,
  /// after the division.
  std::function<void(int stage)> step{};
};

/// Options of an Executor.
struct ExecutorOptions {
  at::Device device = at::kCPU;  ///< the device of this rank's stages
  MessageOptions messages{};     ///< how messages are sent; the same on all ranks
  Callbacks callbacks{};         ///< functions for actions that are not the executor's own
  std::string name{};            ///< this rank's name in errors; empty means "rank" and its number
};

}  // namespace trireme::pipeline
