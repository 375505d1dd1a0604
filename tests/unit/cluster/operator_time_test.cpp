// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/operator_time.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>

namespace trireme::cluster {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

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
  const Curve curve = {.sizes = {1, 100}, .microseconds = {500, 12500}};
  const auto of_product = [&](double flops) {
    const OperatorWork work = {.kind = OperatorKind::kProduct, .flops = flops};
    return seconds(device(), work, &curve) - 5e-6;
  };
  EXPECT_NEAR(of_product(1e9), 500e-6, 1e-9);
  EXPECT_NEAR(of_product(10e9), 2500e-6, 1e-9);
  EXPECT_NEAR(of_product(1e12), 125e-3, 1e-9);
  // Below the smallest measured product, its time is the floor.
  EXPECT_NEAR(of_product(0.5e9), 500e-6, 1e-9);
  EXPECT_NEAR(seconds(device(), {.bytes = 10e6}, &curve) - 5e-6, 2500e-6, 1e-9);
}

TEST(OperatorTime, FindsCurvesByDeviceNameAndDtype) {
  const Curve curve = {.sizes = {1}, .microseconds = {1}};
  Cluster cluster;
  cluster.operators = {{.device = "gpu", .name = "aten::gelu", .dtype = "float32", .curve = curve},
                       {.device = "gpu", .name = "aten::add", .dtype = "bfloat16", .curve = curve}};
  EXPECT_EQ(measured_operator(cluster, "gpu", "aten::gelu", {}), &cluster.operators[0].curve);
  EXPECT_EQ(measured_operator(cluster, "gpu", "aten::add.Tensor", {.dtype = "bfloat16"}),
            &cluster.operators[1].curve);
  EXPECT_EQ(measured_operator(cluster, "gpu", "aten::add.Tensor", {}), nullptr);
  EXPECT_EQ(measured_operator(cluster, "cpu", "aten::gelu", {}), nullptr);
}

TEST(OperatorTime, OfAnOptimizerIsTheSumOverItsTensors) {
  Cluster cluster;
  const double bytes[] = {1e6, 10e6};
  EXPECT_FALSE(optimizer_seconds(cluster, "gpu", "adam", bytes));
  cluster.optimizers = {
      {.device = "gpu", .name = "adam", .curve = {.sizes = {1}, .microseconds = {100}}}};
  EXPECT_NEAR(optimizer_seconds(cluster, "gpu", "adam", bytes).value(), 1100e-6, 1e-9);
}

TEST(OperatorTime, RefusesADtypeWithoutAPeak) {
  const OperatorWork work = {.kind = OperatorKind::kProduct, .flops = 1, .dtype = "float16"};
  EXPECT_THROW((void)seconds(device(), work), UsageError);
}

TEST(PeakFlops, OfSeveralRanksIsTheSumOverTheirDevices) {
  DeviceKind slow = device();
  slow.name = "old";
  slow.teraflops = {.float32 = 1};
  const Cluster cluster = {.name = "lab",
                           .devices = {device(), slow},
                           .hosts = {{.count = 2, .devices = 4, .device = "gpu"},
                                     {.count = 1, .devices = 4, .device = "old"}}};
  EXPECT_EQ(peak_flops(cluster, 1, "bfloat16"), 100e12);
  EXPECT_EQ(peak_flops(cluster, 6, "float32"), 60e12);
  EXPECT_EQ(peak_flops(cluster, 10, "float32"), 82e12);
  EXPECT_EQ(peak_flops(cluster, 8, "bfloat16"), 800e12);
  EXPECT_THAT([&] { (void)peak_flops(cluster, 9, "bfloat16"); },
              ThrowsMessage<UsageError>(
                  HasSubstr("device old has no peak rate for products in bfloat16\n  hint: add "
                            "teraflops.bfloat16 to its description")));
  EXPECT_THAT([&] { (void)peak_flops(cluster, 13, "float32"); },
              ThrowsMessage<UsageError>(
                  HasSubstr("cluster lab has 12 devices, and 13 ranks need one each")));
}

}  // namespace
}  // namespace trireme::cluster
