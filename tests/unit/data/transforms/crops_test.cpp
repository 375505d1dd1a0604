// SPDX-License-Identifier: Apache-2.0
#include "samples.h"

#include <ATen/ops/complex.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/reflection_pad2d.h>
#include <ATen/ops/replication_pad2d.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <limits>

namespace trireme::data {
namespace {

using test::message_of;
using testing::apply;
using ::testing::HasSubstr;
using testing::random_image;
using testing::Rectangle;
using testing::refusal;

constexpr auto kDtypes = {at::kBool, at::kByte,     at::kShort, at::kHalf,
                          at::kInt,  at::kBFloat16, at::kLong,  at::kDouble};

// Torchvision's CenterCrop, in Python's arithmetic: // rounds down, round() half to even.
at::Tensor center_crop_of(at::Tensor x, std::int64_t height, std::int64_t width) {
  const auto missing = [](std::int64_t piece, std::int64_t size) {
    return std::max<std::int64_t>(piece - size, 0);
  };
  const std::int64_t rows = missing(height, x.size(-2));
  const std::int64_t columns = missing(width, x.size(-1));
  x = at::constant_pad_nd(x, {columns / 2, (columns + 1) / 2, rows / 2, (rows + 1) / 2});
  const auto top = std::lrint(static_cast<double>(x.size(-2) - height) / 2);
  const auto left = std::lrint(static_cast<double>(x.size(-1) - width) / 2);
  return Rectangle{top, left, height, width}.of(x);
}

TEST(CenterCrop, AgreesWithTorchvisionForAnySides) {
  for (std::int64_t image_height = 1; image_height <= 9; ++image_height) {
    const at::Tensor x = random_image({2, image_height, 5}) + 1;
    for (std::int64_t height = 1; height <= 9; ++height) {
      for (std::int64_t width = 1; width <= 9; ++width) {
        EXPECT_TRUE(
            at::equal(apply(center_crop(height, width), x), center_crop_of(x, height, width)))
            << height << " x " << width << " of " << x.sizes();
      }
    }
  }
}

TEST(CenterCrop, TakesAnyDtypeAndNumberOfDimensions) {
  for (const auto dtype : kDtypes) {
    const at::Tensor x = random_image({2, 3, 6, 4}, at::kInt).to(dtype);
    EXPECT_TRUE(at::equal(apply(center_crop(3, 7), x), center_crop_of(x, 3, 7))) << dtype;
    EXPECT_TRUE(at::equal(apply(center_crop(3, 7), x[0][0]), center_crop_of(x[0][0], 3, 7)));
  }
}

TEST(CenterCrop, RefusesWhatHasNoPixels) {
  EXPECT_THAT(message_of<UsageError>([] { center_crop(3, 0); }), HasSubstr("center_crop to 3 x 0"));
  EXPECT_THAT(refusal(center_crop(3, 3), at::zeros({2, 0, 4})),
              HasSubstr("center_crop of an image without pixels: Float [2, 0, 4]"));
  EXPECT_THAT(refusal(center_crop(3, 3), at::zeros({4})),
              HasSubstr("expected an image [..., height, width], got Float [4]"));
}

TEST(RandomCrop, RefusesWhatHasNoPixels) {
  // The padding of such an image used to be memory that nothing had written.
  EXPECT_THAT(refusal(random_crop(3, 3, 2), at::zeros({2, 0, 4})),
              HasSubstr("random_crop of an image without pixels: Float [2, 0, 4]"));
}

TEST(Pad, PutsAConstantAroundAnyDtype) {
  for (const auto dtype : kDtypes) {
    const at::Tensor x = random_image({2, 3, 4, 5}, at::kInt).to(dtype);
    for (const double value : {0.0, 1.0}) {
      EXPECT_TRUE(
          at::equal(apply(pad(1, 2, 3, 0, value), x), at::constant_pad_nd(x, {1, 3, 2, 0}, value)))
          << dtype;
    }
  }
  const at::Tensor complex = at::complex(at::ones({2, 2}), at::ones({2, 2}));
  EXPECT_TRUE(
      at::equal(apply(pad(1, 1, 1, 1), complex), at::constant_pad_nd(complex, {1, 1, 1, 1})));
}

TEST(Pad, PutsValuesThatTheDtypeHolds) {
  const std::vector<std::pair<at::ScalarType, double>> cases = {
      {at::kByte, 255},    {at::kChar, -128},    {at::kShort, -300},     {at::kLong, -0x1p63},
      {at::kFloat, -1.25}, {at::kDouble, 1e300}, {at::kBFloat16, 0.375}, {at::kHalf, -0.375}};
  for (const auto& [dtype, value] : cases) {
    const at::Tensor x = at::ones({1, 1}, dtype);
    const at::Tensor y = apply(pad(1, 0, 0, 0, value), x);
    EXPECT_EQ(y[0][0].to(at::kDouble).item<double>(), value) << dtype;
    EXPECT_EQ(y[0][1].to(at::kDouble).item<double>(), 1) << dtype;
  }
}

TEST(Pad, MirrorsAndRepeatsAsPyTorchDoes) {
  const at::Tensor x = random_image({2, 4, 5}, at::kDouble);
  for (std::int64_t left = 0; left <= 4; ++left) {
    for (std::int64_t top = 0; top <= 3; ++top) {
      const std::int64_t right = 4 - left;
      const std::int64_t bottom = 3 - top;
      EXPECT_TRUE(at::equal(apply(pad(left, top, right, bottom, 9, PadMode::kReflect), x),
                            at::reflection_pad2d(x, {left, right, top, bottom})));
      EXPECT_TRUE(at::equal(apply(pad(3 * left, top, right, 3 * bottom, 9, PadMode::kEdge), x),
                            at::replication_pad2d(x, {3 * left, right, top, 3 * bottom})));
    }
  }
  for (const auto dtype : kDtypes) {
    EXPECT_TRUE(at::equal(apply(pad(2, 1, 1, 2, 0, PadMode::kReflect), x.to(dtype)),
                          at::reflection_pad2d(x, {2, 1, 1, 2}).to(dtype)));
  }
}

TEST(Pad, RefusesNegativeNumbersAndTooLargeReflections) {
  EXPECT_THAT(message_of<UsageError>([] { pad(1, 2, -3, 0); }),
              HasSubstr("pad by 1, 2, -3 and 0 pixels"));
  EXPECT_THAT(refusal(pad(0, 4, 0, 0, 0, PadMode::kReflect), at::zeros({1, 4, 9})),
              HasSubstr("pad by 0, 4, 0 and 0 pixels that mirror Float [1, 4, 9]"));
  EXPECT_THAT(refusal(pad(0, 0, 9, 0, 0, PadMode::kReflect), at::zeros({1, 4, 9})),
              HasSubstr("mirror Float [1, 4, 9]"));
  EXPECT_THAT(refusal(pad(1, 1, 1, 1), at::zeros({1, 4, 0})),
              HasSubstr("pad of an image without pixels: Float [1, 4, 0]"));
}

TEST(Pad, RefusesValuesThatTheDtypeCannotHold) {
  const std::vector<std::pair<at::ScalarType, double>> cases = {
      {at::kByte, 256},  {at::kByte, -1},      {at::kByte, 0.5},
      {at::kChar, -129}, {at::kLong, 0x1p63},  {at::kInt, std::nan("")},
      {at::kBool, 2},    {at::kShort, -1e300}, {at::kInt, std::numeric_limits<double>::infinity()}};
  for (const auto& [dtype, value] : cases) {
    EXPECT_THAT(refusal(pad(1, 1, 1, 1, value), at::zeros({2, 2}, dtype)),
                HasSubstr("pad with the value"))
        << dtype << ' ' << value;
  }
  EXPECT_THAT(refusal(pad(1, 1, 1, 1, 5), at::zeros({2, 2}, at::kComplexFloat)),
              HasSubstr("pad cannot compute with ComplexFloat [2, 2]"));
}

// Torchvision's RandomErasing.
std::optional<Rectangle> erased_part(Random& random, const at::Tensor& x, double probability,
                                     std::pair<double, double> scale,
                                     std::pair<double, double> ratio) {
  if (!(random.uniform() < probability)) return std::nullopt;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = static_cast<double>(x.size(-2) * x.size(-1)) *
                        testing::draw(random, scale.first, scale.second);
    const double aspect =
        std::exp(testing::draw(random, std::log(ratio.first), std::log(ratio.second)));
    const auto height = std::lrint(std::sqrt(area * aspect));
    const auto width = std::lrint(std::sqrt(area / aspect));
    if (!(height < x.size(-2) && width < x.size(-1))) continue;
    const std::int64_t top = random.below(x.size(-2) - height + 1);
    const std::int64_t left = random.below(x.size(-1) - width + 1);
    return Rectangle{top, left, height, width};
  }
  return std::nullopt;
}

TEST(RandomErasing, OverwritesTheRectangleThatTheDrawsSay) {
  int erased = 0;
  for (std::uint64_t sample = 0; sample < 400; ++sample) {
    const at::Tensor x = random_image({2, 3, 9, 13});
    Random random = testing::numbers(sample);
    at::Tensor expected = x.clone();
    const auto part = erased_part(random, x, 0.7, {0.1, 0.9}, {0.3, 3.3});
    if (part) part->of(expected).fill_(77);
    erased += part ? 1 : 0;
    EXPECT_TRUE(at::equal(apply(random_erasing(0.7, 0.1, 0.9, 0.3, 3.3, 77), x, sample), expected));
  }
  EXPECT_GT(erased, 200);
  EXPECT_LT(erased, 300);
}

TEST(RandomErasing, TriesTenTimes) {
  const at::Tensor x = random_image({9, 13});
  int erased = 0;
  for (std::uint64_t sample = 0; sample < 500; ++sample) {
    Random random = testing::numbers(sample);
    at::Tensor expected = x.clone();
    const auto part = erased_part(random, x, 1, {0.6, 1}, {0.3, 3.3});  // seldom fits
    if (part) part->of(expected).fill_(0);
    erased += part ? 1 : 0;
    EXPECT_TRUE(at::equal(apply(random_erasing(1, 0.6, 1), x, sample), expected));
  }
  EXPECT_GT(erased, 100);
  EXPECT_LT(erased, 400);
}

TEST(RandomErasing, HasTorchvisionsDefaults) {
  for (std::uint64_t sample = 0; sample < 100; ++sample) {
    const at::Tensor x = random_image({3, 32, 32}) + 1;
    Random random = testing::numbers(sample);
    at::Tensor expected = x.clone();
    const auto part = erased_part(random, x, 0.5, {0.02, 0.33}, {0.3, 3.3});
    if (part) part->of(expected).fill_(0);
    EXPECT_TRUE(at::equal(apply(random_erasing(), x, sample), expected));
  }
}

TEST(RandomErasing, TakesAnyDtype) {
  for (const auto dtype : kDtypes) {
    const at::Tensor x = at::full({6, 6}, 3, at::kInt).to(dtype);
    const at::Tensor y = apply(random_erasing(1, 0.2, 0.5, 0.5, 2, 1), x);
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_EQ(at::equal(x, y), dtype == at::kBool);
  }
}

TEST(RandomErasing, LeavesTheImageWhereNothingSmallerFits) {
  const at::Tensor x = random_image({1, 8, 8}) + 1;
  for (std::uint64_t sample = 0; sample < 20; ++sample) {
    EXPECT_TRUE(at::equal(apply(random_erasing(1, 1, 1, 1, 1), x, sample), x));
    // Sides that no integer holds.
    EXPECT_TRUE(at::equal(apply(random_erasing(1, 1, 1, 1e300, 1e308), x, sample), x));
  }
  EXPECT_EQ(apply(random_erasing(1), at::zeros({3, 0, 4})).numel(), 0);
}

TEST(RandomErasing, RefusesWhatIsNoProbabilityNoPartAndNoRatio) {
  for (const double probability : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THAT(message_of<UsageError>([&] { random_erasing(probability); }),
                HasSubstr("random_erasing with probability"));
  }
  const std::vector<std::pair<double, double>> scales = {
      {-0.1, 0.5}, {0.5, 0.4}, {0.5, 1.1}, {std::nan(""), 0.5}, {0.5, std::nan("")}};
  for (const auto& [low, high] : scales) {
    EXPECT_THAT(message_of<UsageError>([low, high] { random_erasing(1, low, high); }),
                HasSubstr("random_erasing with a scale from"));
  }
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<double, double>> ratios = {
      {0, 1}, {2, 1}, {1, infinity}, {std::nan(""), 1}, {1, std::nan("")}};
  for (const auto& [low, high] : ratios) {
    EXPECT_THAT(message_of<UsageError>([low, high] { random_erasing(1, 0.1, 0.2, low, high); }),
                HasSubstr("random_erasing with a ratio from"));
  }
  EXPECT_THAT(refusal(random_erasing(0, 0.1, 0.2, 1, 1, 300), at::zeros({2, 2}, at::kByte)),
              HasSubstr("random_erasing with the value 300 in Byte [2, 2]"));
}

}  // namespace
}  // namespace trireme::data
