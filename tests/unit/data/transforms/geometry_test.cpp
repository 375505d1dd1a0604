// SPDX-License-Identifier: Apache-2.0
#include "samples.h"

#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rot90.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <limits>
#include <numbers>

namespace trireme::data {
namespace {

using test::message_of;
using testing::apply;
using ::testing::HasSubstr;
using testing::random_image;
using testing::refusal;

constexpr auto kDtypes = {at::kBool, at::kByte, at::kHalf, at::kInt, at::kLong, at::kDouble};

TEST(RandomVerticalFlip, MirrorsTheHeight) {
  for (const auto dtype : kDtypes) {
    const at::Tensor x = random_image({2, 3, 5, 7}, at::kInt).to(dtype);
    EXPECT_TRUE(at::equal(apply(random_vertical_flip(1), x), x.flip({2})));
    EXPECT_TRUE(at::equal(apply(random_vertical_flip(1), x[0][0]), x[0][0].flip({0})));
    EXPECT_TRUE(at::equal(apply(random_vertical_flip(0), x), x));
  }
  EXPECT_EQ(apply(random_vertical_flip(1), at::zeros({3, 0, 4})).numel(), 0);
}

TEST(RandomVerticalFlip, HappensWhereTheDrawIsBelowTheProbability) {
  const at::Tensor x = at::arange(2).view({2, 1});
  for (std::uint64_t sample = 0; sample < 300; ++sample) {
    const bool is_flipped = testing::numbers(sample).uniform() < 0.25;
    const at::Tensor expected = is_flipped ? x.flip({0}) : x;
    EXPECT_TRUE(at::equal(apply(random_vertical_flip(0.25), x, sample), expected));
  }
}

TEST(RandomVerticalFlip, RefusesWhatIsNotAProbability) {
  for (const double probability : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THAT(message_of<UsageError>([&] { random_vertical_flip(probability); }),
                HasSubstr("random_vertical_flip with probability"));
  }
  EXPECT_THAT(refusal(random_vertical_flip(), at::zeros({4})),
              HasSubstr("expected an image [..., height, width]"));
}

// Turns by `degrees` in PyTorch's coordinates, in which the image is 2 wide and 2 high.
at::Tensor turned(const at::Tensor& x, double degrees, Interpolation interpolation) {
  const double angle = degrees * std::numbers::pi / 180;
  const double aspect = static_cast<double>(x.size(-2)) / static_cast<double>(x.size(-1));
  const at::Tensor theta = at::tensor({std::cos(angle), -std::sin(angle) * aspect, 0.0,  //
                                       std::sin(angle) / aspect, std::cos(angle), 0.0},
                                      at::kDouble)
                               .view({1, 2, 3});
  const at::Tensor image = x.to(at::kDouble).reshape({1, -1, x.size(-2), x.size(-1)});
  const at::Tensor grid = at::affine_grid_generator(theta, image.sizes(), false);
  const std::int64_t mode = interpolation == Interpolation::kBilinear ? 0 : 1;
  return at::grid_sampler_2d(image, grid, mode, /*padding_mode=*/0, /*align_corners=*/false)
      .view(x.sizes());
}

// The setting by which the draw of a sample is `degrees` exactly or nearly so.
double largest_angle(double degrees, std::uint64_t sample) {
  return degrees / (2 * static_cast<double>(testing::numbers(sample).uniform()) - 1);
}

std::uint64_t sample_that_turns_left() {
  std::uint64_t sample = 0;
  while (testing::numbers(sample).uniform() < 0.6F) ++sample;
  return sample;
}

TEST(RandomRotation, TurnsCounterClockwise) {
  const std::uint64_t sample = sample_that_turns_left();
  for (const auto interpolation : {Interpolation::kNearest, Interpolation::kBilinear}) {
    for (const std::int64_t side : {5, 6}) {
      const at::Tensor x = random_image({3, side, side});
      for (const std::int64_t quarters : {0, 1, 2, 3, 4}) {
        const double degrees = largest_angle(90.0 * static_cast<double>(quarters), sample);
        EXPECT_TRUE(at::equal(apply(random_rotation(degrees, interpolation), x, sample),
                              at::rot90(x, quarters, {1, 2})));
      }
    }
  }
}

TEST(RandomRotation, AgreesWithPyTorchsGridSampleAtTheAngleDrawn) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> sides = {
      {9, 9}, {4, 13}, {10, 3}, {1, 6}};
  for (const auto& [height, width] : sides) {
    const at::Tensor x = at::rand({2, 3, height, width}, at::kDouble);
    for (std::uint64_t sample = 0; sample < 50; ++sample) {
      Random random = testing::numbers(sample);
      const double degrees = testing::draw(random, -200, 200);
      EXPECT_TRUE(at::equal(apply(random_rotation(200), x, sample),
                            turned(x, degrees, Interpolation::kNearest)));
      EXPECT_TRUE(at::allclose(apply(random_rotation(200, Interpolation::kBilinear), x, sample),
                               turned(x, degrees, Interpolation::kBilinear), 0, 1e-12));
    }
  }
}

TEST(RandomRotation, TakesAnyDtypeByTheNearestPixel) {
  for (const auto dtype : kDtypes) {
    const at::Tensor x = random_image({3, 8, 8}, at::kInt).to(dtype);
    Random random = testing::numbers(3);
    const at::Tensor expected =
        turned(x, testing::draw(random, -90, 90), Interpolation::kNearest).to(dtype);
    EXPECT_TRUE(at::equal(apply(random_rotation(90), x, 3), expected)) << dtype;
  }
  EXPECT_EQ(apply(random_rotation(90), at::zeros({3, 0, 4})).numel(), 0);
}

TEST(RandomRotation, RoundsIntegersToTheNearest) {
  for (const auto dtype : {at::kByte, at::kShort, at::kHalf, at::kFloat}) {
    const at::Tensor x = random_image({3, 8, 8}, at::kInt).to(dtype);
    Random random = testing::numbers(3);
    const at::Tensor exact = turned(x, testing::draw(random, -90, 90), Interpolation::kBilinear);
    const at::Tensor y = apply(random_rotation(90, Interpolation::kBilinear), x, 3);
    EXPECT_EQ(y.scalar_type(), dtype);
    // Numbers up to 255 have a spacing of 1/8 in float16; float32 adds its own rounding.
    const double tolerance = at::isIntegralType(dtype, true) ? 0.5
                             : dtype == at::kHalf            ? 0.0625
                                                             : 0;
    EXPECT_LE((y.to(at::kDouble) - exact).abs().max().item<double>(), tolerance + 1e-4) << dtype;
  }
}

TEST(RandomRotation, RefusesWhatIsNoAngle) {
  for (const double degrees : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(message_of<UsageError>([&] { random_rotation(degrees); }),
                HasSubstr("random_rotation by up to"));
  }
  EXPECT_THAT(refusal(random_rotation(5, Interpolation::kBilinear), at::zeros({4, 4}, at::kBool)),
              HasSubstr("random_rotation cannot compute with Bool [4, 4]"));
  EXPECT_THAT(refusal(random_rotation(5), at::zeros({4})),
              HasSubstr("expected an image [..., height, width]"));
}

}  // namespace
}  // namespace trireme::data
