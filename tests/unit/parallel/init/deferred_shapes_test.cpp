// SPDX-License-Identifier: Apache-2.0
// Deferred tensors that never get values, for programs whose step is predicted.
#include <trireme/parallel/init/construction.h>
#include <trireme/parallel/init/deferred.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace trireme {
namespace {

using detail::Deferral;
using detail::DeferredScope;
using detail::is_deferred;

constexpr std::int64_t kLarge = std::int64_t{1} << 34;  // numbers: 64 GiB

TEST(DeferredShapes, LargeTensorsHaveNoMemory) {
  const DeferredScope scope(Deferral::kShapes);
  const at::Tensor weight = torch::randn({kLarge / 4, 4}) * 0.02;
  EXPECT_TRUE(is_deferred(weight));
  EXPECT_EQ(weight.numel(), kLarge);
  EXPECT_TRUE(is_deferred(weight.t().contiguous()));
}

TEST(DeferredShapes, SmallTensorsHaveTheirNumbers) {
  const DeferredScope scope(Deferral::kShapes);
  const at::Tensor points = torch::randn({100});
  EXPECT_FALSE(is_deferred(points));
  EXPECT_GT(points.abs().sum().item<double>(), 0);
}

TEST(DeferredShapes, WhatIsWrittenThroughAPointerIsKept) {
  const DeferredScope scope(Deferral::kShapes);
  const at::Tensor images = torch::empty({1 << 20}, torch::kFloat);
  EXPECT_TRUE(is_deferred(images));
  auto* const values = images.mutable_data_ptr<float>();
  values[0] = 3;
  values[(1 << 20) - 1] = 4;
  EXPECT_EQ(images.sum().item<float>(), 7);
  EXPECT_FALSE(is_deferred(images));
  EXPECT_EQ((images * 2).max().item<float>(), 8);
}

TEST(DeferredShapes, MemoryIsGivenBackWithTheTensor) {
  const DeferredScope scope(Deferral::kShapes);
  // More addresses than a process has, one tensor after the other.
  for (int i = 0; i < 10'000; ++i) {
    const at::Tensor tensor = torch::empty({kLarge});
    EXPECT_NE(tensor.const_data_ptr(), nullptr);
  }
}

}  // namespace
}  // namespace trireme
