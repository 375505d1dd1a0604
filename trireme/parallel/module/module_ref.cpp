// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/module/module_ref.h>

#include <trireme/base/error.h>

#include <torch/nn/module.h>

namespace trireme {

torch::nn::Module* ModuleRef::checked(torch::nn::Module* module) {
  if (module != nullptr) return module;
  throw UsageError("a null pointer was given in place of a module",
                   "construct the module first, with std::make_shared or a holder");
}

std::shared_ptr<torch::nn::Module> ModuleRef::shared() const {
  if (auto owned = module_->weak_from_this().lock()) return owned;
  throw UsageError("a Model was given a module that no shared_ptr owns",
                   "make it by std::make_shared, or as a holder such as torch::nn::Linear");
}

}  // namespace trireme
