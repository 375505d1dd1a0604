// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/distributed_checkpoint.h>

#include <trireme/checkpoint/consensus.h>
#include <trireme/checkpoint/distributed_part.h>
#include <trireme/checkpoint/load_plan.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/tensor/distributed_tensor.h>

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

struct Saved {
  std::string section;
  std::string name;
  at::Tensor tensor;
};

// Reduces Partial tensors in the order of the list. All ranks first agree that they can make their
// parts, so that no rank waits in a reduction for one that has failed.
void complete(std::vector<Saved>& all, const RankGrid& grid, const comm::Group& group) {
  if (std::ranges::none_of(all, [](const Saved& item) { return is_partial(item.tensor); })) return;
  agree(group, "cannot save", [&]() -> std::string {
    for (const Saved& item : all) {
      if (has_layout(item.tensor)) holders_of(item.name, layout_of(item.tensor), grid);
    }
    return {};
  });
  for (Saved& item : all) item.tensor = completed(item.tensor);
}

}  // namespace

std::vector<TensorPart> parts_of(ConstModuleRef given, const torch::optim::Optimizer* optimizer,
                                 State& state, const RankGrid& grid, const comm::Group& group) {
  const torch::nn::Module& module = *given;
  std::vector<Saved> all;
  for (const auto& [name, tensor] : module_tensors(module)) all.push_back({"model", name, tensor});
  std::string scalars;
  if (optimizer != nullptr) {
    OptimizerState content = optimizer_state(*optimizer, module);
    for (const auto& [name, tensor] : content.tensors) all.push_back({"optimizer", name, tensor});
    scalars = std::move(content.scalars);
  }
  complete(all, grid, group);
  std::vector<TensorPart> parts;
  const auto buffers = module.named_buffers();
  for (const auto& [section, name, tensor] : all) {
    parts.push_back(part_of(section, name, tensor, grid));
    parts.back().changes_any_time = section == "model" && buffers.contains(name);
  }
  // Set last, so that an error above leaves the state unchanged.
  if (optimizer != nullptr) state.own[kOptimizerScalars] = std::move(scalars);
  return parts;
}

std::vector<TensorPart> parts_of(ConstModuleRef given, const torch::optim::Optimizer* optimizer,
                                 State& state, const DeviceMesh& mesh) {
  const torch::nn::Module& module = *given;
  const RankGrid grid = grid_of(mesh);
  return parts_of(module, optimizer, state, grid, mesh.group());
}

fs::path save(const SaveOptions& options, ConstModuleRef given,
              const torch::optim::Optimizer* optimizer, const State& state,
              const DeviceMesh& mesh) {
  const torch::nn::Module& module = *given;
  const RankGrid grid = grid_of(mesh);
  const auto make = [&] {
    Content content{.parts = {}, .state = state};
    content.parts = parts_of(module, optimizer, content.state, grid, mesh.group());
    return content;
  };
  return save_parts(options, make, mesh.group());
}

State load(const fs::path& path, ModuleRef given, torch::optim::Optimizer* optimizer,
           const DeviceMesh& mesh) {
  torch::nn::Module& module = *given;
  const RankGrid grid = grid_of(mesh);
  ReadContent content;
  const auto found = agree(mesh.group(), "cannot load", [&] {
    content = read_content(path, module, optimizer, grid.rank);
    return content.identity;
  });
  // Assigns only after all ranks have read their parts of the same checkpoint.
  check_same(found, path);
  put_content(content, module, optimizer);
  return std::move(content.state);
}

LoadedModel load_model(const fs::path& path, ModuleRef given, const DeviceMesh& mesh,
                       const LoadModelOptions& options) {
  torch::nn::Module& module = *given;
  const RankGrid grid = grid_of(mesh);
  ReadModel content;
  const auto found = agree(mesh.group(), "cannot load", [&] {
    content = read_model(path, module, options);
    return content.identity;
  });
  check_same(found, path);
  put_model(content);
  return std::move(content.passed_over);
}

TensorMap full_tensors(const TensorMap& tensors) {
  TensorMap all;
  for (const auto& [name, tensor] : tensors) all[name] = full(tensor.detach());
  return all;
}

}  // namespace trireme::checkpoint
