// SPDX-License-Identifier: Apache-2.0
// That a module has one Pipeline at a time, and that the next one begins with trained values.
#pragma once

#include <trireme/parallel/named_tensors.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::pipeline {

/// Holds the parameters and buffers of a module for one Pipeline. Two of them with other stages
/// would each compute with values that the other has trained on another rank. Move-only.
class ModuleClaim {
 public:
  /// Throws UsageError where another one has any of the tensors, and where one that has ended left
  /// old values in any, unless they have been written to since. Thread-safe.
  explicit ModuleClaim(const std::vector<detail::NamedTensor>& tensors);
  ~ModuleClaim();
  ModuleClaim(ModuleClaim&& other) noexcept;
  ModuleClaim& operator=(ModuleClaim&&) = delete;
  ModuleClaim(const ModuleClaim&) = delete;
  ModuleClaim& operator=(const ModuleClaim&) = delete;

  /// Says which of the tensors have old values on this rank: others have trained them.
  void set_outdated(std::vector<at::Tensor> tensors) { outdated_ = std::move(tensors); }

 private:
  std::vector<at::Tensor> tensors_;  // kept, so that no other has their address
  std::vector<at::Tensor> outdated_;
};

}  // namespace trireme::pipeline
