// SPDX-License-Identifier: Apache-2.0
// Checkpoints of modules with distributed tensors (trireme/tensor), saved and loaded by all ranks
// of a mesh. They have the same format as those of one process: whole tensors by name, of which
// each rank writes and reads its part. A checkpoint can be loaded with any other mesh, layouts or
// plan, or with none.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/graph/module_ref.h>

#include <filesystem>
#include <vector>

namespace trireme {
class DeviceMesh;
}  // namespace trireme

namespace trireme::checkpoint {

struct RankGrid;

/// Saves a module and an optimizer that all ranks of the mesh hold, and returns the path; see
/// save_parts().
///
/// Data that several ranks hold, including plain tensors, is written by one of them. Partial
/// tensors are reduced first. Tensors may be distributed on the mesh or on its sub-meshes.
/// Collective over mesh.group() and blocking.
///
///     const auto path = save({.folder = "runs"}, *model, &optimizer, {.epoch = 1}, mesh);
///     const State state = load(path, *model, &optimizer, mesh);
///
/// @throws UsageError on a rank outside of the mesh.
/// @throws CheckpointError on all ranks, with the rank that failed.
std::filesystem::path save(const SaveOptions& options, ConstModuleRef module,
                           const torch::optim::Optimizer* optimizer, const State& state,
                           const DeviceMesh& mesh);

/// Returns the parts of this rank, for save_parts() and AsyncSaver over mesh.group(); see
/// parts_of() in checkpoint.h. Collective if a tensor is Partial.
std::vector<TensorPart> parts_of(ConstModuleRef module, const torch::optim::Optimizer* optimizer,
                                 State& state, const DeviceMesh& mesh);

/// Returns the parts of this rank in a grid of ranks. `group` contains all ranks of the grid, in
/// its order.
std::vector<TensorPart> parts_of(ConstModuleRef module, const torch::optim::Optimizer* optimizer,
                                 State& state, const RankGrid& grid, const comm::Group& group);

/// Loads a checkpoint into a module and an optimizer that were constructed in the same way; see
/// load() in checkpoint.h.
///
/// The checkpoint may have been saved by any ranks and with any layouts. Each rank reads its parts.
/// The returned state has the entries `own` of the rank with the same number. Collective over
/// mesh.group() and blocking. If reading fails on one rank, all throw the same CheckpointError,
/// which names it, and nothing is changed. Throws UsageError on a rank outside of the mesh.
State load(const std::filesystem::path& path, ModuleRef module, torch::optim::Optimizer* optimizer,
           const DeviceMesh& mesh);

/// Loads parameters and buffers only; see load_model() in checkpoint.h. Collective like load().
LoadedModel load_model(const std::filesystem::path& path, ModuleRef module, const DeviceMesh& mesh,
                       const LoadModelOptions& options = {});

/// Returns plain tensors; distributed ones are gathered on every rank of their mesh.
///
/// Use it to write a file with write_safetensors() on one rank. Needs memory for all tensors; a
/// checkpoint followed by export_safetensors() does not. Collective and blocking.
TensorMap full_tensors(const TensorMap& tensors);

}  // namespace trireme::checkpoint
