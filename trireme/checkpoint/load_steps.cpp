// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/load_steps.h>

#include <trireme/checkpoint/distributed_part.h>
#include <trireme/checkpoint/load_plan.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/reader.h>

#include <torch/torch.h>

namespace trireme::checkpoint {
namespace {

constexpr auto kModel = "model";
constexpr auto kOptimizer = "optimizer";

// Returns a tensor on the meta device: shape and dtype without values.
at::Tensor shape_of(const IndexedTensor& tensor) {
  return at::empty(tensor.shape, at::TensorOptions().dtype(tensor.dtype).device(at::kMeta));
}

TensorMap shapes_of(const Section& section) {
  TensorMap shapes;
  for (const auto& [name, tensor] : section) shapes[name] = shape_of(tensor);
  return shapes;
}

// Reads the state of the parameters. State without a matching parameter is returned without values,
// for the error message.
TensorMap read_states(Reader& reader, const torch::nn::Module& module) {
  TensorMap states;
  const auto parameters = module.named_parameters();
  for (const auto& [name, tensor] : reader.section(kOptimizer)) {
    const at::Tensor* const parameter = parameters.find(parameter_of_state(name));
    const bool fits = parameter != nullptr && parameter->sizes() == at::IntArrayRef(tensor.shape);
    states[name] = fits ? read_like(reader, kOptimizer, name, *parameter) : shape_of(tensor);
  }
  return states;
}

}  // namespace

ReadContent read_content(const std::filesystem::path& path, const torch::nn::Module& module,
                         const torch::optim::Optimizer* optimizer, int rank) {
  Reader reader(path);
  ReadContent content;
  content.identity = identify(reader);
  content.model_source = reader.describe_section(kModel);
  content.optimizer_source = reader.describe_section(kOptimizer);
  const TensorMap own = module_tensors(module);
  TensorMap saved = shapes_of(reader.section(kModel));
  for (const std::string& name : reader.left_out(kModel)) {
    // The tensor keeps its own values.
    if (const auto found = own.find(name); found != own.end()) content.model.insert(*found);
  }
  saved.insert(content.model.begin(), content.model.end());
  check_module_tensors(saved, module, content.model_source);
  if (optimizer != nullptr) {
    content.optimizer.scalars = optimizer_scalars(reader);
    content.optimizer.tensors = read_states(reader, module);
  }
  for (const auto& [name, tensor] : own) {
    if (!content.model.contains(name)) {
      content.model[name] = read_like(reader, kModel, name, tensor);
    }
  }
  content.state = state_for_rank(reader, rank);
  return content;
}

void put_content(const ReadContent& content, torch::nn::Module& module,
                 torch::optim::Optimizer* optimizer) {
  if (optimizer != nullptr) {
    load_optimizer_state(content.optimizer, *optimizer, module, content.optimizer_source);
  }
  load_module_tensors(content.model, module, content.model_source);
}

ReadModel read_model(const std::filesystem::path& path, const torch::nn::Module& module,
                     const LoadModelOptions& options) {
  Reader reader(path);
  ReadModel content;
  content.identity = identify(reader);
  std::vector<WantedTensor> wanted;
  const TensorMap own = module_tensors(module);
  for (const auto& [name, tensor] : own) {
    wanted.push_back({.name = name, .shape = tensor.sizes().vec(), .dtype = tensor.scalar_type()});
  }
  LoadPlan plan = plan_load(reader, wanted, options);
  for (const auto& [name, saved_name] : plan.sources) {
    const at::Tensor& target = own.at(name);
    content.copies.emplace_back(target, read_like(reader, kModel, saved_name, target));
  }
  content.passed_over = std::move(plan.passed_over);
  return content;
}

void put_model(const ReadModel& content) {
  const torch::NoGradGuard no_grad;
  for (const auto& [target, values] : content.copies) target.copy_(values);
}

}  // namespace trireme::checkpoint
