// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/load_plan.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/distributed_part.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/save_steps.h>

#include <torch/torch.h>

#include <algorithm>
#include <set>

namespace trireme::checkpoint {
namespace {

// Returns the name in the module for a name in the checkpoint; empty to skip the tensor.
std::string name_in_module(const std::string& saved, const LoadModelOptions& options) {
  const auto found = options.names.find(saved);
  if (found != options.names.end()) return found->second;
  return options.rename ? options.rename(saved) : saved;
}

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

LoadPlan plan_load(const Reader& reader, const std::vector<WantedTensor>& wanted,
                   const LoadModelOptions& options) {
  const std::string source = reader.describe_section("model");
  const Section& section = reader.section("model");
  // The names in the checkpoint by their names in the module. Two tensors must not get the same
  // name.
  std::map<std::string, std::string> saved_by_name;
  for (const auto& [saved, tensor] : section) {
    std::string name = name_in_module(saved, options);
    if (name.empty()) continue;
    const auto [place, is_new] = saved_by_name.emplace(std::move(name), saved);
    if (is_new) continue;
    throw CheckpointError(join_message(source, ": '", place->second, "' and '", saved,
                                       "' would both be '", place->first, "' in the model"),
                          "rename them differently, or one of them to nothing to leave it out");
  }
  // An entry of the table that matches no tensor is probably a misspelt name.
  for (const auto& [saved, name] : options.names) {
    if (section.contains(saved)) continue;
    throw CheckpointError(join_message(source, " has no tensor '", saved, "' to be '", name, "'"),
                          "trireme checkpoint inspect lists what there is");
  }
  std::set<std::string> left_out;  // Tensors that were left out when the checkpoint was saved.
  for (const std::string& saved : reader.left_out("model")) {
    left_out.insert(name_in_module(saved, options));
  }
  LoadPlan plan;
  for (const WantedTensor& one : wanted) {
    const auto found = saved_by_name.find(one.name);
    // A tensor that was deliberately not saved is not missing.
    if (found == saved_by_name.end() && left_out.contains(one.name)) continue;
    if (found == saved_by_name.end()) {
      plan.passed_over.missing.push_back(one.name);
      continue;
    }
    const IndexedTensor& tensor = section.at(found->second);
    if (tensor.shape != one.shape || tensor.dtype != one.dtype) {
      throw CheckpointError(
          join_message(source, " is of another model: '", one.name, "' is ",
                       dtype_name(tensor.dtype), " ", at::IntArrayRef(tensor.shape), " there and ",
                       dtype_name(one.dtype), " ", at::IntArrayRef(one.shape), " in the model"),
          "rename it to nothing to leave it out, or build the model with the options of the saved "
          "one");
    }
    plan.sources[one.name] = found->second;
    saved_by_name.erase(found);
  }
  for (const auto& [name, saved] : saved_by_name) plan.passed_over.unexpected.push_back(saved);
  const auto& [missing, unexpected] = plan.passed_over;
  if (options.strict && !(missing.empty() && unexpected.empty())) {
    throw CheckpointError(
        join_message(source, " is of another model: ", missing.size(), " missing",
                     missing.empty() ? "" : ", first '" + missing.front() + "'", ", ",
                     unexpected.size(), " unexpected",
                     unexpected.empty() ? "" : ", first '" + unexpected.front() + "'"),
        "build the model with the options of the saved one, or load it by load_checkpoint, whose "
        "options `names` and `rename` are for tensors that are called otherwise, and `strict = "
        "false` for passing over the rest");
  }
  return plan;
}

bool has_optimizer(const Reader& reader) {
  return std::ranges::any_of(reader.state().of_ranks,
                             [](const Entries& own) { return own.contains(kOptimizerScalars); });
}

std::string optimizer_scalars(const Reader& reader) {
  std::vector<std::string> by_rank;
  for (const Entries& own : reader.state().of_ranks) {
    const auto found = own.find(kOptimizerScalars);
    if (found != own.end()) by_rank.push_back(found->second);
  }
  if (by_rank.empty()) {
    throw CheckpointError(
        join_message(reader.path().string(), " lists no optimizer: it holds a model alone"),
        "load it without an optimizer, or give a checkpoint that was saved with one");
  }
  return join_scalars(by_rank, reader.path().string());
}

std::string identify(const Reader& reader) {
  const Index& index = reader.index();
  return join_message("epoch ", index.state.epoch, ", step ", index.state.step, ", number ",
                      index.order, ", written at ", index.written_at);
}

void check_same(const std::vector<std::string>& by_rank, const std::filesystem::path& path) {
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == by_rank[0]) continue;
    throw CheckpointError(
        join_message("ranks found different checkpoints in ", path.string(), ": ", by_rank[0],
                     " on rank 0, ", by_rank[rank], " on rank ", rank),
        "put the checkpoint where all hosts see the same files");
  }
}

State state_for_rank(const Reader& reader, int rank) {
  State state = reader.state();
  for (Entries& own : state.of_ranks) own.erase(kOptimizerScalars);
  if (static_cast<std::size_t>(rank) < state.of_ranks.size()) {
    state.own = state.of_ranks[static_cast<std::size_t>(rank)];
  }
  return state;
}

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
