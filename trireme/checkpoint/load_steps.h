// SPDX-License-Identifier: Apache-2.0
// The two steps of loading: reading and verifying, which changes nothing, and then assigning the
// values. Internal to this component.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/checkpoint/safetensors.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trireme::checkpoint {

/// The data of this rank, read from a checkpoint.
struct ReadContent {
  TensorMap model;           ///< Distributed if the module's tensors are, with the same layouts.
  OptimizerState optimizer;  ///< The state of the optimizer.
  State state;               ///< The state of the run for this rank.
  std::string identity;      ///< The identity of the checkpoint; see identify().
  std::string model_source;  ///< The source of the model, for messages.
  std::string optimizer_source;  ///< The source of the optimizer, for messages.
};

/// Reads the data of this rank for a module and an optimizer (nullptr to leave it out). `rank`
/// selects the entries `own`. Not collective.
ReadContent read_content(const std::filesystem::path& path, const torch::nn::Module& module,
                         const torch::optim::Optimizer* optimizer, int rank);
/// Assigns the values. Changes nothing if the optimizer's state does not match.
void put_content(const ReadContent& content, torch::nn::Module& module,
                 torch::optim::Optimizer* optimizer);

/// The parameters and buffers of this rank, read from a checkpoint or file.
struct ReadModel {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  ///< Targets and their values.
  LoadedModel passed_over;                                ///< The tensors without a match.
  std::string identity;  ///< The identity of the checkpoint; see identify().
};

/// Reads the values for the parameters and buffers of a module. Not collective.
ReadModel read_model(const std::filesystem::path& path, const torch::nn::Module& module,
                     const LoadModelOptions& options);
/// Assigns the values.
void put_model(const ReadModel& content);

}  // namespace trireme::checkpoint
