// SPDX-License-Identifier: Apache-2.0
// Which tensor of a checkpoint goes to which of a module, and what else a load needs of a
// checkpoint. For this component and for those that load into modules that are cut.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/reader.h>

#include <map>
#include <string>
#include <vector>

namespace trireme::checkpoint {

struct WantedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;
};

struct LoadPlan {
  std::map<std::string, std::string>
      sources;  ///< by name in the module, the name in the checkpoint
  LoadedModel passed_over;
};

/// Throws CheckpointError for what does not fit; see load_model.
LoadPlan plan_load(const Reader& reader, const std::vector<WantedTensor>& wanted,
                   const LoadModelOptions& options);

bool has_optimizer(const Reader& reader);

/// What no tensor holds of the optimizer, put together from all ranks that saved: see
/// OptimizerState. Throws CheckpointError for a checkpoint of a model alone.
std::string optimizer_scalars(const Reader& reader);

/// Which checkpoint a rank has before it: hosts may see different files under one path.
std::string identify(const Reader& reader);

/// Throws CheckpointError where ranks have identified different ones.
void check_same(const std::vector<std::string>& by_rank, const std::filesystem::path& path);

/// The state as a rank gets it: with what the rank of that number saved for itself, and without
/// what this component had put in.
State state_for_rank(const Reader& reader, int rank);

}  // namespace trireme::checkpoint
