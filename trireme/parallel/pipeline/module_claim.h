// SPDX-License-Identifier: Apache-2.0
// ModuleClaim: ensures that a module has one TrainingStep at a time, and that nothing reads
// parameters on a rank that does not train them.
#pragma once

#include <trireme/parallel/module/agreement.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::pipeline {

/// Claims the parameters and buffers of a module for one TrainingStep. Without it, two
/// TrainingSteps with different stages would each compute with values that the other trains on
/// another rank. Move-only.
class ModuleClaim {
 public:
  /// Claims the tensors. Throws UsageError if another claim has any of them, or if an earlier one
  /// left outdated values in any. Thread-safe.
  explicit ModuleClaim(const std::vector<detail::NamedTensor>& tensors);
  ~ModuleClaim();
  ModuleClaim(ModuleClaim&& other) noexcept;
  ModuleClaim& operator=(ModuleClaim&&) = delete;
  ModuleClaim(const ModuleClaim&) = delete;
  ModuleClaim& operator=(const ModuleClaim&) = delete;

  /// Throws UsageError if a TrainingStep has claimed any of the tensors, or if a destroyed one left
  /// outdated values in any. Called before the tensors are trained without a TrainingStep.
  /// Thread-safe.
  static void check_is_free(const std::vector<detail::NamedTensor>& tensors);

  /// Marks tensors as outdated on this rank, because other ranks train them. The marks outlive the
  /// claim. For a marked tensor:
  /// - An operator or collective that reads it throws UsageError.
  /// - Access to its pointer (data_ptr(), torch::save) throws c10::Error.
  /// - An operator or collective that writes to it removes the mark.
  ///
  /// A tensor that shares its memory with others cannot be watched: only the next claim refuses it.
  void set_outdated(const std::vector<detail::NamedTensor>& tensors);
  /// Removes the marks of all tensors, because they have the trained values now.
  void set_current();
  /// Returns the number of writes to marked tensors so far, of all modules. If it has changed,
  /// set_outdated() must be called again after the next step.
  static std::uint64_t num_writes();

 private:
  std::vector<at::Tensor> tensors_;    // kept alive, so that no other tensor gets their address
  std::vector<at::Tensor> unwatched_;  // outdated tensors that cannot be watched
};

}  // namespace trireme::pipeline
