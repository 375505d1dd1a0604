// SPDX-License-Identifier: Apache-2.0
// Parameter types of functions that take a module as `*model`, as the holder `model` or as a
// shared_ptr.
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
  /// Refers to `*model`.
  ModuleRef(torch::nn::Module& module) : module_(&module) {}
  /// Refers to the module of a holder. Throws UsageError for an empty one.
  template <ModuleHolder Holder>
  ModuleRef(const Holder& holder) : module_(checked(holder.ptr().get())) {}
  /// Refers to a shared module. Throws UsageError for an empty pointer.
  template <typename ModuleType>
    requires std::convertible_to<ModuleType*, torch::nn::Module*>
  ModuleRef(const std::shared_ptr<ModuleType>& module) : module_(checked(module.get())) {}
  // NOLINTEND(google-explicit-constructor)

  /// Returns the module.
  torch::nn::Module& operator*() const noexcept { return *module_; }
  /// Returns the module, for its members.
  torch::nn::Module* operator->() const noexcept { return module_; }

  /// Shares the module. Throws UsageError for one that no shared_ptr owns.
  std::shared_ptr<torch::nn::Module> shared() const;

 private:
  // Throws UsageError for none.
  static torch::nn::Module* checked(torch::nn::Module* module);

  torch::nn::Module* module_;
};

/// Refers to a module that a function only reads. Takes the same arguments as ModuleRef.
class ConstModuleRef {
 public:
  // NOLINTBEGIN(google-explicit-constructor): what it is for
  /// Refers to `*model`.
  ConstModuleRef(const torch::nn::Module& module) : module_(&module) {}
  /// Refers to the module that `module` refers to.
  ConstModuleRef(ModuleRef module) : module_(&*module) {}
  /// Refers to the module of a holder. Throws UsageError for an empty one.
  template <ModuleHolder Holder>
  ConstModuleRef(const Holder& holder) : ConstModuleRef(ModuleRef(holder)) {}
  /// Refers to a shared module. Throws UsageError for an empty pointer.
  template <typename ModuleType>
    requires std::convertible_to<ModuleType*, torch::nn::Module*>
  ConstModuleRef(const std::shared_ptr<ModuleType>& module) : ConstModuleRef(ModuleRef(module)) {}
  // NOLINTEND(google-explicit-constructor)

  /// Returns the module.
  const torch::nn::Module& operator*() const noexcept { return *module_; }

 private:
  const torch::nn::Module* module_;
};

}  // namespace trireme
