// SPDX-License-Identifier: Apache-2.0
// Defines which gradients of an optimizer a rank counts. All computations over the gradients of all
// ranks (gradients.h, post_validation.h) use it, so that they give the same bits.
#pragma once

#include <trireme/optim/exact_sum.h>
#include <trireme/optim/gradients.h>

#include <ATen/core/Tensor.h>

#include <functional>

namespace trireme::detail {

using VisitTensor = std::function<void(const at::Tensor&)>;

/// Calls visit(parameter) for each parameter that has a gradient. Tied parameters that are listed
/// twice are visited once.
void for_each_trained(const torch::optim::Optimizer& optimizer, const VisitTensor& visit);

/// Returns `given`, or, if it is empty, the Sharing that follows from the layouts of distributed
/// gradients. Throws UsageError if these are distributed on two meshes, or if `given` is empty and
/// the optimizer steps partial tensors (partial_tensors.h).
Sharing complete_sharing(const Sharing& given, const torch::optim::Optimizer& optimizer);

/// Calls visit(gradient) for each gradient that this rank counts. Collective if a distributed
/// gradient has pending partial sums.
/// @param optimizer the optimizer whose gradients are counted.
/// @param sharing the result of complete_sharing().
/// @param visit called with this rank's part of each gradient.
void for_each_counted(const torch::optim::Optimizer& optimizer, const Sharing& sharing,
                      const VisitTensor& visit);

/// Adds the squares of all elements to `sum`. Waits for the device of the gradient.
void add_squares(const at::Tensor& gradient, ExactSumOfSquares& sum);

/// Returns the sum of the squares of all elements, one number in fp64 on the device of the
/// gradient, which is not waited for.
at::Tensor sum_of_squares_on_device(const at::Tensor& gradient);

/// Returns the largest magnitude of all elements: 0 if there are none, NaN if one of them is NaN.
/// One number in fp64 on the device of the gradient, which is not waited for.
at::Tensor largest_magnitude(const at::Tensor& gradient);

/// Returns the device of the first parameter that the optimizer steps; the CPU if it steps none.
at::Device device_of(const torch::optim::Optimizer& optimizer);

/// Throws UsageError unless `max_norm` is above 0.
/// @param max_norm the maximum norm.
/// @param who the name of the caller, for the message.
void check_max_norm(double max_norm, const char* who);

/// Returns the factor that reduces gradients with the given norm to at most max_norm. Returns 1 if
/// they must not be changed.
double clip_factor(double max_norm, double norm);
/// The same for a norm on a device, which is not waited for.
at::Tensor clip_factor(double max_norm, const at::Tensor& norm);

}  // namespace trireme::detail
