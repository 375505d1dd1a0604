// SPDX-License-Identifier: Apache-2.0
// Calibrations of an accelerator: figures that are there and can be, what is restored, and ranks
// that disagree.
#include <trireme/base/error.h>
#include <trireme/predict/calibration/accelerator_samples.h>
#include <trireme/predict/calibration/calibrate.h>
#include <trireme/predict/calibration/link_samples.h>
#include <trireme/predict/calibration/operator_samples.h>
#include <trireme/predict/calibration/stopwatch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/devices/test_device.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::predict {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using testing::test_device;

// The fake device computes on the CPU, where the sizes of accelerators take seconds.
AcceleratorSampling small_sampling() {
  return {.repetitions = 2, .largest_product = 256, .numbers = 1 << 16, .sequence = 64};
}

TEST(CalibrationOfAnAccelerator, MeasuresWhatARooflineNeeds) {
  const cluster::DeviceKind kind =
      sample_accelerator("accelerator", test_device(0), comm::Group::self(), small_sampling());
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

// The rank without bf16 went on to measure memory while the other one waited for its product.
TEST(CalibrationOfAnAccelerator, LeavesOutADtypeThatFailsOnOneRank) {
  testing::run_device_ranks(2, [](const comm::Group& group, at::Device device) {
    AcceleratorSampling sampling = small_sampling();
    sampling.multiply = [&](at::Tensor& product, const at::Tensor& matrix) {
      TORCH_CHECK(group.rank() == 0 || product.scalar_type() != at::kBFloat16, "no bf16 here");
      at::mm_out(product, matrix, matrix);
    };
    const cluster::DeviceKind kind = sample_accelerator("accelerator", device, group, sampling);
    EXPECT_GT(kind.teraflops.float32, 0);
    EXPECT_GT(kind.teraflops.float16, 0);
    EXPECT_EQ(kind.teraflops.bfloat16, 0);
    EXPECT_GT(kind.memory_gb_per_s, 0);
  });
}

// The fast rank went on to the next size while the slow one began with the next dtype.
TEST(CalibrationOfAnAccelerator, EndsTheSizesOfProductsWhenTheSlowestRankDoes) {
  std::array<std::vector<std::int64_t>, 2> rows;
  std::array<cluster::DeviceKind, 2> kinds;
  testing::run_device_ranks(2, [&](const comm::Group& group, at::Device device) {
    const auto rank = static_cast<std::size_t>(group.rank());
    AcceleratorSampling sampling = small_sampling();
    sampling.largest_product = 512;
    sampling.longest_product_seconds = 0.005;
    const std::chrono::duration<double> longer(2 * sampling.longest_product_seconds);
    sampling.multiply = [&](at::Tensor& product, const at::Tensor& matrix) {
      rows[rank].push_back(product.size(0));
      const auto began = std::chrono::steady_clock::now();
      do {
        at::mm_out(product, matrix, matrix);
        synchronize(device);
      } while (rank == 1 && std::chrono::steady_clock::now() - began < longer);
    };
    kinds[rank] = sample_accelerator("accelerator", device, group, sampling);
  });
  EXPECT_THAT(rows[0], AllOf(Not(IsEmpty()), Each(256)));
  EXPECT_EQ(rows[0], rows[1]);
  EXPECT_EQ(kinds[0].teraflops.float32, kinds[1].teraflops.float32);
}

// A single size is always at the peak. It fits 0, and the two sizes of bf16 something above it.
TEST(CalibrationOfAnAccelerator, FitsTheHalfProductToTheDtypeWithTheHighestPeak) {
  AcceleratorSampling sampling = small_sampling();
  sampling.repetitions = 5;
  sampling.largest_product = 512;
  sampling.longest_product_seconds = 60;
  constexpr std::int64_t kFirst = 256;
  sampling.multiply = [&](at::Tensor& product, const at::Tensor& matrix) {
    const bool is_first = product.size(0) == kFirst;
    if (product.scalar_type() != at::kBFloat16) {
      TORCH_CHECK(is_first, "no larger product here");
      at::mm_out(product, matrix, matrix);
      return;
    }
    if (!is_first) return;  // nothing reaches a higher peak
    const auto began = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - began < std::chrono::milliseconds(4)) {
    }
  };
  const cluster::DeviceKind kind =
      sample_accelerator("accelerator", test_device(0), comm::Group::self(), sampling);
  EXPECT_GT(kind.teraflops.bfloat16, kind.teraflops.float32);
  EXPECT_GT(kind.efficiency.half_product_gigaflops, 0);
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
    const LinkSampling sampling = {.largest_bytes = 512 << 10, .seconds = 0};
    const auto samples = sample_links(group, device, sampling);
    EXPECT_EQ(samples.size(), 6U);
    for (const cluster::MeasuredCollective& sample : samples) {
      EXPECT_TRUE(sample.curve.is_valid()) << sample.name;
    }
  });
}

#ifdef TRIREME_FAKE_DEVICE
// Asked before anything is measured, which would take minutes here. Allocators of real accelerators
// say what memory they have.
TEST(CalibrationOfAnAccelerator, IsRefusedByAllRanksWithoutTheMemoryOfOne) {
  const auto thrown = testing::run_ranks_catching(2, [](const comm::Group& group) {
    (void)calibrate(group, test_device(group.rank()), group.rank() == 0 ? 1 : 0);
  });
  ASSERT_THAT(thrown, SizeIs(2));
  EXPECT_THAT(testing::message_of<UsageError>(thrown[0]),
              AllOf(HasSubstr("rank 1 could not find out the memory of its device"),
                    HasSubstr("does not say how much memory it has")));
  EXPECT_THAT(testing::message_of<UsageError>(thrown[1]),
              AllOf(HasSubstr("does not say how much memory it has"), HasSubstr("--memory-gib")));
}
#endif

}  // namespace
}  // namespace trireme::predict
