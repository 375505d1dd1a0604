// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/counted_gradients.h>

#include <trireme/base/error.h>
#include <trireme/optim/partial_tensors.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <span>
#include <unordered_set>

namespace trireme::detail {
namespace {

// Returns this rank's part of a distributed gradient. A gradient with pending partial sums is
// reduced first, which is collective.
at::Tensor own_part_of(const at::Tensor& gradient) {
  if (!has_layout(gradient)) return gradient;
  const Layout layout = layout_of(gradient);
  if (!layout.has_partial()) return to_local(gradient.detach());
  return to_local(redistribute(gradient.detach(), layout.without_partial()));
}

// Returns the values of a gradient. For a sparse one, these are its stored values, and values of
// equal indices are added so that each element counts once.
at::Tensor present_values(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient.detach().coalesce().values() : gradient.detach();
}

// Returns the values of a gradient as real numbers.
at::Tensor real_values(const at::Tensor& gradient) {
  const at::Tensor present = present_values(gradient);
  return present.is_complex() ? at::view_as_real(present.resolve_conj()) : present;
}

// Returns the elements in some order, on the CPU, in fp32 or fp64.
at::Tensor elements_of(const at::Tensor& gradient) {
  const at::Tensor detached = real_values(gradient);
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

}  // namespace

void for_each_trained(const torch::optim::Optimizer& optimizer, const VisitTensor& visit) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) {
        continue;
      }
      visit(parameter);
    }
  }
}

Sharing complete_sharing(const Sharing& given, const torch::optim::Optimizer& optimizer) {
  if (given.is_part) return given;
  if (steps_partial_tensors(optimizer)) {
    throw UsageError(
        "the optimizer steps parts of a model, as ZeRO and pipelines give them to each rank, and a "
        "function of all its gradients was given no Sharing that says so: every rank would find "
        "the norm of its own parts",
        "give it sharing() of the Parallelized or the TrainingStep, as in "
        "clip_by_global_norm(optimizer, max_norm, parallelized.sharing())");
  }
  DeviceMesh mesh;
  for_each_trained(optimizer, [&](const at::Tensor& parameter) {
    if (!has_layout(parameter.grad())) return;
    const DeviceMesh own_mesh = layout_of(parameter.grad()).mesh();
    if (mesh.defined() && own_mesh != mesh) {
      throw UsageError(join_message("gradients of one optimizer are distributed on two meshes, [",
                                    mesh.to_string(), "] and [", own_mesh.to_string(), "]"),
                       "take an optimizer for each, or give the Sharing of their Parallelized");
    }
    mesh = own_mesh;
  });
  if (!mesh.defined()) return given;
  return {.group = mesh.group(), .is_part = [](const at::Tensor& parameter) {
            const at::Tensor& gradient = parameter.grad();
            return has_layout(gradient) && is_first_holder(layout_of(gradient));
          }};
}

void for_each_counted(const torch::optim::Optimizer& optimizer, const Sharing& sharing,
                      const VisitTensor& visit) {
  for_each_trained(optimizer, [&](const at::Tensor& parameter) {
    const at::Tensor part = own_part_of(parameter.grad());  // collective for partial sums
    // If ranks add their results, a gradient that every rank has is counted only by rank 0.
    if (!sharing.is_part || sharing.is_part(parameter) || sharing.group.rank() == 0) visit(part);
  });
}

void add_squares(const at::Tensor& gradient, ExactSumOfSquares& sum) {
  const at::Tensor flat = elements_of(gradient);
  flat.scalar_type() == at::kDouble ? sum.add(numbers_of<double>(flat))
                                    : sum.add(numbers_of<float>(flat));
}

at::Tensor sum_of_squares_on_device(const at::Tensor& gradient) {
  return at::linalg_vector_norm(real_values(gradient), 2, std::nullopt, false, at::kDouble)
      .square();
}

at::Tensor largest_magnitude(const at::Tensor& gradient) {
  const at::Tensor values = present_values(gradient);
  if (values.numel() == 0) return at::zeros({}, values.options().dtype(at::kDouble));
  return values.abs().max().to(at::kDouble);
}

at::Device device_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) return group.params().front().device();
  }
  return at::kCPU;
}

void check_max_norm(double max_norm, const char* who) {
  if (max_norm > 0) return;
  throw UsageError(join_message(who, " was given a norm of ", max_norm), "give one above 0");
}

double clip_factor(double max_norm, double norm) {
  const double factor = max_norm / (norm + 1e-6);
  return !std::isfinite(norm) || factor >= 1 ? 1 : factor;
}

at::Tensor clip_factor(double max_norm, const at::Tensor& norm) {
  const at::Tensor one = at::ones_like(norm);
  return at::where(norm.isfinite(), at::minimum(max_norm / (norm + 1e-6), one), one);
}

}  // namespace trireme::detail
