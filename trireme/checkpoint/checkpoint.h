// SPDX-License-Identifier: Apache-2.0
// Saves and loads checkpoints of a training run: model, optimizer and run state in one folder, by
// one process or by all ranks together. docs/guide/checkpoints.md shows their use,
// docs/formats/checkpoint.md describes the files. distributed_checkpoint.h is for modules with
// distributed tensors.
#pragma once

#include <trireme/checkpoint/checkpoint_folder.h>
#include <trireme/checkpoint/retention.h>
#include <trireme/checkpoint/run_state.h>
#include <trireme/checkpoint/tensor_part.h>
#include <trireme/comm/group.h>
#include <trireme/graph/module_ref.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace trireme::checkpoint {

/// Where and how a checkpoint is saved.
struct SaveOptions {
  /// The folder of the checkpoints; it is created if it does not exist.
  std::filesystem::path folder;
  /// The beginning of the checkpoint's name.
  std::string prefix = "checkpoint";
  /// The number of checkpoints with this prefix to keep, the most recent ones; 0 keeps all. The
  /// checkpoint just saved is always kept.
  std::int64_t keep = 5;
  /// The number of checkpoints with the best scores to keep in addition; see Retention.
  std::int64_t keep_best = 0;
  /// True if a higher score is better.
  bool higher_is_better = false;
  /// Keeps in addition one checkpoint for each such time span; 0 for none. See Retention.
  std::chrono::minutes keep_every{0};
  /// The score of this checkpoint for keep_best, such as the loss of an evaluation. It may be
  /// infinite; NaN counts as no score.
  std::optional<double> score{};
  /// Patterns (fnmatch) of names of parameters and buffers that are not saved, such as `rotary.*`
  /// for values that the constructor computes. Loading leaves these tensors as they are. A pattern
  /// that matches no name is an error.
  std::vector<std::string> leave_out{};
  /// The file operations; null for those of the system. For tests. It must outlive a save in the
  /// background.
  FileLayer* files = nullptr;
};

/// Saves a checkpoint of one process as `folder/prefix-<epoch>_<step>` and returns its path.
///
/// Blocks until the checkpoint is on disk. If the process is killed at any moment, the earlier
/// checkpoints remain and no incomplete checkpoint appears. Not collective: exactly one rank calls
/// this. Module and optimizer are only read.
///
///     const auto path = save({.folder = "runs", .prefix = "demo"}, *model, &optimizer,
///                            {.epoch = 1, .step = 938});
///     if (const auto found = latest("runs", "demo")) state = load(*found, *model, &optimizer);
///
/// @param options folder, name and retention.
/// @param module the module to save.
/// @param optimizer the optimizer, or nullptr to save the module only.
/// @param state epoch, step and entries of the run.
/// @throws CheckpointError with path and cause if a file operation fails.
/// @throws UsageError for invalid options, and for tensors that cannot be saved. Distributed
/// tensors need the function with a mesh in distributed_checkpoint.h.
std::filesystem::path save(const SaveOptions& options, ConstModuleRef module,
                           const torch::optim::Optimizer* optimizer, const State& state);

/// Saves a checkpoint by all ranks of a group together and returns its path.
///
/// Each rank writes the parts that it passes, and its share by size of those that are replicated.
/// Rank 0 creates the folder, writes the index and publishes the checkpoint. All ranks must see the
/// same folder. Collective and blocking. If one rank fails, all throw the same CheckpointError,
/// which names that rank, and nothing is published. A failure to remove earlier checkpoints
/// afterwards is only a warning on standard error. Throws UsageError for an empty group.
std::filesystem::path save_parts(const SaveOptions& options, const std::vector<TensorPart>& parts,
                                 const State& state, const comm::Group& group);

/// The data that a rank contributes to a checkpoint.
struct Content {
  /// The parts of tensors.
  std::vector<TensorPart> parts{};
  /// The state of the run.
  State state{};
  /// The names of tensors that are not saved, by section. Set by saving.
  std::map<std::string, std::set<std::string>> left_out{};
};

/// The time when a save in the background (AsyncSaver, Model::save_async) copies tensors of a rank.
enum class Copying {
  /// Before the call that saves returns. All tensors may be changed then.
  kAtOnce,
  /// Before the next step of the optimizer, or AsyncSaver::before_change(): those that are not
  /// written until then. Until then, nothing else may change parameters or state of the optimizer.
  /// Buffers, parameters that ZeRO shards, and tensors on accelerators are copied at once.
  kBeforeChange,
};

/// Saves what `make` returns on each rank. An exception of `make` on one rank fails the save on all
/// ranks.
std::filesystem::path save_parts(const SaveOptions& options, const std::function<Content()>& make,
                                 const comm::Group& group);

/// Returns the parts of a module and an optimizer that every rank holds completely, in the sections
/// `model` and `optimizer`.
///
/// The tensors share memory with module and optimizer. State of the optimizer that is not in
/// tensors is added to `state.own`. For distributed tensors see distributed_checkpoint.h.
/// @param module the module.
/// @param optimizer the optimizer, or nullptr to leave it out.
/// @param state the run state that receives the rest of the optimizer's state.
std::vector<TensorPart> parts_of(ConstModuleRef module, const torch::optim::Optimizer* optimizer,
                                 State& state);

/// Loads a checkpoint into a module and an optimizer that were constructed in the same way, and
/// returns the run state.
///
/// The checkpoint may have been written by any number of ranks. Everything is read and verified
/// before anything is changed, which needs memory for a second copy. For distributed tensors, the
/// part of this rank is read. Not collective; every rank may call it.
/// @param path the folder of the checkpoint.
/// @param module the module to load into.
/// @param optimizer the optimizer to load into, or nullptr to load the module only.
/// @throws CheckpointError with the file and the first parameter that does not match.
State load(const std::filesystem::path& path, ModuleRef module, torch::optim::Optimizer* optimizer);

/// Selects the tensors to load and their names.
struct LoadModelOptions {
  /// Maps a name in the checkpoint to a name in the module; an empty result skips the tensor.
  std::function<std::string(const std::string&)> rename{};
  /// The same mapping as a table, which takes precedence over `rename`.
  std::map<std::string, std::string> names{};
  /// Requires that every parameter and buffer is in the checkpoint and every tensor is used.
  bool strict = true;
};

/// The tensors that a load that is not strict did not match.
struct LoadedModel {
  std::vector<std::string> missing;     ///< Parameters and buffers that were not loaded.
  std::vector<std::string> unexpected;  ///< Tensors of the checkpoint that were not used.
};

/// Loads parameters and buffers only, from a checkpoint or any safetensors file. Not collective.
/// @throws CheckpointError, before anything is changed, if a tensor has another shape or dtype, two
/// tensors get the same name, or `strict` is violated.
LoadedModel load_model(const std::filesystem::path& path, ModuleRef module,
                       const LoadModelOptions& options = {});

}  // namespace trireme::checkpoint
