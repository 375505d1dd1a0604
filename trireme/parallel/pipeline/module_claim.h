// SPDX-License-Identifier: Apache-2.0
// That a module has one TrainingStep at a time, and that nobody reads what other ranks have
// trained.
#pragma once

#include <trireme/parallel/module/named_tensors.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::pipeline {

/// Holds the parameters and buffers of a module for one TrainingStep. Two of them with other stages
/// would each compute with values that the other has trained on another rank. Move-only.
class ModuleClaim {
 public:
  /// Throws UsageError where another one has any of the tensors, and where one that has ended left
  /// old values in any. Thread-safe.
  explicit ModuleClaim(const std::vector<detail::NamedTensor>& tensors);
  ~ModuleClaim();
  ModuleClaim(ModuleClaim&& other) noexcept;
  ModuleClaim& operator=(ModuleClaim&&) = delete;
  ModuleClaim(const ModuleClaim&) = delete;
  ModuleClaim& operator=(const ModuleClaim&) = delete;

  /// Throws UsageError if a TrainingStep has any of the tensors, or a destroyed one left old values
  /// in any. Called before they are trained without a TrainingStep. Thread-safe.
  static void check_is_free(const std::vector<detail::NamedTensor>& tensors);

  /// Says which of the tensors have old values on this rank, because others train them. From now
  /// on, and when the claim has ended, an operator or collective that reads one throws UsageError.
  /// Access to its pointer (data_ptr(), torch::save) throws c10::Error. An operator or collective
  /// that writes into it makes its value the caller's. Those that share their memory with others
  /// are only refused by the next claim.
  void set_outdated(const std::vector<detail::NamedTensor>& tensors);
  /// All tensors have the trained values.
  void set_current();
  /// Counts writes into tensors with old values, of all modules: after one, set_outdated() has to
  /// be called once more, when others have trained on.
  static std::uint64_t num_writes();

 private:
  std::vector<at::Tensor> tensors_;    // kept, so that no other has their address
  std::vector<at::Tensor> unwatched_;  // with old values
};

}  // namespace trireme::pipeline
