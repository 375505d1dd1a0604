// SPDX-License-Identifier: Apache-2.0
// State dictionaries of a module and an optimizer that a plan shards or distributes: either whole,
// as one process would have them, or this rank's parts.
#pragma once

#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/graph/module_ref.h>
#include <trireme/parallel/parallelize.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace trireme {

/// The whole state of a module and its optimizer, under the names that the checkpoint component
/// uses.
struct FullState {
  checkpoint::TensorMap module;          ///< parameters and buffers by name
  checkpoint::OptimizerState optimizer;  ///< the state and options of the optimizer
};

/// Returns the whole state on `root`, as copies in host memory, and an empty one on other ranks. It
/// equals the state that the module and the optimizer would have without a plan. Parameters of ZeRO
/// level 3 are gathered one bucket at a time, distributed tensors one at a time. The optimizer
/// state is whole on every rank for a moment. Collective and blocking.
FullState full_state(Parallelized& parallelized, ConstModuleRef module,
                     torch::optim::Optimizer& optimizer, int root = 0);

/// Loads a whole state into a module and an optimizer that a plan shards or distributes. Every rank
/// passes the whole state. Throws CheckpointError naming the first item that does not fit.
/// Collective and blocking.
void load_full_state(const FullState& state, Parallelized& parallelized, ModuleRef module,
                     torch::optim::Optimizer& optimizer);

/// Describes which elements of a parameter a rank holds: those from `offset` on, in the order of
/// its memory. For a distributed parameter, the offset counts in this rank's local part.
struct PartPlace {
  std::vector<std::int64_t> sizes;    ///< of the whole parameter
  std::vector<std::int64_t> strides;  ///< of the whole parameter
  std::int64_t offset = 0;            ///< in elements
  std::string layout;                 ///< layout and mesh of a distributed parameter; else empty
  bool is_whole = false;              ///< true if every rank holds the whole parameter
};

/// This rank's parts of parameters and of the optimizer's state, under the same names as in
/// FullState. Parts are flat tensors that share memory with the optimizer's. The parts of all
/// ranks, concatenated by offset, make the whole. Buffers are whole on every rank.
struct PartialState {
  checkpoint::TensorMap parameters;         ///< parts of parameters by name
  checkpoint::TensorMap buffers;            ///< buffers by name
  checkpoint::OptimizerState optimizer;     ///< parts of the optimizer's state
  std::map<std::string, PartPlace> places;  ///< by name of the parameter
};

/// Returns this rank's parts of the state. The optimizer holds a large part in several pieces;
/// their state is copied into one tensor per part, which the optimizer then uses. Not collective.
PartialState partial_state(const Parallelized& parallelized, ConstModuleRef module,
                           torch::optim::Optimizer& optimizer);

/// Loads this rank's parts of the optimizer's state. Throws CheckpointError naming `source` and the
/// first item that does not fit, without changing anything. Not collective.
void load_optimizer_parts(const checkpoint::OptimizerState& state, const Parallelized& parallelized,
                          torch::optim::Optimizer& optimizer, std::string_view source);

/// Loads parts that were saved under the same plan, number of ranks and module. Throws
/// CheckpointError naming the first item that does not fit, without changing anything. All ranks
/// must call it before anything touches the parameters. Not collective.
void load_partial_state(const PartialState& state, Parallelized& parallelized, ModuleRef module,
                        torch::optim::Optimizer& optimizer);

}  // namespace trireme
