// SPDX-License-Identifier: Apache-2.0
// Finds the layouts of expert parallelism (Lepikhin et al., "GShard", 2021) in the structure of a
// module with mixtures of experts, so that nobody has to name their parameters.
#pragma once

#include <trireme/plan/parameter_layouts.h>

#include <string>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace trireme {

/// Returns the layouts that divide experts along an axis: Shard(0) for each stacked parameter.
///
/// Experts are found by their shapes, not by names. A module has stacked experts if
///  - it has parameters of its own [experts, …] of three dims with one number of experts, 2 or
///  more, and
///  - a router, a linear layer with as many outputs as experts whose number of inputs is one of the
///    other two sizes, is below it or below the module that contains it.
/// Of that module, all parameters [experts, …] of three or more dims are stacked, and biases
/// [experts, n] where a stacked parameter has n as its last size. Everything else stays whole along
/// the axis. Modules of LibTorch itself, such as convolutions, have no experts.
///
/// The patterns name the parameters with `*` for numbers, or in full if such a pattern would match
/// another parameter. Join them with other layouts by join(). Not collective.
/// @param module the module; it may be deferred.
/// @param axis the mesh axis along which experts are divided.
/// @throws UsageError if nothing is found, as where each expert is a module of its own.
ParameterLayouts expert_layouts(const torch::nn::Module& module,
                                const std::string& axis = "expert");

}  // namespace trireme
