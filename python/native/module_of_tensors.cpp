// SPDX-License-Identifier: Apache-2.0
#include <python/native/module_of_tensors.h>

#include <trireme/graph/module_path.h>

#include <torch/nn/module.h>

#include <string_view>
#include <unordered_map>

namespace trireme::python {
namespace {

// Makes modules by their paths, and those around them.
class Tree {
 public:
  const std::shared_ptr<torch::nn::Module>& root() { return at(""); }

  const std::shared_ptr<torch::nn::Module>& at(const std::string& path) {
    const auto [found, is_new] = all_.try_emplace(path);
    if (!is_new) return found->second;
    // References into the map stay valid while the modules around are added.
    std::shared_ptr<torch::nn::Module>& made = found->second;
    made = std::make_shared<torch::nn::Module>();
    if (!path.empty()) around(path)->register_module(last_part(path), made);
    return made;
  }

  const std::shared_ptr<torch::nn::Module>& around(const std::string& name) {
    return at(graph::detail::module_of(name));
  }

  static std::string last_part(const std::string& name) {
    const std::size_t dot = name.rfind('.');
    return dot == std::string::npos ? name : name.substr(dot + 1);
  }

 private:
  std::unordered_map<std::string, std::shared_ptr<torch::nn::Module>> all_;
};

}  // namespace

std::shared_ptr<torch::nn::Module> module_of_tensors(const ModuleTensors& tensors) {
  Tree tree;
  for (const std::string& path : tensors.modules) tree.at(path);
  for (const auto& [name, parameter] : tensors.parameters) {
    tree.around(name)->register_parameter(Tree::last_part(name), parameter,
                                          parameter.requires_grad());
  }
  for (const auto& [name, buffer] : tensors.buffers) {
    tree.around(name)->register_buffer(Tree::last_part(name), buffer);
  }
  return tree.root();
}

}  // namespace trireme::python
