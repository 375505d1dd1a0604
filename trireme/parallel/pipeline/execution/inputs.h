// SPDX-License-Identifier: Apache-2.0
// What a step is given, where the stages of a rank are.
#pragma once

#include <trireme/parallel/pipeline/program/pipeline_program.h>
#include <trireme/schedule/action.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace trireme::pipeline {

/// Tensors of micro-batches that lie elsewhere are copied to the device, those of the next forwards
/// beside the work of this one. Not thread-safe.
class Inputs {
 public:
  /// @param stages,actions those of the rank. `program` must outlive this.
  Inputs(const Program& program, const std::vector<StageCode>& stages,
         std::span<const schedule::Action> actions, at::Device device);

  /// Begins a step. @param micro_batches for each the tensors of Program::inputs; must live until
  /// end().
  void begin(const std::vector<std::vector<at::Tensor>>& micro_batches);
  struct Taken {
    at::Tensor tensor;
    bool is_copy = false;  ///< which nobody has but who takes it
  };
  /// For the next forward of this rank. Throws UsageError where it was not given.
  Taken take(int value, int micro_batch, int stage);
  /// Ends a step, also one that failed.
  void end();

 private:
  struct Needed {
    int value = 0;
    int micro_batch = 0;
    int stage = 0;
    at::Tensor copy{};
    std::optional<c10::Event> arrived{};
  };

  const at::Tensor& given(const Needed& needed) const;
  void start(Needed& needed);
  void start_until(std::size_t count);

  const Program& program_;
  at::Device device_;
  std::optional<c10::Stream> copies_{};  // of a device that has streams
  std::vector<Needed> needed_;           // in the order of this rank's forwards
  std::size_t num_ahead_ = 0;
  const std::vector<std::vector<at::Tensor>>* micro_batches_ = nullptr;
  std::size_t num_started_ = 0;
  std::size_t num_taken_ = 0;
};

}  // namespace trireme::pipeline
