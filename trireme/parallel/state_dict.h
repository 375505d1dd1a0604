// SPDX-License-Identifier: Apache-2.0
// State dictionaries of a module and an optimizer that a plan has cut: whole, as one process would
// have them, or this rank's parts.
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

/// Of a module and its optimizer, under the names that checkpoint/ gives them.
struct FullState {
  checkpoint::TensorMap module;
  checkpoint::OptimizerState optimizer;
};

/// Returns copies in host memory on `root`, and nothing on other ranks; equal to what the module
/// and the optimizer would hold without a plan. Parameters of ZeRO level 3 are whole one bucket at
/// a time, distributed tensors one at a time, optimizer state for a moment on every rank.
/// Collective, blocking.
FullState full_state(Parallelized& parallelized, ConstModuleRef module,
                     torch::optim::Optimizer& optimizer, int root = 0);

/// Puts a whole state into a module and an optimizer that a plan has cut; every rank has the whole
/// state in hand. Throws CheckpointError naming the first thing that does not fit. Collective,
/// blocking.
void load_full_state(const FullState& state, Parallelized& parallelized, ModuleRef module,
                     torch::optim::Optimizer& optimizer);

/// What a rank has of a parameter: elements from `offset` on of its memory, of which a distributed
/// one has a part here, in the order in which they lie there.
struct PartPlace {
  std::vector<std::int64_t> sizes;    ///< of the whole parameter
  std::vector<std::int64_t> strides;  ///< of the whole parameter
  std::int64_t offset = 0;            ///< in elements
  std::string layout;                 ///< of a distributed one, and its mesh; else empty
  bool is_whole = false;              ///< every rank has all of it
};

/// This rank's parts of parameters and of the optimizer's state, under the same names as in
/// FullState: flat tensors, which share memory with the optimizer's. Those of the other ranks, put
/// behind each other by offset, make the whole. Buffers are whole on every rank.
struct PartialState {
  checkpoint::TensorMap parameters;
  checkpoint::TensorMap buffers;
  checkpoint::OptimizerState optimizer;
  std::map<std::string, PartPlace> places;  ///< by name of the parameter
};

/// Not collective. Copies the optimizer's state of large parts, which it steps in pieces, into one
/// tensor each, and the optimizer goes on with that.
PartialState partial_state(const Parallelized& parallelized, ConstModuleRef module,
                           torch::optim::Optimizer& optimizer);

/// Puts the optimizer's state of parts into it. Throws CheckpointError naming `source` and the
/// first thing that does not fit; nothing has changed then. Not collective.
void load_optimizer_parts(const checkpoint::OptimizerState& state, const Parallelized& parallelized,
                          torch::optim::Optimizer& optimizer, std::string_view source);

/// Puts parts back into the same cut: the same plan, ranks and module. Throws CheckpointError
/// naming the first thing that does not fit; nothing has changed then. All ranks must do this
/// before anything touches the parameters. Not collective.
void load_partial_state(const PartialState& state, Parallelized& parallelized, ModuleRef module,
                        torch::optim::Optimizer& optimizer);

}  // namespace trireme
