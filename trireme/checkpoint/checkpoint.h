// SPDX-License-Identifier: Apache-2.0
// One checkpoint of a training run: model, optimizer and the state of the run in one folder, saved
// and loaded as a whole. docs/formats/checkpoint.md describes the files, docs/guide/checkpoints.md
// how to use them.
//
//   const auto path = save({.folder = "runs", .prefix = "demo"}, *model, &optimizer, {.epoch = 1,
//   .step = 938}); if (const auto found = latest("runs", "demo")) state = load(*found, *model,
//   &optimizer);
#pragma once

#include <trireme/checkpoint/checkpoint_folder.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace trireme::checkpoint {

/// Where a run stands. `entries` are texts that others put in under their names and get back
/// unchanged.
struct State {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::map<std::string, std::string> entries;
};

struct SaveOptions {
  std::filesystem::path folder;
  std::string prefix = "checkpoint";
  /// How many checkpoints of this prefix remain after saving; 0 keeps all. The one just saved
  /// always remains.
  std::int64_t keep = 5;
};

/// Writes `folder/prefix-<epoch>_<step>` and returns its path; blocking until it is on the disk.
/// Killed at any moment it leaves the earlier checkpoints and no incomplete one. Not collective:
/// exactly one rank calls it. The module and the optimizer (nullptr to leave it out) are only read.
/// Throws CheckpointError with path and cause where the file system refuses.
std::filesystem::path save(const SaveOptions& options, const torch::nn::Module& module,
                           const torch::optim::Optimizer* optimizer, const State& state);

/// Loads a checkpoint into a module and an optimizer (nullptr to leave it) of the same
/// construction. Everything is read and verified before anything changes. Throws CheckpointError
/// naming the file, and the first parameter that does not fit. Not collective; every rank may call
/// it.
State load(const std::filesystem::path& path, torch::nn::Module& module,
           torch::optim::Optimizer* optimizer);

}  // namespace trireme::checkpoint
