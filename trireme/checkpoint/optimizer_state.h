// SPDX-License-Identifier: Apache-2.0
// Gets and sets the state of a LibTorch optimizer by parameter name. Momentum buffers and similar
// state are named tensors; step counts and the options of each group (learning rate, betas, ...)
// are JSON. Supports SGD, Adam, AdamW, LAMB, RMSprop and Adagrad. LBFGS is not supported, because
// its state is one history over all parameters.
#pragma once

#include <trireme/checkpoint/safetensors.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace trireme::checkpoint {

/// The name of the entry that holds OptimizerState::scalars in a checkpoint.
inline constexpr auto kOptimizerScalars = "trireme.optimizer";

/// The state of an optimizer.
struct OptimizerState {
  /// Tensors named `optimizer.<parameter name>.<field>`, such as
  /// `optimizer.fc.weight.momentum_buffer`.
  TensorMap tensors;
  /// JSON with the kind of optimizer, the groups with parameter names and options, and the fields
  /// of each parameter. See docs/formats/checkpoint.md.
  std::string scalars;
};

/// Returns the parameter of a tensor name: `fc.weight` for `optimizer.fc.weight.momentum_buffer`.
/// Returns an empty string for other names.
std::string parameter_of_state(std::string_view tensor_name);

/// Returns the state under the names that `module` gives to the parameters. Tensors share the
/// optimizer's storage. Throws UsageError for an unsupported optimizer, and for a parameter that
/// does not belong to the module.
OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer,
                               const torch::nn::Module& module);

/// Joins the `scalars` of ranks that each step a part of the same optimizer. For each parameter,
/// those of the first rank that has any are used. Throws CheckpointError with `source` if they are
/// damaged.
std::string join_scalars(const std::vector<std::string>& by_rank, std::string_view source);

/// Returns `scalars` without the state of all other parameters. Groups are unchanged.
std::string only_state_of(const std::set<std::string>& parameters, const std::string& scalars);

/// Replaces the state and options of an optimizer by saved ones.
///
/// The optimizer must have been made over the same parameters in the same groups. Training then
/// continues bitwise as if it had not been interrupted. Throws CheckpointError with the first
/// mismatch; then nothing is changed.
/// @param state the saved state.
/// @param optimizer the optimizer to change.
/// @param module the module that names the parameters.
/// @param source where the state comes from, for the message.
void load_optimizer_state(const OptimizerState& state, torch::optim::Optimizer& optimizer,
                          const torch::nn::Module& module, std::string_view source);

}  // namespace trireme::checkpoint
