// SPDX-License-Identifier: Apache-2.0
// StageRun: runs one stage under autograd: forward, recomputation, and backward in one part or two.
// Also moves saved tensors to host memory and back. It knows nothing of other stages.
#pragma once

#include <trireme/parallel/pipeline/offload/host_copies.h>
#include <trireme/parallel/pipeline/pipeline_program.h>

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace trireme::pipeline {

/// Runs one stage, and keeps what the forward of each micro-batch leaves for its backward. Not
/// thread-safe.
class StageRun {
 public:
  /// @param program must outlive this object.
  /// @param code the stage.
  /// @param actions the actions of this rank. They determine which micro-batches are recomputed or
  /// offloaded, and which have a backward in two parts.
  /// @param copies the host memory for offloading; must outlive this object. Null if nothing is
  /// offloaded.
  StageRun(const Program& program, StageCode code, std::span<const schedule::Action> actions,
           HostCopies* copies);
  ~StageRun();
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;

  const StageCode& code() const noexcept { return code_; }

  /// Runs forward and returns the outputs, detached. Keeps the graph for backward. If the
  /// micro-batch is recomputed, keeps only the inputs; in an evaluation, keeps nothing. Throws
  /// UsageError if the outputs are not those of the program, or if the stage changes an input in
  /// place.
  /// @param are_callers for each input, true if it is the caller's own tensor, which lives until
  /// the step ends.
  std::vector<at::Tensor> forward(const MicroBatch& micro_batch, std::vector<at::Tensor> inputs,
                                  const std::vector<bool>& are_callers);

  /// Starts copying the kept tensors to host memory, if the micro-batch is offloaded. The copies
  /// overlap with computation.
  void begin_offload(int micro_batch);

  /// Releases the device memory of the kept tensors. The device waits for the copies before it
  /// computes anything else; the caller does not wait.
  /// @return the addresses of the released storages, except those of the stage's inputs.
  std::vector<const void*> offload(int micro_batch);

  /// Starts copying the kept tensors back into new device memory.
  /// @return the addresses of the new storages of the stage's inputs.
  std::vector<const void*> load(int micro_batch);

  /// Runs forward again and keeps the graph for backward. Buffers are restored afterwards.
  void recompute(MicroBatch micro_batch);

  /// Runs backward. Accumulates the gradients of parameters, except those that are deferred to
  /// backward_weight() because backward runs in two parts.
  /// @param gradients the gradients of the outputs, undefined for outputs without one.
  /// @return the gradients of the inputs, undefined for inputs without one.
  std::vector<at::Tensor> backward(int micro_batch, std::vector<at::Tensor> gradients);

  /// Computes and accumulates the deferred gradients of weights.
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
