// SPDX-License-Identifier: Apache-2.0
// A function of tensors to check with every placement of its inputs, and values to give it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {

using Tensors = std::vector<torch::Tensor>;

/// One function to check. `inputs` are double precision where gradients are wanted.
struct OperatorCase {
  std::string name;
  std::function<Tensors(const Tensors&)> function;
  Tensors inputs;
  bool has_gradient = true;    ///< of the floating-point inputs
  bool takes_partial = true;   ///< give inputs as partial results too
  bool cuts_gradients = true;  ///< give gradients of results in every placement
  double bound = 1e-11;        ///< relative and absolute; 0 for equal bits
};

/// A case with one result.
inline OperatorCase one(std::string name,
                        const std::function<torch::Tensor(const Tensors&)>& function,
                        Tensors inputs) {
  return {.name = std::move(name),
          .function = [function](const Tensors& in) { return Tensors{function(in)}; },
          .inputs = std::move(inputs)};
}

/// A case with one result that has no gradient.
inline OperatorCase without_gradient(std::string name,
                                     const std::function<torch::Tensor(const Tensors&)>& function,
                                     Tensors inputs) {
  OperatorCase made = one(std::move(name), function, std::move(inputs));
  made.has_gradient = false;
  return made;
}

/// Values that differ, of both signs, with exact sums in double precision.
inline torch::Tensor sample(torch::IntArrayRef sizes, torch::ScalarType dtype = torch::kDouble) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  const auto numbers = torch::arange(count, torch::kLong);
  return ((numbers * 37 + 11).remainder(64) - 29)
      .to(dtype)
      .div(dtype == torch::kLong ? 1 : 16)
      .to(dtype)
      .reshape(sizes);
}

}  // namespace trireme::test
