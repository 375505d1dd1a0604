// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/gradients.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/optim/counted_gradients.h>
#include <trireme/optim/exact_sum.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/dry_run/dry_run.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cmath>
#include <vector>

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

// Returns the norm of all gradients, one number on their accelerator, which is not waited for.
at::Tensor norm_on_device(const torch::optim::Optimizer& optimizer, const Sharing& given,
                          at::Device device) {
  const at::NoGradGuard no_grad;
  const Sharing sharing = detail::complete_sharing(given, optimizer);
  std::vector<at::Tensor> squares = {at::zeros({}, at::dtype(at::kDouble).device(device))};
  for_each_counted(optimizer, sharing, [&](const at::Tensor& gradient) {
    squares.push_back(detail::sum_of_squares_on_device(gradient).to(device, /*non_blocking=*/true));
  });
  const at::Tensor sum = at::stack(squares).sum();
  if (sharing.is_part) {
    comm::all_reduce(sum, sharing.group, comm::ReduceOp::kSum, "sum of squares");
  }
  return sum.sqrt();
}

// Multiplies a gradient by one number on some device. By mul_, as torch's clip_grad_norm_ does, it
// would be taken for that (parallel/zero/part_norm_check.h).
void scale_by(const at::Tensor& gradient, const at::Tensor& factor) {
  const at::Tensor own = has_layout(gradient) ? to_local(gradient) : gradient;
  const at::Tensor values = own.is_sparse() ? own._values() : own;
  at::Tensor result = values;
  at::mul_out(result, values, factor.to(values.device(), /*non_blocking=*/true));
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
  const at::Device device = detail::device_of(optimizer);
  if (!device.is_cpu()) return norm_on_device(optimizer, sharing, device).item<double>();
  return std::sqrt(sum_of_squares(optimizer, sharing).value());
}

double global_maximum(const torch::optim::Optimizer& optimizer, const Sharing& given) {
  const at::NoGradGuard no_grad;
  const Sharing sharing = detail::complete_sharing(given, optimizer);
  const at::Device device = detail::device_of(optimizer);
  std::vector<at::Tensor> maxima = {at::zeros({}, at::dtype(at::kDouble).device(device))};
  for_each_counted(optimizer, sharing, [&](const at::Tensor& gradient) {
    maxima.push_back(detail::largest_magnitude(gradient).to(device, /*non_blocking=*/true));
  });
  const auto largest = at::stack(maxima).max().item<double>();  // NaN if there is one
  // A maximum over ranks would not propagate NaN reliably, so it travels as a number of its own.
  std::array<double, 2> found = {std::isnan(largest) ? 0 : largest, std::isnan(largest) ? 1.0 : 0};
  if (sharing.is_part) {
    comm::all_reduce(at::from_blob(found.data(), {2}, at::kDouble), sharing.group,
                     comm::ReduceOp::kMaximum, "largest gradient");
  }
  return found[1] != 0 ? std::nan("") : found[0];
}

bool all_finite(const torch::optim::Optimizer& optimizer, const Sharing& sharing) {
  return std::isfinite(global_maximum(optimizer, sharing));
}

at::Tensor clip_by_global_norm(torch::optim::Optimizer& optimizer, double max_norm,
                               const Sharing& sharing) {
  detail::check_max_norm(max_norm, "clip_by_global_norm");
  if (tensor::DryRun::of_thread() != nullptr) return at::scalar_tensor(max_norm, at::kDouble);
  const at::NoGradGuard no_grad;
  if (const at::Device device = detail::device_of(optimizer); !device.is_cpu()) {
    const at::Tensor norm = norm_on_device(optimizer, sharing, device);
    const at::Tensor factor = detail::clip_factor(max_norm, norm);
    for_each_trained(optimizer,
                     [&](const at::Tensor& parameter) { scale_by(parameter.grad(), factor); });
    return norm;
  }
  const double norm = global_norm(optimizer, sharing);
  const double factor = detail::clip_factor(max_norm, norm);
  if (factor != 1) {
    for_each_trained(optimizer,
                     [&](const at::Tensor& parameter) { parameter.mutable_grad().mul_(factor); });
  }
  return at::scalar_tensor(norm, at::kDouble);
}

}  // namespace trireme
