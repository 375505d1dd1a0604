// SPDX-License-Identifier: Apache-2.0
// The optimizer LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76
// minutes", ICLR 2020, algorithm 2), for batches of thousands of samples.
#pragma once

#include <ATen/core/Tensor.h>

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
/// which are those of the program. It cannot step slices of parameters (ZeRO), because it needs
/// their norms; parallelize() and Model refuse it there. Accelerators are not waited for.
/// @throws UsageError if there is no parameter, or an option is out of range. step() throws it for
/// a sparse gradient.
std::unique_ptr<torch::optim::Optimizer> lamb(std::vector<LambGroup> groups);

/// Returns the same for parameters that are all stepped alike.
std::unique_ptr<torch::optim::Optimizer> lamb(std::vector<at::Tensor> parameters,
                                              const LambOptions& options = {});

namespace detail {
/// Returns true for an optimizer that lamb() has returned. Its options and state are AdamWOptions
/// and AdamWParamState of LibTorch.
bool is_lamb(const torch::optim::Optimizer& optimizer);
}  // namespace detail

}  // namespace trireme
