// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/gradients.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/optim/exact_sum.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_real.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cmath>
#include <span>
#include <unordered_set>

namespace trireme {
namespace {

// Calls visit(parameter) for each that has a gradient.
template <typename Visit>
void for_each_trained(const torch::optim::Optimizer& optimizer, const Visit& visit) {
  std::unordered_set<const c10::TensorImpl*> seen;  // tied parameters may be listed twice
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) {
        continue;
      }
      visit(parameter);
    }
  }
}

// The given one, or what layouts say of gradients that are distributed.
Sharing complete(const Sharing& sharing, const torch::optim::Optimizer& optimizer) {
  if (sharing.is_part) return sharing;
  DeviceMesh mesh;
  for_each_trained(optimizer, [&](const at::Tensor& parameter) {
    if (!has_layout(parameter.grad())) return;
    const DeviceMesh its = layout_of(parameter.grad()).mesh();
    if (mesh.defined() && its != mesh) {
      throw UsageError(join_message("gradients of one optimizer are distributed on two meshes, [",
                                    mesh.to_string(), "] and [", its.to_string(), "]"),
                       "take an optimizer for each, or give the Sharing of their Parallelized");
    }
    mesh = its;
  });
  if (!mesh.defined()) return sharing;
  return {.group = mesh.group(), .is_part = [](const at::Tensor& parameter) {
            const at::Tensor& gradient = parameter.grad();
            return has_layout(gradient) && is_first_holder(layout_of(gradient));
          }};
}

// This rank's part of a distributed gradient, which is no sum still to be made.
at::Tensor part_of(const at::Tensor& gradient) {
  if (!has_layout(gradient)) return gradient;
  Layout layout = layout_of(gradient);
  if (!layout.has_partial()) return to_local(gradient.detach());
  for (int axis = 0; axis < layout.mesh().num_axes(); ++axis) {
    if (layout[axis].is_partial()) layout = layout.with(axis, Replicate{});
  }
  return to_local(redistribute(gradient.detach(), layout));
}

// Calls visit(gradient) for each that this rank is to count.
template <typename Visit>
void for_each_counted(const torch::optim::Optimizer& optimizer, const Sharing& sharing,
                      const Visit& visit) {
  for_each_trained(optimizer, [&](const at::Tensor& parameter) {
    const at::Tensor part = part_of(parameter.grad());  // collective where it is a sum
    // What every rank has is counted by the first one, where ranks add up.
    if (!sharing.is_part || sharing.is_part(parameter) || sharing.group.rank() == 0) visit(part);
  });
}

// Of a sparse one those that it has: each element counts once, also where its index comes twice.
at::Tensor values_of(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient.detach().coalesce().values() : gradient.detach();
}

// The elements in some order, on the CPU.
at::Tensor elements(const at::Tensor& gradient) {
  const at::Tensor present = values_of(gradient);
  const at::Tensor detached =
      present.is_complex() ? at::view_as_real(present.resolve_conj()) : present;
  const at::Tensor flat = detached.is_non_overlapping_and_dense()
                              ? detached.as_strided({detached.numel()}, {1})
                              : detached.flatten();
  const at::ScalarType type = detached.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return flat.to(at::kCPU, type);
}

template <typename Number>
std::span<const Number> numbers_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<Number>(), static_cast<std::size_t>(tensor.numel())};
}

detail::ExactSumOfSquares sum_of_squares(const torch::optim::Optimizer& optimizer,
                                         const Sharing& given) {
  const at::NoGradGuard no_grad;
  const Sharing sharing = complete(given, optimizer);
  detail::ExactSumOfSquares sum;
  for_each_counted(optimizer, sharing, [&](const at::Tensor& gradient) {
    const at::Tensor flat = elements(gradient);
    flat.scalar_type() == at::kDouble ? sum.add(numbers_of<double>(flat))
                                      : sum.add(numbers_of<float>(flat));
  });
  if (sharing.is_part) {
    const auto words = sum.words();
    const at::Tensor all =
        at::from_blob(words.data(), {static_cast<std::int64_t>(words.size())}, at::kLong);
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
  const Sharing sharing = complete(given, optimizer);
  std::array<double, 2> found = {0, 0};  // the largest, and whether one is not a number
  for_each_counted(optimizer, sharing, [&](const at::Tensor& gradient) {
    const at::Tensor values = values_of(gradient);
    if (values.numel() == 0) return;
    const double largest = values.abs().max().item<double>();
    found[1] = std::isnan(largest) ? 1 : found[1];
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
  if (!(max_norm > 0)) {
    throw UsageError(join_message("clip_by_global_norm was given a norm of ", max_norm),
                     "give one above 0");
  }
  const double norm = global_norm(optimizer, sharing);
  const double factor = max_norm / (norm + 1e-6);
  if (!std::isfinite(norm) || factor >= 1) return norm;
  const at::NoGradGuard no_grad;
  for_each_trained(optimizer,
                   [&](const at::Tensor& parameter) { parameter.mutable_grad().mul_(factor); });
  return norm;
}

}  // namespace trireme
