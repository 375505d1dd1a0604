// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/transforms/kernels.h>

#include "samples.h"
#include <trireme/data/detail/pointwise_transforms.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <random>

namespace trireme::data {
namespace {

using detail::Kernels;
using detail::ResizedLine;
using testing::apply;
using testing::random_image;

// Numbers for which each kernel's result is compared, bit by bit, with that of plain loops.
class ImageKernels : public ::testing::TestWithParam<const Kernels*> {
 protected:
  std::vector<std::uint8_t> bytes(std::size_t count) {
    std::vector<std::uint8_t> values(count);
    for (auto& value : values) value = static_cast<std::uint8_t>(engine_() % 256);
    return values;
  }
  std::vector<float> floats(std::size_t count, float low, float high) {
    std::vector<float> values(count);
    for (float& value : values) value = std::uniform_real_distribution<float>(low, high)(engine_);
    return values;
  }
  const Kernels& kernels() const { return *GetParam(); }

  std::mt19937 engine_{std::random_device{}()};
};

void expect_same_bits(const std::vector<float>& values, const std::vector<float>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(expected[i]));
}

TEST_P(ImageKernels, StretchLinesOfAllSizes) {
  for (const std::int64_t from : {1, 2, 3, 7, 8, 9, 31, 32, 33, 100, 500}) {
    const auto in = floats(static_cast<std::size_t>(from) + detail::kLinePadding, 0, 255);
    for (const std::int64_t to : {1, 2, 7, 8, 9, 16, 17, 40, 224, 501}) {
      const ResizedLine line(from, to);
      std::vector<std::uint8_t> out(line.size());
      std::vector<float> reals(line.size());
      kernels().stretch_to_bytes(in.data(), line, out.data());
      kernels().stretch_to_floats(in.data(), line, reals.data());
      for (std::size_t i = 0; i < line.size(); ++i) {
        const auto at = [&](std::int32_t place) { return in[static_cast<std::size_t>(place)]; };
        const float value = at(line.first[i]) * line.weight_of_first[i] +
                            at(line.second[i]) * line.weight_of_second[i];
        ASSERT_EQ(reals[i], value) << from << " to " << to << ", element " << i;
        ASSERT_EQ(int{out[i]}, static_cast<int>(std::floor(value + 0.5F))) << from << " to " << to;
      }
    }
  }
}

TEST_P(ImageKernels, ComputeEachElementAsPlainLoopsDo) {
  for (const std::size_t count : {0U, 1U, 7U, 8U, 33U, 1000U}) {
    const auto x = bytes(count);
    const auto y = bytes(count);
    const auto u = floats(count, -3, 3);
    const auto v = floats(count, -3, 3);
    const float weight = floats(1, 0, 1)[0];
    const auto expect = [&](const auto& run, const auto& value) {
      std::vector<float> out(count);
      std::vector<float> expected(count);
      run(out.data());
      for (std::size_t i = 0; i < count; ++i) expected[i] = value(i);
      expect_same_bits(out, expected);
    };
    expect([&](float* out) { kernels().blend_bytes(x.data(), y.data(), weight, count, out); },
           [&](std::size_t i) {
             return static_cast<float>(x[i]) * (1 - weight) + static_cast<float>(y[i]) * weight;
           });
    expect([&](float* out) { kernels().blend_floats(u.data(), v.data(), weight, count, out); },
           [&](std::size_t i) { return u[i] * (1 - weight) + v[i] * weight; });
    expect([&](float* out) { kernels().rescale_bytes(x.data(), count, 0.3F, -1.7F, out); },
           [&](std::size_t i) { return static_cast<float>(x[i]) * 0.3F + -1.7F; });
    expect([&](float* out) { kernels().rescale_floats(u.data(), count, 0.3F, -1.7F, out); },
           [&](std::size_t i) { return u[i] * 0.3F + -1.7F; });
    expect([&](float* out) { kernels().normalize_bytes(x.data(), count, 0.4F, 0.3F, out); },
           [&](std::size_t i) { return (static_cast<float>(x[i]) - 0.4F) / 0.3F; });
    expect([&](float* out) { kernels().normalize_floats(u.data(), count, 0.4F, 0.3F, out); },
           [&](std::size_t i) { return (u[i] - 0.4F) / 0.3F; });
  }
}

INSTANTIATE_TEST_SUITE_P(All, ImageKernels, ::testing::ValuesIn(detail::runnable_kernels()),
                         [](const auto& sets) { return std::string(sets.param->name); });

TEST(RunPointwise, IsOneOperationAfterTheOther) {
  const std::vector<Transform> transforms = {rescale(1 / 255.0, 0.1), type_cast(at::kDouble),
                                             normalize({0.4, 0.5, 0.6}, {0.2, 0.3, 0.4}),
                                             type_cast(at::kHalf), rescale(3)};
  for (const auto dtype : {at::kByte, at::kFloat, at::kDouble, at::kShort, at::kBool}) {
    const at::Tensor x = random_image({2, 3, 40, 41}, at::kInt).to(dtype);
    at::Tensor expected = x;
    std::vector<detail::PointwiseStep> steps;
    for (const Transform& transform : transforms) {
      steps.push_back({transform.operation()->pointwise(), expected.scalar_type()});
      ASSERT_NE(steps.back().operation, nullptr);
      expected = apply(transform, expected);
    }
    at::Tensor output = at::empty_like(expected);
    detail::run_pointwise(steps, {dtype, at::DimVector(x.sizes())}, expected.scalar_type(),
                          static_cast<const std::byte*>(x.const_data_ptr()),
                          static_cast<std::byte*>(output.mutable_data_ptr()));
    EXPECT_TRUE(at::equal(output, expected)) << dtype;
  }
  EXPECT_EQ(resize(2, 2).operation()->pointwise(), nullptr);
}

TEST(RunPointwise, TakesSamplesThatAreNoImages) {
  const at::Tensor x = at::arange(3000, at::kInt);
  EXPECT_TRUE(at::equal(apply(rescale(2), x), x.to(at::kFloat) * 2));
  EXPECT_TRUE(at::equal(apply(rescale(2), x[7]), x[7].to(at::kFloat) * 2));
}

}  // namespace
}  // namespace trireme::data
