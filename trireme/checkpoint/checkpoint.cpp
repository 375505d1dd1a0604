// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/checkpoint.h>

#include <trireme/checkpoint/distributed_checkpoint.h>
#include <trireme/checkpoint/distributed_part.h>
#include <trireme/checkpoint/load_plan.h>

#include <utility>

namespace trireme::checkpoint {

namespace fs = std::filesystem;

std::vector<TensorPart> parts_of(ConstModuleRef given, const torch::optim::Optimizer* optimizer,
                                 State& state) {
  const torch::nn::Module& module = *given;
  return parts_of(module, optimizer, state, RankGrid{}, comm::Group::self());
}

fs::path save(const SaveOptions& options, ConstModuleRef given,
              const torch::optim::Optimizer* optimizer, const State& state) {
  const torch::nn::Module& module = *given;
  State own = state;
  const auto parts = parts_of(module, optimizer, own);
  return save_parts(options, parts, own, comm::Group::self());
}

State load(const fs::path& path, ModuleRef given, torch::optim::Optimizer* optimizer) {
  torch::nn::Module& module = *given;
  ReadContent content = read_content(path, module, optimizer, 0);
  put_content(content, module, optimizer);
  return std::move(content.state);
}

LoadedModel load_model(const fs::path& path, ModuleRef given, const LoadModelOptions& options) {
  torch::nn::Module& module = *given;
  ReadModel content = read_model(path, module, options);
  put_model(content);
  return std::move(content.passed_over);
}

}  // namespace trireme::checkpoint
