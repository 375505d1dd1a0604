// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/checkpoint.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/load_plan.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/checkpoint/save_steps.h>

#include <torch/torch.h>

#include <string_view>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr auto kModel = "model";
constexpr auto kOptimizer = "optimizer";

// Shapes and dtypes of a section as tensors without values.
TensorMap shapes_of(const Section& section) {
  TensorMap shapes;
  for (const auto& [name, tensor] : section) {
    shapes[name] =
        at::empty(tensor.shape, at::TensorOptions().dtype(tensor.dtype).device(at::kMeta));
  }
  return shapes;
}

TensorMap read_section(Reader& reader, const std::string& section) {
  TensorMap tensors;
  for (const auto& [name, tensor] : reader.section(section)) {
    tensors[name] = reader.read(section, name);
  }
  return tensors;
}

}  // namespace

std::vector<TensorPart> parts_of(const torch::nn::Module& module,
                                 const torch::optim::Optimizer* optimizer, State& state) {
  std::vector<TensorPart> parts;
  for (const auto& [name, tensor] : module_tensors(module)) {
    parts.push_back(replicated(kModel, name, tensor));
  }
  if (optimizer == nullptr) return parts;
  const OptimizerState content = optimizer_state(*optimizer, module);
  for (const auto& [name, tensor] : content.tensors) {
    parts.push_back(replicated(kOptimizer, name, tensor));
  }
  state.own[kOptimizerScalars] = content.scalars;
  return parts;
}

fs::path save(const SaveOptions& options, const torch::nn::Module& module,
              const torch::optim::Optimizer* optimizer, const State& state) {
  State own = state;
  const auto parts = parts_of(module, optimizer, own);
  return save_parts(options, parts, own, comm::Group());
}

State load(const fs::path& path, torch::nn::Module& module, torch::optim::Optimizer* optimizer) {
  Reader reader(path);
  const std::string model_source = reader.describe_section(kModel);
  check_module_tensors(shapes_of(reader.section(kModel)), module, model_source);
  OptimizerState optimizer_content;
  if (optimizer != nullptr) {
    optimizer_content.scalars = optimizer_scalars(reader);
    optimizer_content.tensors = read_section(reader, kOptimizer);
  }
  const TensorMap model = read_section(reader, kModel);
  if (optimizer != nullptr) {
    load_optimizer_state(optimizer_content, *optimizer, module,
                         reader.describe_section(kOptimizer));
  }
  load_module_tensors(model, module, model_source);
  return state_for_rank(reader, 0);
}

LoadedModel load_model(const fs::path& path, torch::nn::Module& module,
                       const LoadModelOptions& options) {
  Reader reader(path);
  std::vector<WantedTensor> wanted;
  const TensorMap own = module_tensors(module);
  for (const auto& [name, tensor] : own) {
    wanted.push_back({.name = name, .shape = tensor.sizes().vec(), .dtype = tensor.scalar_type()});
  }
  const LoadPlan plan = plan_load(reader, wanted, options);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const auto& [name, saved_name] : plan.sources) {
    copies.emplace_back(own.at(name), reader.read(kModel, saved_name));
  }
  const torch::NoGradGuard no_grad;
  for (const auto& [target, values] : copies) target.copy_(values);
  return plan.passed_over;
}

}  // namespace trireme::checkpoint
