// SPDX-License-Identifier: Apache-2.0
// StepReport and StepRecorder: the measured times and memory of a step, in the same form as a
// planned timeline. `schedule::to_trace` writes it to a file; `schedule::peak_memory` predicts the
// same bytes.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/schedule/timeline.h>
#include <trireme/schedule/verifier/memory.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// The measurements of one step, of all ranks.
struct StepReport {
  /// The times of all actions, in milliseconds since all ranks had begun. A receive is shown as a
  /// point in time, when its message has arrived; the wait before it is a gap.
  schedule::Timeline timeline{};
  /// The bytes that one micro-batch keeps in each stage, the maximum over micro-batches. They are
  /// the bytes of tensors that came from other stages, and of those that were allocated and not
  /// freed.
  std::vector<schedule::StageBytes> stage_bytes{};
  /// The maximum of the bytes that each rank kept after an action, or within a backward after it
  /// had recomputed a part. Not included are buffers of messages that wait, gradients of
  /// parameters, and memory that is freed within an action.
  std::vector<std::int64_t> peak_bytes{};
};

/// Records the times and memory of one step on one rank. While it lives, LibTorch's allocators
/// report to it instead of to a profiler. Not thread-safe.
class StepRecorder {
 public:
  /// Waits for all ranks and starts the clock. Collective and blocking.
  StepRecorder(const schedule::Schedule& schedule, const comm::Group& group);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  /// Returns the milliseconds since all ranks had begun.
  double now() const;

  /// Begins an action; call it before each.
  void begin(const schedule::Action& action);

  /// Ends an action; call it after each.
  /// @param began the time of now() before the action.
  void end(const schedule::Action& action, double began);

  /// Adds the bytes of a forward's inputs that came from other stages. Call it before end() of that
  /// forward.
  void take_inputs(std::int64_t bytes) { input_bytes_ = bytes; }
  /// Stops counting tensors that leave a stage, unless the stage still holds their memory.
  void give(const std::vector<at::Tensor>& tensors);
  /// Stops counting the gradient of a parameter.
  void leave_out(const at::Tensor& gradient);
  /// Stops counting the memory at these addresses. Call it for memory that was offloaded, even if a
  /// message still reads it. Call it also for loaded memory of stage inputs, because inputs are
  /// counted separately.
  void leave_out(const std::vector<const void*>& memories);

  /// Returns the report of all ranks. Collective and blocking.
  StepReport gather(const comm::Group& group) const;

 private:
  class Allocations;

 public:
  /// Marks a recomputation within the backward of this thread while it lives. Memory that it
  /// allocates is counted, and the total is noted at its end. Does nothing if no recorder is
  /// active.
  class [[nodiscard]] Rebuilding {
   public:
    Rebuilding();
    ~Rebuilding();
    Rebuilding(const Rebuilding&) = delete;
    Rebuilding& operator=(const Rebuilding&) = delete;

   private:
    Allocations* allocations_;
    bool counted_ = false;
  };

 private:
  struct Pair;  // a stage and a micro-batch
  Pair& pair_of(const schedule::Action& action);
  std::string to_text() const;
  void read(const std::string& text, std::size_t rank, StepReport& report) const;

  const schedule::Schedule& schedule_;
  std::chrono::steady_clock::time_point start_;
  std::shared_ptr<Allocations> allocations_;
  struct Installed;
  std::unique_ptr<Installed> installed_;
  std::vector<schedule::Span> spans_;
  std::vector<Pair> pairs_;
  std::vector<schedule::StageBytes> stage_bytes_;
  std::int64_t input_bytes_ = 0;
  std::int64_t bytes_before_ = 0;
  std::int64_t held_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace trireme::pipeline
