// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/checkpoint.h>

#include <trireme/checkpoint/distributed_checkpoint.h>
#include <trireme/checkpoint/distributed_part.h>
#include <trireme/checkpoint/load_steps.h>

#include <utility>

namespace trireme::checkpoint {

namespace fs = std::filesystem;

std::vector<TensorPart> parts_of(const torch::nn::Module& module,
                                 const torch::optim::Optimizer* optimizer, State& state) {
  return parts_of(module, optimizer, state, RankGrid{}, comm::Group::self());
}

fs::path save(const SaveOptions& options, const torch::nn::Module& module,
              const torch::optim::Optimizer* optimizer, const State& state) {
  State own = state;
  const auto parts = parts_of(module, optimizer, own);
  return save_parts(options, parts, own, comm::Group::self());
}

State load(const fs::path& path, torch::nn::Module& module, torch::optim::Optimizer* optimizer) {
  ReadContent content = read_content(path, module, optimizer, 0);
  put_content(content, module, optimizer);
  return std::move(content.state);
}

LoadedModel load_model(const fs::path& path, torch::nn::Module& module,
                       const LoadModelOptions& options) {
  ReadModel content = read_model(path, module, options);
  put_model(content);
  return std::move(content.passed_over);
}

}  // namespace trireme::checkpoint
