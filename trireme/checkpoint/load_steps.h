// SPDX-License-Identifier: Apache-2.0
// The two halves of loading: reading and verifying, which changes nothing, and putting in. Internal
// to this component.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/checkpoint/safetensors.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trireme::checkpoint {

struct ReadContent {
  TensorMap model;  // distributed where the module's are, of the same layouts
  OptimizerState optimizer;
  State state;
  std::string identity;  // of the checkpoint, see identify
  std::string model_source;
  std::string optimizer_source;
};

// What this rank holds of a module and an optimizer (nullptr to leave it), as load gives it to the
// rank of that number. Not collective.
ReadContent read_content(const std::filesystem::path& path, const torch::nn::Module& module,
                         const torch::optim::Optimizer* optimizer, int rank);
void put_content(const ReadContent& content, torch::nn::Module& module,
                 torch::optim::Optimizer* optimizer);

struct ReadModel {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // where to, and the values
  LoadedModel passed_over;
  std::string identity;
};

ReadModel read_model(const std::filesystem::path& path, const torch::nn::Module& module,
                     const LoadModelOptions& options);
void put_model(const ReadModel& content);

}  // namespace trireme::checkpoint
