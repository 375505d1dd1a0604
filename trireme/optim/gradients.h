// SPDX-License-Identifier: Apache-2.0
// Treats the gradients of an optimizer as one vector over all ranks: norm, clipping, finiteness.
// Each element counts once, however it is stored: replicated, sharded, or shared by tied
// parameters. Each part of a distributed gradient counts on the first rank that holds it.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>

#include <functional>

namespace torch::optim {
class Optimizer;
}

namespace trireme {

/// Describes which ranks hold which part of an optimizer's parameters. By default, every rank holds
/// all of each plain tensor, and of each distributed tensor the part that its layout says, on one
/// mesh. The object that `parallelize` returns provides the Sharing of its plan, and TrainingStep
/// that of its stages. Functions of an optimizer that steps slices (ZeRO) or parameters of a
/// pipeline throw UsageError without it.
struct Sharing {
  /// The ranks that hold parts.
  comm::Group group = comm::Group::self();
  /// Returns true if this rank counts its gradient of a parameter even if it is not rank 0, because
  /// other ranks hold other parts of the parameter. Rank 0 counts all its gradients. Empty means
  /// the default.
  std::function<bool(const at::Tensor& parameter)> is_part{};
};

/// Returns true if this rank is the first of those that hold the same part, which means that its
/// coordinate is 0 along every axis that does not shard the tensor.
bool is_first_holder(const Layout& layout);

/// Combines the Sharing of two modules whose parameters are stepped by one optimizer. Throws
/// UsageError if the two are sharded over different ranks.
Sharing combine(const Sharing& a, const Sharing& b);

/// Returns the Euclidean norm of all gradients. On the CPU, squares are summed exactly, so that the
/// result has the same bits on every rank and for every way of sharding. On an accelerator, they
/// are summed there in fp64, and the host waits for the result. Collective and blocking if
/// `sharing` has parts or gradients are distributed; otherwise there is no communication. Throws
/// UsageError if gradients are distributed on two meshes.
double global_norm(const torch::optim::Optimizer& optimizer, const Sharing& sharing = {});

/// Returns the largest magnitude of all gradients, or NaN if one of them is NaN. Collective like
/// global_norm.
double global_maximum(const torch::optim::Optimizer& optimizer, const Sharing& sharing = {});

/// Returns true if no gradient on any rank is infinite or NaN. Collective like global_norm.
bool all_finite(const torch::optim::Optimizer& optimizer, const Sharing& sharing = {});

/// Clips gradients to a norm: multiplies all of them by max_norm / (norm + 1e-6) if that is less
/// than 1, like torch::nn::utils::clip_grad_norm_. Returns the norm before clipping, one number in
/// fp64 on the device of the parameters. An accelerator is not waited for, unless the caller asks
/// for the value: clip_by_global_norm(…).item<double>(). Gradients whose norm is not finite are not
/// changed. Call it between the last backward() of a step and optimizer.step(). Collective like
/// global_norm. Throws UsageError unless max_norm is above 0.
at::Tensor clip_by_global_norm(torch::optim::Optimizer& optimizer, double max_norm,
                               const Sharing& sharing = {});

}  // namespace trireme
