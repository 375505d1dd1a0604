// SPDX-License-Identifier: Apache-2.0
// Inputs: brings the caller's tensors of a step to the device of a rank's stages.
// Copies of coming micro-batches overlap with computation.
#pragma once

#include <trireme/parallel/pipeline/pipeline_program.h>
#include <trireme/schedule/action.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace trireme::pipeline {

/// Copies input tensors that are on another device. The inputs of the next two forwards are copied
/// while the device computes, on a stream of their own. Not thread-safe.
class Inputs {
 public:
  /// @param program must outlive this object.
  /// @param stages the stages of this rank.
  /// @param actions the actions of this rank, whose forwards determine the order of copies.
  /// @param device the device of this rank's stages.
  Inputs(const Program& program, const std::vector<StageCode>& stages,
         std::span<const schedule::Action> actions, at::Device device);

  /// Begins a step and starts the first copies.
  /// @param micro_batches the tensors of Program::inputs for each micro-batch; must live until
  /// end().
  void begin(const std::vector<std::vector<at::Tensor>>& micro_batches);
  /// An input on the device.
  struct Taken {
    at::Tensor tensor;
    bool is_copy = false;  ///< true if the tensor does not share memory with the caller's
  };
  /// Returns an input of this rank's next forward. Must be called in the order of the rank's
  /// forwards and of their inputs. Throws UsageError if the caller did not pass the tensor.
  Taken take(int value, int micro_batch, int stage);
  /// Ends a step and releases its copies. Must be called after a failure too.
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
  std::optional<c10::Stream> copies_{};  // the stream for copies; empty for the CPU
  std::vector<Needed> needed_;           // in the order of this rank's forwards
  std::size_t num_ahead_ = 0;
  const std::vector<std::vector<at::Tensor>>* micro_batches_ = nullptr;
  std::size_t num_started_ = 0;
  std::size_t num_taken_ = 0;
};

}  // namespace trireme::pipeline
