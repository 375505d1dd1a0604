// SPDX-License-Identifier: Apache-2.0
// Makes a module of LibTorch of tensors and their names, so that functions for modules serve
// modules of Python too.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::python {

/// What a module consists of. Names and paths have dots, such as `layers.0.weight`.
struct ModuleTensors {
  /// Paths of its modules, in the order of the module. Those that contain a tensor may be left out.
  std::vector<std::string> modules{};
  std::vector<std::pair<std::string, at::Tensor>> parameters{};  ///< by name; may share memory
  std::vector<std::pair<std::string, at::Tensor>> buffers{};     ///< by name
  /// Paths of the modules that are batch norms of Python, for `Plan::sync_batch_norm`.
  std::vector<std::string> batch_norms{};
};

/// Returns a module with these modules, parameters and buffers. It has no forward. Its tensors are
/// those that were given. Throws c10::Error for a name without letters, or with an empty part.
std::shared_ptr<torch::nn::Module> module_of_tensors(const ModuleTensors& tensors);

}  // namespace trireme::python
