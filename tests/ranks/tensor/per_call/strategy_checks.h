// SPDX-License-Identifier: Apache-2.0
// Operators under strategies beside the same operators in one process: values, layouts, gradients.
#pragma once

#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/operator_strategy.h>

#include <gtest/gtest.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace trireme::test {

using Tensors = std::vector<torch::Tensor>;

/// Numbers that differ and are the same on every rank.
inline torch::Tensor waves(torch::IntArrayRef sizes, double shift = 0) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return torch::sin(torch::arange(count).to(torch::kDouble) + shift).reshape(sizes);
}

/// The tensor as a leaf whose gradient is asked for, if its type has one.
inline torch::Tensor leaf(const torch::Tensor& tensor) {
  return tensor.detach().clone().requires_grad_(tensor.is_floating_point());
}

inline torch::Tensor whole_on(const DeviceMesh& mesh, const torch::Tensor& tensor) {
  return leaf(full_batch(tensor.detach(), mesh));
}

inline void expect_close(const torch::Tensor& actual, const torch::Tensor& expected,
                         const std::string& what) {
  EXPECT_TRUE(torch::allclose(full(actual.detach()), expected.detach(), 1e-9, 1e-11))
      << what << "\n"
      << describe(actual) << "\n"
      << full(actual.detach()) << "\nin place of\n"
      << expected;
}

/// One operator, what it is given, and how that is cut.
struct StrategyCase {
  std::string name;
  std::function<torch::Tensor(const Tensors&)> call;
  Tensors inputs;
  OperatorStrategy strategy;
  std::vector<std::int64_t> result{};  ///< parts of the result; empty: not looked at
};

inline bool is_cut(const std::vector<std::int64_t>& parts) {
  return std::ranges::any_of(parts, [](std::int64_t number) { return number > 1; });
}

/// Compares with one process: the result, and gradients of all inputs; those of inputs that were
/// moved come back as the inputs lay.
inline void check(const StrategyCase& test_case, const DeviceMesh& mesh) {
  SCOPED_TRACE(test_case.name + " " + to_string(test_case.strategy));
  Tensors plain, inputs;
  for (const torch::Tensor& input : test_case.inputs) {
    plain.push_back(leaf(input));
    inputs.push_back(whole_on(mesh, input));
  }
  const auto expected = test_case.call(plain);
  const auto result = with_strategy(test_case.strategy, [&] { return test_case.call(inputs); });
  expect_close(result, expected, test_case.name);
  if (!test_case.result.empty()) {
    EXPECT_EQ(layout_of(result), layout_of_parts(mesh, test_case.result)) << describe(result);
  }
  const auto weights = waves(expected.sizes(), 0.5);
  (expected * weights).sum().backward();
  (result * full_batch(weights, mesh)).sum().backward();
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if (!plain[i].requires_grad()) continue;
    expect_close(inputs[i].grad(), plain[i].grad(),
                 test_case.name + ": gradient of input " + std::to_string(i));
    if (is_cut(test_case.strategy[i])) {
      EXPECT_EQ(layout_of(inputs[i].grad()), layout_of(inputs[i])) << describe(inputs[i].grad());
    }
  }
}

inline void check_on(int ranks, const std::vector<StrategyCase>& cases) {
  testing::run_ranks(ranks, [&](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    for (const StrategyCase& test_case : cases) check(test_case, mesh);
  });
}

}  // namespace trireme::test
