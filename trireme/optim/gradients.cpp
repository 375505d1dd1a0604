// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/gradients.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/optim/counted_gradients.h>
#include <trireme/optim/exact_sum.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cmath>

namespace trireme {

using detail::for_each_counted;
using detail::for_each_trained;

namespace {

detail::ExactSumOfSquares sum_of_squares(const torch::optim::Optimizer& optimizer,
                                         const Sharing& given) {
  const at::NoGradGuard no_grad;
  const Sharing sharing = detail::complete_sharing(given, optimizer);
  detail::ExactSumOfSquares sum;
  for_each_counted(optimizer, sharing,
                   [&](const at::Tensor& gradient) { detail::add_squares(gradient, sum); });
  if (sharing.is_part) {
    const auto words = sum.words();
    const at::Tensor all =
        at::from_blob(words.data(), {static_cast<std::int64_t>(words.size())}, at::kLong);
    // Integers add exactly in any order, so that the sum has the same bits for every engine.
    comm::all_reduce(all, sharing.group, comm::ReduceOp::kSum, "sum of squares");
  }
  return sum;
}

}  // namespace

bool is_first_holder(const Layout& layout) {
  for (int axis = 0; axis < layout.mesh().num_axes(); ++axis) {
    const Placement& placement = layout[axis];
    const bool cuts = placement.is_shard() || placement.is_flat_shard();
    if (!cuts && layout.mesh().coordinate(axis) != 0) return false;
  }
  return true;
}

Sharing combine(const Sharing& a, const Sharing& b) {
  if (!a.is_part) return b;
  if (!b.is_part) return a;
  if (a.group.size() != b.group.size() || a.group.rank() != b.group.rank()) {
    throw UsageError(join_message("one module is cut among ", a.group.size(),
                                  " ranks, where this is ", a.group.rank(), ", the other among ",
                                  b.group.size(), ", where it is ", b.group.rank()),
                     "give both plans the same shard_ranks, or an optimizer each");
  }
  return {.group = a.group, .is_part = [a, b](const at::Tensor& parameter) {
            return a.is_part(parameter) || b.is_part(parameter);
          }};
}

double global_norm(const torch::optim::Optimizer& optimizer, const Sharing& sharing) {
  return std::sqrt(sum_of_squares(optimizer, sharing).value());
}

double global_maximum(const torch::optim::Optimizer& optimizer, const Sharing& given) {
  const at::NoGradGuard no_grad;
  const Sharing sharing = detail::complete_sharing(given, optimizer);
  std::array<double, 2> found = {0, 0};  // the largest magnitude; 1 if there is a NaN
  for_each_counted(optimizer, sharing, [&](const at::Tensor& gradient) {
    const double largest = detail::largest_magnitude(gradient);
    found[1] = std::isnan(largest) ? 1 : found[1];
    // fmax ignores NaN, which is recorded separately: a maximum over ranks would not propagate it
    // reliably.
    found[0] = std::fmax(found[0], largest);
  });
  if (sharing.is_part) {
    comm::all_reduce(at::from_blob(found.data(), {2}, at::kDouble), sharing.group,
                     comm::ReduceOp::kMaximum, "largest gradient");
  }
  return found[1] != 0 ? std::nan("") : found[0];
}

bool all_finite(const torch::optim::Optimizer& optimizer, const Sharing& sharing) {
  return std::isfinite(global_maximum(optimizer, sharing));
}

double clip_by_global_norm(torch::optim::Optimizer& optimizer, double max_norm,
                           const Sharing& sharing) {
  detail::check_max_norm(max_norm, "clip_by_global_norm");
  const double norm = global_norm(optimizer, sharing);
  const double factor = detail::clip_factor(max_norm, norm);
  if (factor == 1) return norm;
  const at::NoGradGuard no_grad;
  for_each_trained(optimizer,
                   [&](const at::Tensor& parameter) { parameter.mutable_grad().mul_(factor); });
  return norm;
}

}  // namespace trireme
