// SPDX-License-Identifier: Apache-2.0
// ModuleRef: a module as programs hold it, for functions that take one.
#pragma once

#include <concepts>
#include <memory>

namespace torch::nn {
class Module;
}

namespace trireme {

/// Something that holds a module and shares it: a ModuleHolder such as torch::nn::Linear, or a
/// torch::nn::AnyModule.
template <typename T>
concept ModuleHolder = requires(const T& holder) {
  { holder.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
};

/// Refers to a module, given as `*model`, as the holder `model` or as a shared_ptr. Made where a
/// function is called; owns nothing.
class ModuleRef {
 public:
  // NOLINTBEGIN(google-explicit-constructor): what it is for
  ModuleRef(torch::nn::Module& module) : module_(&module) {}
  template <ModuleHolder Holder>
  ModuleRef(const Holder& holder) : module_(checked(holder.ptr().get())) {}
  template <typename ModuleType>
    requires std::convertible_to<ModuleType*, torch::nn::Module*>
  ModuleRef(const std::shared_ptr<ModuleType>& module) : module_(checked(module.get())) {}
  // NOLINTEND(google-explicit-constructor)

  torch::nn::Module& operator*() const noexcept { return *module_; }
  torch::nn::Module* operator->() const noexcept { return module_; }

  /// Shares the module. Throws UsageError for one that no shared_ptr owns.
  std::shared_ptr<torch::nn::Module> shared() const;

 private:
  // Throws UsageError for none.
  static torch::nn::Module* checked(torch::nn::Module* module);

  torch::nn::Module* module_;
};

}  // namespace trireme
