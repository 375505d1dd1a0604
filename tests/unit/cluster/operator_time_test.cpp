// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/operator_time.h>

#include <trireme/base/error.h>

#include <gtest/gtest.h>

namespace trireme::cluster {
namespace {

DeviceKind device() {
  return {.name = "gpu",
          .teraflops = {.float32 = 10, .bfloat16 = 100},
          .memory_gib = 16,
          .memory_gb_per_s = 1000,
          .kernel_us = 5,
          .efficiency = {.product = 0.5, .half_product_gigaflops = 10, .memory = 0.5}};
}

TEST(OperatorTime, OfElementsIsThatOfTheirBytes) {
  EXPECT_NEAR(seconds(device(), {.bytes = 1e9}), 1e9 / 500e9 + 5e-6, 1e-12);
}

TEST(OperatorTime, OfALargeProductReachesItsShareOfThePeak) {
  const OperatorWork work = {.kind = OperatorKind::kProduct, .flops = 1e15, .dtype = "bfloat16"};
  EXPECT_NEAR(seconds(device(), work), 1e15 / 50e12, 0.001);
}

TEST(OperatorTime, OfASmallProductIsSlower) {
  const OperatorWork work = {.kind = OperatorKind::kProduct, .flops = 10e9, .dtype = "bfloat16"};
  EXPECT_NEAR(seconds(device(), work), 10e9 / 25e12 + 5e-6, 1e-9);
}

TEST(OperatorTime, OfAThinProductIsThatOfItsBytes) {
  const OperatorWork work = {
      .kind = OperatorKind::kProduct, .flops = 1e9, .bytes = 1e9, .dtype = "bfloat16"};
  EXPECT_NEAR(seconds(device(), work), 1e9 / 500e9 + 5e-6, 1e-9);
}

TEST(OperatorTime, OfAnEmptyKernelIsItsFloor) { EXPECT_NEAR(seconds(device(), {}), 5e-6, 1e-12); }

TEST(OperatorTime, FollowsAMeasuredCurve) {
  const MeasuredProducts curve = {
      .device = "gpu", .dtype = "float32", .gigaflops = {1, 100}, .teraflops = {2, 8}};
  const auto rate = [&](double flops) {
    const OperatorWork work = {.kind = OperatorKind::kProduct, .flops = flops};
    return flops / (seconds(device(), work, &curve) - 5e-6) / 1e12;
  };
  EXPECT_NEAR(rate(1e9), 2, 1e-6);
  EXPECT_NEAR(rate(10e9), 5, 1e-6);
  EXPECT_NEAR(rate(1e12), 8, 1e-6);
  // Below the smallest measured product, its time is the floor.
  EXPECT_NEAR(rate(0.5e9), 1, 1e-6);
}

TEST(OperatorTime, RefusesADtypeWithoutAPeak) {
  const OperatorWork work = {.kind = OperatorKind::kProduct, .flops = 1, .dtype = "float16"};
  EXPECT_THROW((void)seconds(device(), work), UsageError);
}

}  // namespace
}  // namespace trireme::cluster
