// SPDX-License-Identifier: Apache-2.0
// Tensors of random numbers, and whether two are close.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace trireme::testing {

inline torch::Tensor random_tensor(at::IntArrayRef sizes, c10::ScalarType type,
                                   std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::kDouble).to(type);
}

inline double largest(const torch::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.to(at::kDouble).abs().max().item<double>();
}

// Relative to the largest element that is expected.
inline void expect_close(const torch::Tensor& actual, const torch::Tensor& expected, double bound,
                         const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!actual.defined()) return;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const double difference = largest(actual.to(at::kDouble) - expected.to(at::kDouble));
  EXPECT_LE(difference, bound * std::max(largest(expected), 1e-30)) << what;
}

}  // namespace trireme::testing
