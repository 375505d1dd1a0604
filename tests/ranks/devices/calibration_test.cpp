// SPDX-License-Identifier: Apache-2.0
// Calibrations of an accelerator: figures that are there and can be, and what is restored.
#include <trireme/predict/calibration/accelerator_samples.h>
#include <trireme/predict/calibration/link_samples.h>
#include <trireme/predict/calibration/operator_samples.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/devices/test_device.h>
#include <torch/torch.h>

#include <algorithm>

namespace trireme::predict {
namespace {

using testing::test_device;

TEST(CalibrationOfAnAccelerator, MeasuresWhatARooflineNeeds) {
  const cluster::DeviceKind kind =
      sample_accelerator("accelerator", test_device(0), comm::Group::self());
  EXPECT_EQ(kind.name, "accelerator");
  EXPECT_GT(kind.kernel_us, 0);
  EXPECT_GT(kind.teraflops.float32, 0);
  EXPECT_GT(kind.teraflops.bfloat16, 0);
  EXPECT_GT(kind.memory_gb_per_s, 0);
  EXPECT_GT(kind.host_gb_per_s, 0);
  EXPECT_GE(kind.efficiency.half_product_gigaflops, 0);
  EXPECT_GT(kind.attention_share, 0);
  EXPECT_LE(kind.attention_share, 1);
}

TEST(CalibrationOfAnAccelerator, TimesOperatorsOfForwardAndBackward) {
  torch::nn::Sequential layers(torch::nn::Linear(64, 64), torch::nn::GELU(),
                               torch::nn::Linear(64, 16));
  const at::Device device = test_device(0);
  layers->to(device);
  const at::Tensor input = torch::randn({32, 64}, device);
  const NetworkSamples samples = sample_network(
      layers, [&] { return layers->forward(input).square().mean(); }, 3, comm::Group::self());
  const auto count = [&](const std::string& name) {
    return std::ranges::count(samples.operators, name, &OperatorSample::name);
  };
  EXPECT_EQ(count("aten::addmm"), 2);
  EXPECT_EQ(count("aten::gelu"), 1);
  EXPECT_EQ(count("aten::gelu_backward"), 1);
  for (const OperatorSample& sample : samples.operators) EXPECT_GT(sample.seconds, 0);
  EXPECT_TRUE(c10::AutogradState::get_tls_state().get_multithreading_enabled());
  for (const at::Tensor& parameter : layers->parameters()) {
    EXPECT_EQ(parameter.device(), device);
    EXPECT_FALSE(parameter.grad().defined());
  }
}

TEST(CalibrationOfAnAccelerator, TimesCollectivesOfDeviceTensors) {
  testing::run_device_ranks(2, [](const comm::Group& group, at::Device device) {
    const auto samples = sample_links(group, device);
    EXPECT_EQ(samples.size(), 6U);
    for (const cluster::MeasuredCollective& sample : samples) {
      EXPECT_TRUE(sample.curve.is_valid()) << sample.name;
    }
  });
}

}  // namespace
}  // namespace trireme::predict
