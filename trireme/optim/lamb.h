// SPDX-License-Identifier: Apache-2.0
// The optimizer LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76
// minutes", ICLR 2020, algorithm 2), for batches of thousands of samples.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme {

/// The parameters of LAMB.
struct LambOptions {
  double learning_rate = 1e-3;  ///< the step size; LearningRate and set_lr() change it
  double beta1 = 0.9;           ///< the decay of the mean of gradients
  double beta2 = 0.999;         ///< the decay of the mean of their squares
  double epsilon = 1e-6;        ///< added to the root of the mean of squares
  double weight_decay = 0.01;   ///< the share of a parameter that is added to its update
  double largest_norm = 10;     ///< norms of parameters count as at most this
};

/// Parameters that are stepped in the same way.
struct LambGroup {
  std::vector<at::Tensor> parameters{};  ///< the parameters
  LambOptions options{};                 ///< how to step them
  /// Scales the update of each parameter to the parameter's norm. False for biases and norms, which
  /// are usually stepped without it and without weight decay; this makes Adam of LAMB.
  bool adapts = true;
};

/// Returns an optimizer that does the following in each step, for every parameter p with gradient g
/// in step t, where the norm is that of the whole tensor:
///
///     m = beta1 m + (1 - beta1) g
///     v = beta2 v + (1 - beta2) g^2
///     u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay p
///     p = p - learning_rate min(|p|, largest_norm) / |u| u
///
/// The factor before u is 1 where |p| or |u| is 0, and without LambGroup::adapts. Parameters may be
/// distributed tensors. Checkpoints hold its state, and all options but largest_norm and adapts,
/// which are those of the program. Accelerators are not waited for.
///
/// After Parallelized::shard (ZeRO), step() is collective over the ranks that share the parameters:
/// one all-reduce adds the squares of their parts of all parameters, and a second one adds over the
/// mesh if parameters are distributed too. A rank holds the updates of its parts meanwhile. On the
/// CPU these norms are exact sums, rounded once, and do not depend on the number of ranks.
///
/// add_param_group() without options adds a group with LambOptions{}, or with the `options` of the
/// second function. AdamWOptions given to it are merged with those, as for LibTorch's optimizers.
/// @throws UsageError if there is no parameter, or an option is out of range. step() throws it for
/// a sparse gradient, and for a group with options of another optimizer or with amsgrad.
std::unique_ptr<torch::optim::Optimizer> lamb(std::vector<LambGroup> groups);

/// Returns the same for parameters that are all stepped alike.
std::unique_ptr<torch::optim::Optimizer> lamb(std::vector<at::Tensor> parameters,
                                              const LambOptions& options = {});

/// Adds parameters to an optimizer that lamb() has returned. Other than add_param_group(), it takes
/// all options of LAMB. Throws UsageError for another optimizer, if there is no parameter, or if an
/// option is out of range.
void add_lamb_group(torch::optim::Optimizer& optimizer, LambGroup group);

namespace detail {
/// Returns true for an optimizer that lamb() has returned. Its options and state are AdamWOptions
/// and AdamWParamState of LibTorch.
bool is_lamb(const torch::optim::Optimizer& optimizer);

/// Returns the parameter that a tensor is a part of; null for any other tensor.
using WholeOf = std::function<const at::Tensor*(const at::Tensor& part)>;

/// Tells LAMB which of the tensors that it steps are parts of parameters, so that it takes the
/// norms of the whole ones. Does nothing for other optimizers.
/// @param optimizer steps the parts already, as all ranks of `group` do.
/// @param owner a key for forget_lamb_parts().
/// @param group the ranks that hold the other parts.
/// @param whole_of only called within.
void set_lamb_parts(torch::optim::Optimizer& optimizer, const void* owner, const comm::Group& group,
                    const WholeOf& whole_of);
/// Undoes set_lamb_parts().
void forget_lamb_parts(torch::optim::Optimizer& optimizer, const void* owner);
}  // namespace detail

}  // namespace trireme
