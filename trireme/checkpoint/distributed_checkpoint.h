// SPDX-License-Identifier: Apache-2.0
// Checkpoints of modules whose parameters and buffers are distributed tensors (trireme/tensor), by
// all ranks of a mesh together. They are those of one process: whole tensors by name, of which each
// rank writes and reads what it has. A checkpoint of any mesh, layouts, plan or of none loads into
// any other.
//
//   const auto path = save({.folder = "runs"}, *model, &optimizer, {.epoch = 1}, mesh);
//   const State state = load(path, *model, &optimizer, mesh);
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

/// Saves a module and an optimizer (nullptr to leave it out), which all ranks of the mesh have; see
/// save_parts. What several ranks hold alike, plain tensors too, one of them writes; a Partial is
/// reduced first. Tensors may be distributed on the mesh, or on sub-meshes of it. Collective over
/// mesh.group(), blocking; every rank returns the path. Throws UsageError on a rank outside of the
/// mesh, and on all its ranks a CheckpointError that names the one that failed.
std::filesystem::path save(const SaveOptions& options, ConstModuleRef module,
                           const torch::optim::Optimizer* optimizer, const State& state,
                           const DeviceMesh& mesh);

/// What this rank gives to such a save, for save_parts and AsyncSaver over mesh.group(); see
/// parts_of in checkpoint.h. Collective where something is Partial.
std::vector<TensorPart> parts_of(ConstModuleRef module, const torch::optim::Optimizer* optimizer,
                                 State& state, const DeviceMesh& mesh);

/// The same for ranks that stand in a grid, with a group of all of them in that order.
std::vector<TensorPart> parts_of(ConstModuleRef module, const torch::optim::Optimizer* optimizer,
                                 State& state, const RankGrid& grid, const comm::Group& group);

/// Loads a checkpoint, whatever ranks and layouts it was saved from, into a module and an optimizer
/// (nullptr to leave it) of the same construction: see load in checkpoint.h. Each rank reads what
/// it holds, and returns the state with `own` of the rank of the same number. Collective over
/// mesh.group(), blocking. Where reading fails on one rank, all throw the same CheckpointError that
/// names it, and nothing has changed. Throws UsageError on a rank outside of the mesh.
State load(const std::filesystem::path& path, ModuleRef module, torch::optim::Optimizer* optimizer,
           const DeviceMesh& mesh);

/// Loads parameters and buffers alone: see load_model in checkpoint.h. Collective, as load.
LoadedModel load_model(const std::filesystem::path& path, ModuleRef module, const DeviceMesh& mesh,
                       const LoadModelOptions& options = {});

/// The same tensors as plain ones, distributed ones whole on every rank of their mesh: for
/// write_safetensors on one of them, say. Takes memory for all of them; a checkpoint and
/// export_safetensors need none of that. Collective, blocking.
TensorMap full_tensors(const TensorMap& tensors);

}  // namespace trireme::checkpoint
