// SPDX-License-Identifier: Apache-2.0
// What a step really did, in the form of what was planned: `schedule::to_trace` writes it,
// `schedule::peak_memory` predicts the bytes.
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

/// Of all ranks.
struct StepReport {
  /// From when all ranks had begun. Receives end when their message is there; waiting for it comes
  /// before.
  schedule::Timeline timeline{};
  /// What a micro-batch kept in each stage, the most of all micro-batches: what came into the stage
  /// from others, and what was allocated and not freed again.
  std::vector<schedule::StageBytes> stage_bytes{};
  /// The most that each rank kept after an action, or in a backward after it had computed something
  /// again. Buffers of messages that wait, gradients, and what else is freed within an action do
  /// not count.
  std::vector<std::int64_t> peak_bytes{};
};

/// Watches a step of one rank. While it lives, LibTorch's allocators report to it instead of to a
/// profiler. Not thread-safe.
class StepRecorder {
 public:
  /// Waits for all ranks: collective.
  StepRecorder(const schedule::Schedule& schedule, const comm::Group& group);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  /// Milliseconds since all ranks had begun.
  double now() const;

  /// Begins an action; call it before each.
  void begin(const schedule::Action& action);

  /// Ends an action; call it after each.
  /// @param began the time of now() before the action.
  void end(const schedule::Action& action, double began);

  /// Bytes that came into a stage for an action, its forward.
  void take_inputs(std::int64_t bytes) { input_bytes_ = bytes; }
  /// What leaves a stage counts there no more, unless the stage keeps it.
  void give(const std::vector<at::Tensor>& tensors);
  /// Gradients of parameters never count.
  void leave_out(const at::Tensor& gradient);
  /// Memory at these places counts no more: what was offloaded, though a message may still read it,
  /// and what came into the stage when it is loaded, which counts as that again.
  void leave_out(const std::vector<const void*>& memories);

  /// Collective and blocking.
  StepReport gather(const comm::Group& group) const;

 private:
  class Allocations;

 public:
  /// While it lives, something is computed again for the backward of this thread: what is
  /// allocated counts, and what is there at its end. Nothing where nobody records.
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
