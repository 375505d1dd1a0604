// SPDX-License-Identifier: Apache-2.0
// What a rank counts of the gradients of an optimizer, for all that is computed of them over ranks
// (gradients.h, post_validation.h), so that it comes to the same bits.
#pragma once

#include <trireme/optim/exact_sum.h>
#include <trireme/optim/gradients.h>

#include <ATen/core/Tensor.h>

#include <functional>

namespace trireme::detail {

using VisitTensor = std::function<void(const at::Tensor&)>;

/// Calls visit(parameter) for each that has a gradient: once, where tied ones are listed twice.
void for_each_trained(const torch::optim::Optimizer& optimizer, const VisitTensor& visit);

/// The given one, or what layouts say of gradients that are distributed. Throws UsageError where
/// these are on two meshes, and where the given one has no parts and the optimizer steps some.
Sharing complete_sharing(const Sharing& given, const torch::optim::Optimizer& optimizer);

/// Calls visit(gradient) for each that this rank is to count. Collective where one is a sum over a
/// mesh that is still to be made.
/// @param sharing a complete one.
void for_each_counted(const torch::optim::Optimizer& optimizer, const Sharing& sharing,
                      const VisitTensor& visit);

/// Adds the squares of all elements.
void add_squares(const at::Tensor& gradient, ExactSumOfSquares& sum);

/// Of all elements, 0 where there are none; not a number where one of them is not.
double largest_magnitude(const at::Tensor& gradient);

/// Throws UsageError unless it is above 0. @param who was given it.
void check_max_norm(double max_norm, const char* who);

/// By what gradients of a norm are multiplied so that theirs is at most max_norm; 1 where they are
/// to be left alone.
double clip_factor(double max_norm, double norm);

}  // namespace trireme::detail
