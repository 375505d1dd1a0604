// SPDX-License-Identifier: Apache-2.0
// One checkpoint of a training run: model, optimizer and the state of the run in one folder, saved
// and loaded as a whole, by one process or by all ranks together. docs/formats/checkpoint.md
// describes the files, docs/guide/checkpoints.md how to use them.
//
//   const auto path = save({.folder = "runs", .prefix = "demo"}, *model, &optimizer,
//                          {.epoch = 1, .step = 938});
//   if (const auto found = latest("runs", "demo")) state = load(*found, *model, &optimizer);
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

struct SaveOptions {
  std::filesystem::path folder;
  std::string prefix = "checkpoint";
  /// How many checkpoints of this prefix remain after saving, the last ones written; 0 keeps all.
  /// The one just saved always remains.
  std::int64_t keep = 5;
  /// Besides these, the best by score, and one for each of these minutes; see Retention.
  std::int64_t keep_best = 0;
  bool higher_is_better = false;
  std::chrono::minutes keep_every{0};
  /// How good the checkpoint is, for keep_best: an evaluation's loss, say.
  std::optional<double> score{};
  /// Parameters and buffers that are not saved, by patterns of their names as fnmatch has them:
  /// `rotary.*`, say, for what the constructor computes. Loading leaves them as they are. A pattern
  /// that fits none is an error.
  std::vector<std::string> leave_out{};
  /// By what files are written; null for the system's calls. For tests. Must be there until what is
  /// saved beside the training is on the disk.
  FileLayer* files = nullptr;
};

/// Writes `folder/prefix-<epoch>_<step>` and returns its path; blocking until it is on the disk.
/// Killed at any moment it leaves the earlier checkpoints and no incomplete one. Not collective:
/// exactly one rank calls it. The module and the optimizer (nullptr to leave it out) are only read.
/// Throws CheckpointError with path and cause where the file system refuses, UsageError for options
/// or tensors that cannot be: of tensors that are distributed over several ranks
/// distributed_checkpoint.h has the same function with a mesh.
std::filesystem::path save(const SaveOptions& options, ConstModuleRef module,
                           const torch::optim::Optimizer* optimizer, const State& state);

/// The same by all ranks of a group at once: each writes the parts that it gives, and its share by
/// size of those that are replicated; rank 0 makes the folder, writes the index and publishes.
/// Every rank must see the folder. Collective, blocking; every rank returns the path. Where one
/// rank fails, all throw the same CheckpointError that names it, and nothing is published. What of
/// earlier checkpoints cannot be removed afterwards is a warning on standard error.
std::filesystem::path save_parts(const SaveOptions& options, const std::vector<TensorPart>& parts,
                                 const State& state, const comm::Group& group);

/// What a rank gives to a checkpoint.
struct Content {
  std::vector<TensorPart> parts{};
  State state{};
  /// Names of tensors that were there and are not saved, by section; filled by saving.
  std::map<std::string, std::set<std::string>> left_out{};
};

/// The same where a rank may fail to make what it gives: what `make` throws on one rank fails the
/// save on all.
std::filesystem::path save_parts(const SaveOptions& options, const std::function<Content()>& make,
                                 const comm::Group& group);

/// The parts of a module and an optimizer (nullptr to leave it out) that every rank has whole:
/// sections `model` and `optimizer`. See distributed_checkpoint.h for those it has not. What no
/// tensor holds of the optimizer goes into `state.own`. Tensors share memory with theirs.
std::vector<TensorPart> parts_of(ConstModuleRef module, const torch::optim::Optimizer* optimizer,
                                 State& state);

/// Loads a checkpoint, whatever ranks wrote it, into a module and an optimizer (nullptr to leave
/// it) of the same construction. Everything is read and verified before anything changes, which
/// takes memory for a second copy. Of distributed tensors this rank's part is read. Throws
/// CheckpointError naming the file, and the first parameter that does not fit. Not collective;
/// every rank may call it.
State load(const std::filesystem::path& path, ModuleRef module, torch::optim::Optimizer* optimizer);

/// Which tensors to load under which names.
struct LoadModelOptions {
  /// Gives the module's name for a name in the checkpoint; an empty one leaves the tensor out.
  std::function<std::string(const std::string&)> rename{};
  /// The same as a table, which goes before `rename`.
  std::map<std::string, std::string> names{};
  /// Every parameter and buffer must be there, and every tensor must have a place.
  bool strict = true;
};

/// What a load that is not strict passed over.
struct LoadedModel {
  std::vector<std::string> missing;     ///< parameters and buffers that stay as they were
  std::vector<std::string> unexpected;  ///< tensors of the checkpoint without a place
};

/// Loads parameters and buffers alone, from a checkpoint or from any safetensors file. Throws
/// CheckpointError, before anything changes, for a tensor of another shape or dtype, for two of one
/// name, and where `strict` is not met. Not collective.
LoadedModel load_model(const std::filesystem::path& path, ModuleRef module,
                       const LoadModelOptions& options = {});

}  // namespace trireme::checkpoint
