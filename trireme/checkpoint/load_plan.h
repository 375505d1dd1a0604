// SPDX-License-Identifier: Apache-2.0
// Matches tensors of a checkpoint to tensors of a module, and extracts the rest of a checkpoint's
// state. For this component and for those that load into sharded modules.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/reader.h>

#include <map>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// A parameter or buffer that is to be loaded.
struct WantedTensor {
  std::string name;                   ///< The name in the module.
  std::vector<std::int64_t> shape;    ///< The whole shape.
  at::ScalarType dtype = at::kFloat;  ///< The dtype.
};

/// The result of plan_load().
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

}  // namespace trireme::checkpoint
