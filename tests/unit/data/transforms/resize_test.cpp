// SPDX-License-Identifier: Apache-2.0
#include "samples.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <limits>
#include <set>

namespace trireme::data {
namespace {

using test::message_of;
using testing::apply;
using ::testing::HasSubstr;
using testing::random_image;
using testing::Rectangle;
using testing::refusal;

struct Settings {
  double scale_min = 0.08;
  double scale_max = 1;
  double ratio_min = 3 / 4.;
  double ratio_max = 4 / 3.;
};

Transform cropping(std::int64_t height, std::int64_t width, const Settings& settings) {
  return random_resized_crop(height, width, settings.scale_min, settings.scale_max,
                             settings.ratio_min, settings.ratio_max);
}

enum class Route { kTry, kTall, kWide, kWhole };

// Torchvision's RandomResizedCrop.get_params.
std::pair<Route, Rectangle> piece_of(Random& random, std::int64_t height, std::int64_t width,
                                     const Settings& settings) {
  const auto area = static_cast<double>(height * width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * testing::draw(random, settings.scale_min, settings.scale_max);
    const double aspect =
        std::exp(testing::draw(random, std::log(settings.ratio_min), std::log(settings.ratio_max)));
    const std::int64_t w = std::lrint(std::sqrt(target * aspect));
    const std::int64_t h = std::lrint(std::sqrt(target / aspect));
    if (0 < w && w <= width && 0 < h && h <= height) {
      const std::int64_t top = random.below(height - h + 1);
      const std::int64_t left = random.below(width - w + 1);
      return {Route::kTry, {top, left, h, w}};
    }
  }
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  if (ratio < settings.ratio_min) {
    const std::int64_t h = std::lrint(static_cast<double>(width) / settings.ratio_min);
    return {Route::kTall, {(height - h) / 2, 0, h, width}};
  }
  if (ratio > settings.ratio_max) {
    const std::int64_t w = std::lrint(static_cast<double>(height) * settings.ratio_max);
    return {Route::kWide, {0, (width - w) / 2, height, w}};
  }
  return {Route::kWhole, {0, 0, height, width}};
}

TEST(RandomResizedCrop, ResizesThePieceThatTheDrawsSay) {
  const std::vector<std::tuple<std::int64_t, std::int64_t, Settings>> cases = {
      {32, 32, {}},
      {5, 7, {}},
      {3, 41, {0.7, 1}},
      {50, 4, {0.7, 1}},
      {7, 7, {1, 1, 0.5, 2}},
      {4, 6, {0, 0.01, 0.5, 2}},
      {8, 8, {0.9, 1, 0.2, 5}},  // fits seldom, so that the number of tries counts
      {10, 9, {.scale_min = 0.5, .scale_max = 0.5, .ratio_min = 1.1, .ratio_max = 1.1}},
  };
  std::set<Route> routes;
  for (const auto& [height, width, settings] : cases) {
    const at::Tensor x = at::rand({2, 3, height, width});
    for (std::uint64_t sample = 0; sample < 400; ++sample) {
      Random random = testing::numbers(sample);
      const auto [route, rectangle] = piece_of(random, height, width, settings);
      routes.insert(route);
      const at::Tensor piece = rectangle.of(x);
      const at::Tensor y = apply(cropping(6, 5, settings), x, sample);
      EXPECT_TRUE(at::equal(y, apply(resize(6, 5), piece)));
      EXPECT_TRUE(at::allclose(y, at::upsample_bilinear2d(piece, {6, 5}, false), 1e-5, 1e-6));
    }
  }
  EXPECT_EQ(routes.size(), 4U) << "not every way was taken";
}

TEST(RandomResizedCrop, HasTorchvisionsDefaults) {
  const at::Tensor x = random_image({3, 40, 30});
  for (std::uint64_t sample = 0; sample < 50; ++sample) {
    EXPECT_TRUE(at::equal(apply(random_resized_crop(8, 8), x, sample),
                          apply(cropping(8, 8, {}), x, sample)));
  }
}

TEST(RandomResizedCrop, TakesEveryNumberAsResizeDoes) {
  for (const auto dtype : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf,
                           at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor x = at::randint(100, {2, 9, 9}, at::kInt).to(dtype);
    Random random = testing::numbers();
    const Rectangle rectangle = piece_of(random, 9, 9, {}).second;
    EXPECT_TRUE(
        at::equal(apply(random_resized_crop(4, 7), x), apply(resize(4, 7), rectangle.of(x))))
        << dtype;
  }
}

TEST(RandomResizedCrop, TakesAPixelWhereTheRatioLeavesNone) {
  // Torchvision cuts an image of height 0 here, and fails.
  const at::Tensor x = random_image({1, 5, 1});
  EXPECT_TRUE(at::equal(apply(random_resized_crop(2, 2, 1, 1, 4, 4), x),
                        x.slice(1, 2, 3).expand({1, 2, 2})));
}

TEST(RandomResizedCrop, RefusesWhatCannotBeCut) {
  EXPECT_THAT(message_of<UsageError>([] { random_resized_crop(0, 4); }),
              HasSubstr("random_resized_crop to 0 x 4"));
  const double none = std::nan("");
  const std::vector<std::pair<double, double>> scales = {
      {-0.1, 0.5}, {0.5, 0.4}, {0.5, 1.1}, {none, 0.5}, {0.5, none}};
  for (const auto& [low, high] : scales) {
    EXPECT_THAT(message_of<UsageError>([low, high] { random_resized_crop(4, 4, low, high); }),
                HasSubstr("random_resized_crop with a scale from"));
  }
  const std::vector<std::pair<double, double>> ratios = {
      {0, 1}, {2, 1}, {1, std::numeric_limits<double>::infinity()}, {none, 1}, {1, none}};
  for (const auto& [low, high] : ratios) {
    EXPECT_THAT(
        message_of<UsageError>([low, high] { random_resized_crop(4, 4, 0.1, 1, low, high); }),
        HasSubstr("random_resized_crop with a ratio from"));
  }
  EXPECT_THAT(refusal(random_resized_crop(4, 4), at::zeros({1, 0, 4})),
              HasSubstr("random_resized_crop of an image without pixels: Float [1, 0, 4]"));
  EXPECT_THAT(refusal(random_resized_crop(4, 4), at::zeros({1, 4, 4}, at::kBool)),
              HasSubstr("random_resized_crop cannot compute with Bool [1, 4, 4]"));
  EXPECT_THAT(refusal(random_resized_crop(4, 4), at::zeros({4})),
              HasSubstr("expected an image [..., height, width]"));
}

TEST(Resize, RefusesWhatAreNoNumbers) {
  EXPECT_THAT(refusal(resize(4, 4), at::zeros({1, 4, 4}, at::kBool)),
              HasSubstr("resize cannot compute with Bool [1, 4, 4]"));
}

}  // namespace
}  // namespace trireme::data
