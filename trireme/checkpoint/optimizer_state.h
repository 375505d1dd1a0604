// SPDX-License-Identifier: Apache-2.0
// State of an unmodified LibTorch optimizer by parameter name, out and back in: momentum buffers
// and the like as named tensors, step counts and the options of each group (learning rate, betas,
// ...) as JSON. SGD, Adam, AdamW, RMSprop and Adagrad. LBFGS is refused: its state is one history
// over all parameters together, which no parameter's name fits.
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

/// Name of the entry that a checkpoint has `OptimizerState::scalars` under.
inline constexpr auto kOptimizerScalars = "trireme.optimizer";

struct OptimizerState {
  /// `optimizer.<parameter name>.<field>`, such as `optimizer.fc.weight.momentum_buffer`.
  TensorMap tensors;
  /// JSON: kind of optimizer, groups with parameter names and options, per parameter its fields.
  /// See docs/formats/checkpoint.md.
  std::string scalars;
};

/// `fc.weight` of `optimizer.fc.weight.momentum_buffer`; empty for a name of another form.
std::string parameter_of_state(std::string_view tensor_name);

/// Returns the state under the names that `module` gives to the optimizer's parameters; tensors
/// share the optimizer's storage. Throws UsageError for another kind of optimizer, and for a
/// parameter that is not one of the module's.
OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer,
                               const torch::nn::Module& module);

/// Puts together what ranks have of the same optimizer, of which each steps a part: `scalars` of a
/// parameter are those of the first rank that has any. Throws CheckpointError naming `source` where
/// they are damaged.
std::string join_scalars(const std::vector<std::string>& by_rank, std::string_view source);

/// `scalars` without the state of all other parameters. Groups stay as they are.
std::string only_state_of(const std::set<std::string>& parameters, const std::string& scalars);

/// Puts saved state and options into an optimizer that was made over the same parameters in the
/// same groups; what it had is dropped. Training then goes on bit for bit as if it had not been
/// interrupted. Throws CheckpointError naming the first thing that does not fit; nothing has
/// changed then. `source` says where the state comes from.
void load_optimizer_state(const OptimizerState& state, torch::optim::Optimizer& optimizer,
                          const torch::nn::Module& module, std::string_view source);

}  // namespace trireme::checkpoint
