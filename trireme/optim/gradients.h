// SPDX-License-Identifier: Apache-2.0
// The gradients of an optimizer as one vector over all ranks: norm, clipping, finiteness. Each
// element counts once, on whichever ranks it is: replicated, this rank's part of it, or tied. Of a
// distributed gradient each part counts where it is held first.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>

#include <functional>

namespace torch::optim {
class Optimizer;
}

namespace trireme {

/// Which ranks have what of an optimizer's tensors. By default every rank has all of plain ones,
/// and of distributed ones what their layouts say, on one mesh. Parallelized gives that of its
/// plan, and Pipeline that of its stages; functions of an optimizer that steps slices (ZeRO) or
/// parameters of a pipeline throw UsageError without it.
struct Sharing {
  comm::Group group = comm::Group::self();
  /// Whether this rank counts what it has of a parameter though it is not rank 0, which counts all
  /// that it has: another part of a sharded parameter is with another rank. Empty: as by default.
  std::function<bool(const at::Tensor& parameter)> is_part{};
};

/// Whether this rank is the first of those that hold its part: its coordinate is 0 along every axis
/// that does not cut.
bool is_first_holder(const Layout& layout);

/// Of an optimizer that steps parameters of two modules: throws UsageError where the two are cut
/// among different ranks.
Sharing combine(const Sharing& a, const Sharing& b);

/// Returns the Euclidean norm of all gradients. Squares are summed without rounding, so the result
/// has the same bits on every rank and for every way of cutting the parameters. Collective and
/// blocking where `sharing` has parts or gradients are distributed; without communication
/// elsewhere. Throws UsageError where they are distributed on two meshes.
double global_norm(const torch::optim::Optimizer& optimizer, const Sharing& sharing = {});

/// Returns the largest magnitude among all gradients; not a number where one of them is not.
/// Collective like global_norm.
double global_maximum(const torch::optim::Optimizer& optimizer, const Sharing& sharing = {});

/// Whether no gradient on any rank is infinite or not a number. Collective like global_norm.
bool all_finite(const torch::optim::Optimizer& optimizer, const Sharing& sharing = {});

/// Multiplies all gradients by max_norm / (norm + 1e-6) where that is less than 1, as
/// torch::nn::utils::clip_grad_norm_ does, and returns the norm before. Gradients whose norm is not
/// finite are left alone. To be called between the step's last backward() and optimizer.step().
/// Collective like global_norm.
double clip_by_global_norm(torch::optim::Optimizer& optimizer, double max_norm,
                           const Sharing& sharing = {});

}  // namespace trireme
