// SPDX-License-Identifier: Apache-2.0
#include <python/native/module_of_tensors.h>

#include <trireme/graph/module_path.h>
#include <trireme/parallel/gradients/sync_batch_norm.h>

#include <torch/nn/module.h>

#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace trireme::python {
namespace {

// Stands for a batch norm of Python.
class BatchNorm final : public torch::nn::Module, public detail::BatchNormOfOtherKind {
 public:
  at::Tensor marked() const override {
    for (const auto& buffer : named_buffers(/*recurse=*/false)) {
      if (buffer.key() == "running_mean") return buffer.value();
    }
    const at::Tensor* const weight = parameters_.find("weight");
    return weight == nullptr ? at::Tensor() : *weight;
  }
};

// Makes modules by their paths, and those around them.
class Tree {
 public:
  const std::shared_ptr<torch::nn::Module>& root() { return at(""); }

  const std::shared_ptr<torch::nn::Module>& at(const std::string& path) {
    return at(path, [] { return std::make_shared<torch::nn::Module>(); });
  }

  template <typename Make>
  const std::shared_ptr<torch::nn::Module>& at(const std::string& path, const Make& make) {
    const auto [found, is_new] = all_.try_emplace(path);
    if (!is_new) return found->second;
    // References into the map stay valid while the modules around are added.
    std::shared_ptr<torch::nn::Module>& made = found->second;
    made = make();
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
  const std::unordered_set<std::string> batch_norms(tensors.batch_norms.begin(),
                                                    tensors.batch_norms.end());
  const auto make = [&](const std::string& path) -> std::shared_ptr<torch::nn::Module> {
    if (batch_norms.contains(path)) return std::make_shared<BatchNorm>();
    return std::make_shared<torch::nn::Module>();
  };
  tree.at("", [&] { return make(""); });
  for (const std::string& path : tensors.modules) {
    tree.at(path, [&] { return make(path); });
  }
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
