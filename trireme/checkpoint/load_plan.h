// SPDX-License-Identifier: Apache-2.0
// Matches tensors of a checkpoint to tensors of a module, and extracts the rest of a checkpoint's
// state. The two steps of loading follow: reading and verifying, which changes nothing, and then
// assigning the values. For this component and for those that load into sharded modules.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/checkpoint/safetensors.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trireme::checkpoint {

/// A parameter or buffer that is to be loaded.
struct WantedTensor {
  std::string name;                   ///< The name in the module.
  std::vector<std::int64_t> shape;    ///< The whole shape.
  at::ScalarType dtype = at::kFloat;  ///< The dtype.
};

struct LoadPlan {
  /// The name in the checkpoint, by name in the module.
  std::map<std::string, std::string> sources;
  /// The tensors without a match.
  LoadedModel passed_over;
};

/// Matches the tensors of a checkpoint to the wanted ones. Throws CheckpointError like
/// load_model().
LoadPlan plan_load(const Reader& reader, const std::vector<WantedTensor>& wanted,
                   const LoadModelOptions& options);

/// Returns true if the checkpoint contains the state of an optimizer.
bool has_optimizer(const Reader& reader);

/// Returns the state of the optimizer that is not in tensors, joined from all ranks that saved; see
/// OptimizerState. Throws CheckpointError if the checkpoint contains a model only.
std::string optimizer_scalars(const Reader& reader);

/// Returns a text that identifies the checkpoint, because hosts may see different files under one
/// path.
std::string identify(const Reader& reader);

/// Throws CheckpointError if ranks have identified different checkpoints.
void check_same(const std::vector<std::string>& by_rank, const std::filesystem::path& path);

/// Returns the run state for a rank: with the entries that the rank of this number saved for
/// itself, and without those that this component added.
State state_for_rank(const Reader& reader, int rank);

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
