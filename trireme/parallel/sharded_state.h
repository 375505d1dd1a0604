// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a module and an optimizer that a plan has cut: every rank writes and reads its own
// parts, and the ranks and the plan that load may be others than those that saved.
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

/// What this rank has of a module and its optimizer (nullptr to leave it out), as parts for
/// checkpoint::save_parts or AsyncSaver over the plan's group: its slices of what the plan cuts,
/// its part of distributed tensors, all of the rest, and on the first rank along data the buffers,
/// whose values count. What several ranks hold alike, one of them writes. What no tensor holds of
/// the optimizer goes into `state.own`. Tensors share memory with the optimizer's and the module's.
/// Parameters need not be whole. Not collective, but for a distributed tensor that is Partial,
/// which is reduced first.
std::vector<checkpoint::TensorPart> parts_to_save(const Parallelized& parallelized,
                                                  ConstModuleRef module,
                                                  torch::optim::Optimizer* optimizer,
                                                  checkpoint::State& state);

/// Saves them: see checkpoint::save_parts. Collective, blocking.
std::filesystem::path save_checkpoint(const checkpoint::SaveOptions& options,
                                      const Parallelized& parallelized, ConstModuleRef module,
                                      torch::optim::Optimizer* optimizer,
                                      const checkpoint::State& state);

/// Loads a checkpoint, whatever ranks and plan saved it, or none, into a module and an optimizer
/// (nullptr to leave it) that were made as the saved ones were, distributed or not; the optimizer
/// was sharded where the plan cuts it. Each rank reads its own parts of parameters and of the
/// optimizer's state alone, and returns the state with `own` of the rank of the same number.
/// Collective, blocking. Where it fails on one rank, all throw the same CheckpointError that names
/// it, and nothing has changed.
checkpoint::State load_checkpoint(const std::filesystem::path& path, Parallelized& parallelized,
                                  ModuleRef module, torch::optim::Optimizer* optimizer);

/// Loads parameters and buffers alone, some of them or under other names: see
/// checkpoint::load_model, whose options and errors these are. Collective, blocking.
checkpoint::LoadedModel load_model(const std::filesystem::path& path, Parallelized& parallelized,
                                   ModuleRef module,
                                   const checkpoint::LoadModelOptions& options = {});

}  // namespace trireme
