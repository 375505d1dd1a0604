// SPDX-License-Identifier: Apache-2.0
#include "samples.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <array>
#include <limits>
#include <set>

namespace trireme::data {
namespace {

using test::message_of;
using testing::apply;
using ::testing::HasSubstr;
using testing::random_image;
using testing::refusal;

double white_of(const at::Tensor& x) { return x.is_floating_point() ? 1 : 255; }

// Torchvision's functions for tensors, of [..., C, H, W].
at::Tensor grayscale(const at::Tensor& x) {
  const auto channel = [&](std::int64_t i) { return x.select(-3, i); };
  return (0.2989 * channel(0) + 0.587 * channel(1) + 0.114 * channel(2))
      .to(x.scalar_type())
      .unsqueeze(-3);
}

at::Tensor blend(const at::Tensor& x, const at::Tensor& other, double factor) {
  return at::clamp(factor * x + (1 - factor) * other, 0, white_of(x)).to(x.scalar_type());
}

at::Tensor brightness_of(const at::Tensor& x, double factor) {
  return blend(x, at::zeros_like(x), factor);
}

at::Tensor contrast_of(const at::Tensor& x, double factor) {
  const at::Tensor gray = x.size(-3) == 3 ? grayscale(x) : x;
  const at::Tensor mean = gray.to(at::kDouble).mean({-3, -2, -1}, true);
  return blend(x, mean.to(x.is_floating_point() ? x.scalar_type() : at::kFloat), factor);
}

at::Tensor saturation_of(const at::Tensor& x, double factor) {
  return blend(x, grayscale(x), factor);
}

// In float64 and by the formulas of text books rather than by torchvision's own: hue in sixths by
// the largest channel, and back by f(n) = v - v s max(0, min(k, 4 - k, 1)), k = (n + hue) mod 6.
at::Tensor hue_of(const at::Tensor& x, double shift) {
  const at::Tensor rgb = x.to(at::kDouble) / white_of(x);
  const at::Tensor value = at::amax(rgb, {-3}, true);
  const at::Tensor chroma = value - at::amin(rgb, {-3}, true);
  const at::Tensor divisor = at::where(chroma == 0, 1.0, chroma);
  const auto channel = [&](std::int64_t i) { return rgb.slice(-3, i, i + 1); };
  const at::Tensor candidates =
      at::cat({(channel(1) - channel(2)) / divisor, (channel(2) - channel(0)) / divisor + 2,
               (channel(0) - channel(1)) / divisor + 4},
              -3);
  const at::Tensor hue = candidates.gather(-3, at::argmax(rgb, -3, true)) + 6 * shift;
  std::vector<at::Tensor> channels;
  for (const double n : {5, 3, 1}) {
    const at::Tensor k = at::remainder(hue + n, 6);
    channels.push_back(value - chroma * at::clamp(at::minimum(k, 4 - k), 0, 1));
  }
  const at::Tensor turned = at::cat(channels, -3);
  return x.is_floating_point() ? turned.to(x.scalar_type())
                               : (turned * (255 + 1.0 - 1e-3)).to(x.scalar_type());
}

struct Draws {
  std::array<int, 4> order;
  std::array<double, 4> factors;
};

Draws draws_of(std::uint64_t sample, const std::array<double, 4>& settings) {
  Random random = testing::numbers(sample);
  Draws draws{{0, 1, 2, 3}, {}};
  std::swap(draws.order[3], draws.order.at(static_cast<std::size_t>(random.below(4))));
  std::swap(draws.order[2], draws.order.at(static_cast<std::size_t>(random.below(3))));
  std::swap(draws.order[1], draws.order.at(static_cast<std::size_t>(random.below(2))));
  for (std::size_t i = 0; i < 3; ++i) {
    draws.factors.at(i) =
        testing::draw(random, std::max(0.0, 1 - settings.at(i)), 1 + settings.at(i));
  }
  draws.factors[3] = testing::draw(random, -settings[3], settings[3]);
  return draws;
}

at::Tensor jittered(at::Tensor x, std::uint64_t sample, const std::array<double, 4>& settings) {
  const Draws draws = draws_of(sample, settings);
  for (const int step : draws.order) {
    const double factor = draws.factors.at(static_cast<std::size_t>(step));
    if (settings.at(static_cast<std::size_t>(step)) == 0) continue;
    x = step == 0   ? brightness_of(x, factor)
        : step == 1 ? contrast_of(x, factor)
        : step == 2 ? saturation_of(x, factor)
                    : hue_of(x, factor);
  }
  return x;
}

at::Tensor jitter(const at::Tensor& x, std::uint64_t sample, const std::array<double, 4>& s) {
  return apply(color_jitter(s[0], s[1], s[2], s[3]), x, sample);
}

at::Tensor colors(at::ScalarType dtype, at::IntArrayRef sizes = {3, 7, 6}) {
  return dtype == at::kByte ? random_image(sizes) : at::rand(sizes, dtype);
}

constexpr auto kDtypes = {at::kByte, at::kFloat, at::kDouble};

TEST(ColorJitter, ChangesBrightnessContrastAndSaturationByTheBitsOfTorchvision) {
  for (const auto dtype : kDtypes) {
    for (std::uint64_t sample = 0; sample < 50; ++sample) {
      const at::Tensor x = colors(dtype);
      const std::vector<std::array<double, 4>> cases = {
          {0.8, 0, 0, 0}, {0, 0, 0.9, 0}, {3, 0, 3, 0}};
      for (const auto& settings : cases) {
        EXPECT_TRUE(at::equal(jitter(x, sample, settings), jittered(x, sample, settings))) << dtype;
      }
      // The mean over an image is another sum.
      const at::Tensor y = jitter(x, sample, {0, 0.9, 0, 0});
      const at::Tensor expected = jittered(x, sample, {0, 0.9, 0, 0});
      EXPECT_TRUE(at::allclose(y, expected, 0, dtype == at::kByte ? 1 : 1e-6)) << dtype;
    }
  }
}

TEST(ColorJitter, TurnsTheHue) {
  for (std::uint64_t sample = 0; sample < 50; ++sample) {
    const std::array<double, 4> settings = {0, 0, 0, 0.5};
    const at::Tensor x = colors(at::kDouble);
    EXPECT_TRUE(at::allclose(jitter(x, sample, settings), jittered(x, sample, settings), 0, 1e-12));
    const at::Tensor y = colors(at::kFloat);
    EXPECT_TRUE(at::allclose(jitter(y, sample, settings), jittered(y, sample, settings), 0, 1e-5));
    // Cut off, so the last bit decides now and then.
    const at::Tensor z = colors(at::kByte);
    const at::Tensor difference =
        (jitter(z, sample, settings).to(at::kInt) - jittered(z, sample, settings).to(at::kInt))
            .abs();
    EXPECT_LE(difference.max().item<int>(), 1);
    EXPECT_LE(difference.sum().item<int>(), 2);
  }
}

TEST(ColorJitter, TurnsPrimaryColorsAndLeavesGrey) {
  // Red, yellow, green, cyan, blue, magenta, black, grey, white.
  const at::Tensor x = at::tensor({1., 1., 0., 0., 0., 1., 0., .5, 1.,  //
                                   0., 1., 1., 1., 0., 0., 0., .5, 1.,  //
                                   0., 0., 0., 1., 1., 1., 0., .5, 1.},
                                  at::kFloat)
                           .view({3, 1, 9});
  for (std::uint64_t sample = 0; sample < 20; ++sample) {
    const at::Tensor y = jitter(x, sample, {0, 0, 0, 0.5});
    EXPECT_TRUE(at::allclose(y, jittered(x, sample, {0, 0, 0, 0.5}), 0, 1e-5));
    EXPECT_TRUE(at::equal(y.slice(2, 6), x.slice(2, 6)));
  }
}

TEST(ColorJitter, AppliesTheFourInTheOrderDrawn) {
  const std::array<double, 4> settings = {0.4, 0.5, 0.6, 0.3};
  std::set<std::array<int, 4>> orders;
  for (std::uint64_t sample = 0; sample < 300; ++sample) {
    const at::Tensor x = colors(at::kDouble);
    orders.insert(draws_of(sample, settings).order);
    EXPECT_TRUE(at::allclose(jitter(x, sample, settings), jittered(x, sample, settings), 0, 1e-12));
  }
  EXPECT_EQ(orders.size(), 24U);
}

TEST(ColorJitter, TakesEachImageOfSeveralByItself) {
  for (const auto dtype : kDtypes) {
    const at::Tensor x = colors(dtype, {4, 3, 5, 6});
    const std::array<double, 4> settings = {0.4, 0.5, 0.6, 0.3};
    const at::Tensor y = jitter(x, 5, settings);
    for (std::int64_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(y[i], jitter(x[i], 5, settings)));
  }
}

TEST(ColorJitter, ChangesBrightnessAndContrastOfAnyChannels) {
  for (const auto dtype : kDtypes) {
    for (const std::int64_t channels : {1, 2, 4}) {
      const at::Tensor x = colors(dtype, {channels, 5, 6});
      const double tolerance = dtype == at::kByte ? 2 : 1e-6;  // the mean once, cut off twice
      EXPECT_TRUE(at::allclose(jitter(x, 2, {0.5, 0.5, 0, 0}), jittered(x, 2, {0.5, 0.5, 0, 0}), 0,
                               tolerance));
    }
    const at::Tensor x = colors(dtype, {1, 5, 6});
    EXPECT_TRUE(at::equal(jitter(x[0], 2, {0.5, 0.5, 0, 0}), jitter(x, 2, {0.5, 0.5, 0, 0})[0]));
  }
}

TEST(ColorJitter, LeavesTheImageWhereEverySettingIsZero) {
  const at::Tensor x = colors(at::kByte, {2, 5, 6});
  EXPECT_TRUE(at::equal(apply(color_jitter(), x), x));
  EXPECT_EQ(jitter(at::zeros({3, 0, 4}), 0, {1, 1, 1, 0.5}).numel(), 0);
}

TEST(ColorJitter, SurvivesWhatIsNoColor) {
  const double none = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor x = at::tensor({none, infinity, -2., 7., 1., none}, at::kFloat).view({3, 2, 1});
  for (std::uint64_t sample = 0; sample < 20; ++sample)
    EXPECT_EQ(jitter(x, sample, {1, 1, 1, 0.5}).sizes(), x.sizes());
}

TEST(ColorJitter, RefusesNegativeSettings) {
  const double none = std::nan("");
  const std::vector<std::array<double, 4>> cases = {
      {-1, 0, 0, 0}, {0, -1, 0, 0},   {0, 0, -1, 0},
      {0, 0, 0, -1}, {none, 0, 0, 0}, {std::numeric_limits<double>::infinity(), 0, 0, 0}};
  for (const auto& s : cases) {
    EXPECT_THAT(message_of<UsageError>([&] { color_jitter(s[0], s[1], s[2], s[3]); }),
                HasSubstr("color_jitter with brightness"));
  }
  EXPECT_THAT(message_of<UsageError>([] { color_jitter(0, 0, 0, 0.6); }),
              HasSubstr("color_jitter with hue 0.6"));
}

TEST(ColorJitter, RefusesOtherDtypesAndOtherChannels) {
  for (const auto dtype : {at::kHalf, at::kInt, at::kBool}) {
    EXPECT_THAT(refusal(color_jitter(1), at::zeros({3, 2, 2}, dtype)),
                HasSubstr("color_jitter of"));
  }
  EXPECT_THAT(refusal(color_jitter(0, 0, 0.5), at::zeros({1, 2, 2})),
              HasSubstr("the saturation of color_jitter of an image that is not red, green and "
                        "blue: Float [1, 2, 2]"));
  EXPECT_THAT(refusal(color_jitter(0, 0, 0, 0.5), at::zeros({3, 2})),
              HasSubstr("the hue of color_jitter of an image that is not red, green and blue"));
  EXPECT_THAT(refusal(color_jitter(1), at::zeros({4})),
              HasSubstr("expected an image [..., height, width]"));
}

TEST(ToGrayscale, GivesTheBitsOfTorchvision) {
  for (const auto dtype :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kFloat, at::kDouble}) {
    at::Tensor x = random_image({2, 3, 5, 6}, at::kInt).to(dtype);
    if (x.is_floating_point()) x = at::rand(x.sizes(), dtype);
    EXPECT_TRUE(at::equal(apply(to_grayscale(), x), grayscale(x))) << dtype;
    EXPECT_TRUE(at::equal(apply(to_grayscale(3), x), grayscale(x).expand_as(x))) << dtype;
  }
}

TEST(ToGrayscale, ComputesHalvesInFloat32) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor x = at::rand({3, 5, 6}).to(dtype);
    EXPECT_TRUE(at::equal(apply(to_grayscale(), x), grayscale(x.to(at::kFloat)).to(dtype)));
  }
}

TEST(ToGrayscale, RefusesWhatHasNoColors) {
  for (const std::int64_t channels : {0, 2, 4}) {
    EXPECT_THAT(message_of<UsageError>([&] { to_grayscale(channels); }),
                HasSubstr("to_grayscale with"));
  }
  EXPECT_THAT(refusal(to_grayscale(), at::zeros({1, 2, 2})),
              HasSubstr("to_grayscale of an image that is not red, green and blue"));
  EXPECT_THAT(refusal(to_grayscale(), at::zeros({3, 2})), HasSubstr("not red, green and blue"));
  EXPECT_THAT(refusal(to_grayscale(), at::zeros({3, 2, 2}, at::kBool)),
              HasSubstr("to_grayscale cannot compute with Bool [3, 2, 2]"));
}

TEST(RandomGrayscale, HappensWhereTheDrawIsBelowTheProbability) {
  for (std::uint64_t sample = 0; sample < 300; ++sample) {
    const at::Tensor x = random_image({3, 2, 2});
    const float uniform = testing::numbers(sample).uniform();
    const at::Tensor gray = grayscale(x).expand_as(x);
    EXPECT_TRUE(at::equal(apply(random_grayscale(0.25), x, sample), uniform < 0.25 ? gray : x));
    EXPECT_TRUE(at::equal(apply(random_grayscale(), x, sample), uniform < 0.1 ? gray : x));
  }
}

TEST(RandomGrayscale, RefusesWhatIsNotAProbabilityOrHasNoColors) {
  for (const double probability : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THAT(message_of<UsageError>([&] { random_grayscale(probability); }),
                HasSubstr("random_grayscale with probability"));
  }
  EXPECT_THAT(refusal(random_grayscale(), at::zeros({1, 2, 2})),
              HasSubstr("random_grayscale of an image that is not red, green and blue"));
  EXPECT_THAT(refusal(random_grayscale(), at::zeros({3, 2, 2}, at::kBool)),
              HasSubstr("random_grayscale cannot compute with Bool"));
}

}  // namespace
}  // namespace trireme::data
