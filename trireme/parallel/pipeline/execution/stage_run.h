// SPDX-License-Identifier: Apache-2.0
// Runs one stage: forward, recomputation, and backward in one part or two, and moves what is kept
// between to host memory and back. Knows autograd, and nothing of other stages.
#pragma once

#include <trireme/parallel/pipeline/offload/host_copies.h>
#include <trireme/parallel/pipeline/program/pipeline_program.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

namespace trireme::pipeline {

/// What forward of one micro-batch left for its backward is kept in here between the calls. Not
/// thread-safe.
class StageRun {
 public:
  /// @param actions of this rank: which micro-batches are recomputed, and whose backward is in two
  /// parts. `program` must outlive this.
  /// @param copies for what is offloaded, must outlive this; null where nothing is.
  StageRun(const Program& program, StageCode code, std::span<const schedule::Action> actions,
           HostCopies* copies);
  ~StageRun();
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;

  const StageCode& code() const noexcept { return code_; }

  /// Returns the outputs, without a graph; keeps what backward needs, or the inputs alone where the
  /// micro-batch is recomputed, and nothing in an evaluation. Throws UsageError where the stage
  /// gives something else than the program says, or changes an input.
  /// @param are_callers which of the inputs are the caller's own and last for the step.
  std::vector<at::Tensor> forward(const MicroBatch& micro_batch, std::vector<at::Tensor> inputs,
                                  const std::vector<bool>& are_callers);

  /// Where the micro-batch is offloaded: begins to copy what forward has kept to host memory,
  /// beside what the device computes. Else nothing.
  void begin_offload(int micro_batch);

  /// The device's memory of what forward has kept is free again when the copies are done, for which
  /// the device waits, but not the caller. Returns where it was, but for what came into the stage.
  std::vector<const void*> offload(int micro_batch);

  /// Begins to copy it back, into new memory. Returns where what came into the stage is now.
  std::vector<const void*> load(int micro_batch);

  /// Forward again, for what backward needs; buffers stay as they are.
  void recompute(MicroBatch micro_batch);

  /// Returns the gradients of the inputs, undefined where there is none. Accumulates those of
  /// parameters, but for what operators put off where the backward is in two parts.
  /// @param gradients of the outputs, undefined where there is none.
  std::vector<at::Tensor> backward(int micro_batch, std::vector<at::Tensor> gradients);

  /// Accumulates what was put off.
  void backward_weight(int micro_batch);

 private:
  struct Kept;

  std::vector<at::Tensor> run(const MicroBatch& micro_batch, const std::vector<at::Tensor>& inputs,
                              Kept& kept);
  void keep_for_offload(const std::vector<at::Tensor>& inputs, const std::vector<bool>& are_callers,
                        Kept& kept) const;
  void take_loaded(Kept& kept) const;
  void check_outputs(const std::vector<at::Tensor>& outputs, const MicroBatch& micro_batch) const;
  void save_buffers();
  void restore_buffers();
  std::vector<at::Tensor> parameters_without_gradient() const;

  const Program& program_;
  StageCode code_;
  HostCopies* copies_;
  std::vector<bool> input_has_gradient_;
  std::vector<const BoundaryTensor*> output_boundary_tensors_;  // null for the loss
  std::vector<bool> is_recomputed_;                             // by micro-batch
  std::vector<bool> is_split_;
  std::vector<bool> is_offloaded_;
  std::vector<Kept> kept_;  // by micro-batch
  std::vector<at::Tensor> saved_buffers_;
};

}  // namespace trireme::pipeline
