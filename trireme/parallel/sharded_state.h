// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a module and an optimizer that a plan shards or distributes. Every rank writes and
// reads its own parts. A checkpoint can be loaded with another number of ranks and another plan.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/graph/module_ref.h>
#include <trireme/parallel/parallelize.h>

#include <filesystem>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace trireme {

/// Returns this rank's parts of a module and its optimizer, for checkpoint::save_parts or
/// AsyncSaver over the plan's group. These are:
/// - its slices of sharded parameters and of their optimizer state;
/// - its local parts of distributed tensors;
/// - whole parameters and their optimizer state;
/// - buffers, on the first rank along `data`, whose values are the ones saved.
///
/// Parts that several ranks hold are written by one of them. Optimizer settings that are not
/// tensors are stored in `state.own`. The returned tensors share memory with the module and the
/// optimizer. Parameters need not be whole. Not collective, except that a distributed tensor with a
/// Partial layout is reduced first.
/// @param optimizer may be null, to leave the optimizer out.
std::vector<checkpoint::TensorPart> parts_to_save(const Parallelized& parallelized,
                                                  ConstModuleRef module,
                                                  torch::optim::Optimizer* optimizer,
                                                  checkpoint::State& state);

/// Saves the parts that parts_to_save() returns, by checkpoint::save_parts. Collective and
/// blocking.
/// @return the path of the checkpoint.
std::filesystem::path save_checkpoint(const checkpoint::SaveOptions& options,
                                      const Parallelized& parallelized, ConstModuleRef module,
                                      torch::optim::Optimizer* optimizer,
                                      const checkpoint::State& state);

/// Loads a checkpoint into a module and an optimizer that were constructed like the saved ones. The
/// checkpoint may be from any number of ranks and any plan, or from one process without a plan. If
/// the plan shards the optimizer, call shard() before. Each rank reads only its own parts.
/// Collective and blocking. If it fails on one rank, all ranks throw the same CheckpointError
/// naming that rank, and nothing has changed.
/// @param optimizer may be null, to leave the optimizer out.
/// @return the saved state. Its `own` is that of the saving rank with this rank's number.
checkpoint::State load_checkpoint(const std::filesystem::path& path, Parallelized& parallelized,
                                  ModuleRef module, torch::optim::Optimizer* optimizer);

/// Loads parameters and buffers without an optimizer. Can load some of them, or load them under
/// other names. Options and errors are those of checkpoint::load_model. Collective and blocking.
checkpoint::LoadedModel load_model(const std::filesystem::path& path, Parallelized& parallelized,
                                   ModuleRef module,
                                   const checkpoint::LoadModelOptions& options = {});

}  // namespace trireme
