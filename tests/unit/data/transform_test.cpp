// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/transform.h>

#include "files.h"
#include <trireme/base/error.h>
#include <trireme/data/data_loader.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;

Random numbers(std::uint64_t sample = 0) { return {7, 0, sample, 1}; }

at::Tensor apply(const Transform& transform, const at::Tensor& sample) {
  Random random = numbers();
  return transform(sample, random);
}

at::Tensor image(std::int64_t channels, std::int64_t height, std::int64_t width) {
  return at::randint(256, {channels, height, width}, at::kByte);
}

TEST(RandomCrop, CutsAnyPieceOfThePaddedImageAndNothingElse) {
  const at::Tensor x = image(3, 5, 4) + 1;
  const at::Tensor padded = at::constant_pad_nd(x, {2, 2, 2, 2});
  std::set<std::pair<std::int64_t, std::int64_t>> places;
  for (std::uint64_t sample = 0; sample < 500; ++sample) {
    Random random = numbers(sample);
    const at::Tensor piece = random_crop(6, 3, 2)(x, random);
    for (std::int64_t top = 0; top <= 3; ++top) {
      for (std::int64_t left = 0; left <= 5; ++left) {
        if (at::equal(piece, padded.slice(1, top, top + 6).slice(2, left, left + 3)))
          places.emplace(top, left);
      }
    }
  }
  EXPECT_EQ(places.size(), 4U * 6U);
}

TEST(Transform, RefusesASampleWithoutDataOnTheCpu) {
  for (const at::Tensor& sample :
       {at::Tensor(), at::empty({1, 4, 4}, at::TensorOptions().device(at::kMeta))}) {
    EXPECT_THAT(message_of<UsageError>([&] { apply(center_crop(2, 2), sample); }),
                HasSubstr("center_crop: the sample is not a dense CPU tensor"));
  }
}

// Less memory was taken than was written to.
TEST(Transform, RefusesResultsThatNoMemoryHolds) {
  const at::Tensor sample = at::zeros({1, 4, 4});
  const Transform huge = resize(std::int64_t{1} << 31, std::int64_t{1} << 31);
  const std::string expected =
      "a sample of Float [1, 2147483648, 2147483648] has more bytes than any memory";
  EXPECT_THAT(message_of<UsageError>([&] { apply(huge, sample); }), HasSubstr(expected));
  const auto set = tensors({{"x", sample.unsqueeze(0)}});
  EXPECT_THAT(message_of<UsageError>([&] { DataLoader(set).map("x", huge).open(0)->next(); }),
              HasSubstr("column 'x', operation 1 (resize), sample 0: " + expected));
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(message_of<UsageError>([] { pad(kLargest, 0, kLargest, 0); }),
              HasSubstr("pad by 9223372036854775807, 0,"));
  EXPECT_THAT(message_of<UsageError>([] { random_crop(1, 1, kLargest); }),
              HasSubstr("random_crop with a padding of 9223372036854775807"));
}

TEST(RandomCrop, WorksForElementsOfAnySize) {
  for (const auto dtype : {at::kByte, at::kHalf, at::kFloat, at::kLong}) {
    const at::Tensor x = image(1, 4, 4);
    EXPECT_TRUE(at::equal(apply(random_crop(3, 3, 1), x.to(dtype)),
                          apply(random_crop(3, 3, 1), x).to(dtype)));
  }
}

TEST(RandomCrop, GivesOnlyPaddingWhereThePieceMissesTheImage) {
  std::set<std::int64_t> sums;
  for (std::uint64_t sample = 0; sample < 200; ++sample) {
    Random random = numbers(sample);
    sums.insert(random_crop(1, 1, 3)(at::arange(1, 5).view({2, 2}), random).item<std::int64_t>());
  }
  EXPECT_THAT(sums, ::testing::ElementsAre(0, 1, 2, 3, 4));
}

TEST(RandomCrop, RefusesAPieceLargerThanThePaddedImage) {
  EXPECT_THAT(message_of<UsageError>([] { apply(random_crop(9, 4, 2), image(3, 4, 4)); }),
              HasSubstr("random_crop to 9 x 4 of Byte [3, 4, 4] with padding 2"));
  EXPECT_THAT(message_of<UsageError>([] { random_crop(0, 4); }), HasSubstr("random_crop to 0 x 4"));
  EXPECT_THAT(message_of<UsageError>([] { random_crop(4, 4, -1); }), HasSubstr("padding of -1"));
}

TEST(RandomHorizontalFlip, MirrorsTheWidth) {
  for (const auto dtype : {at::kByte, at::kHalf, at::kFloat, at::kDouble}) {
    const at::Tensor x = image(3, 5, 7).to(dtype);
    EXPECT_TRUE(at::equal(apply(random_horizontal_flip(1), x), x.flip({2})));
    EXPECT_TRUE(at::equal(apply(random_horizontal_flip(0), x), x));
  }
}

TEST(RandomHorizontalFlip, HappensAsOftenAsAsked) {
  const at::Tensor x = at::arange(2).view({1, 2});
  int flipped = 0;
  for (std::uint64_t sample = 0; sample < 10000; ++sample) {
    Random random = numbers(sample);
    flipped += random_horizontal_flip(0.25)(x, random)[0][0].item<int>();
  }
  EXPECT_NEAR(flipped, 2500, 180);  // four standard deviations
}

TEST(RandomHorizontalFlip, RefusesWhatIsNotAProbability) {
  for (const double probability : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THAT(message_of<UsageError>([&] { random_horizontal_flip(probability); }),
                HasSubstr("with probability"));
  }
}

TEST(Resize, AgreesWithPyTorchsBilinearInterpolation) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> sides = {
      {5, 7}, {10, 14}, {13, 3}, {1, 1}, {2, 29}};
  for (const auto& [height, width] : sides) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::rand({3, 5, 7}, dtype);
      const at::Tensor expected =
          at::upsample_bilinear2d(x.unsqueeze(0), {height, width}, false).squeeze(0);
      // Both round; sums of four products differ in the last bits only.
      EXPECT_TRUE(at::allclose(apply(resize(height, width), x), expected, 1e-5, 1e-6))
          << height << " x " << width;
    }
  }
}

TEST(Resize, RoundsIntegersToTheNearest) {
  const at::Tensor x = image(3, 9, 8);
  const at::Tensor exact =
      at::upsample_bilinear2d(x.unsqueeze(0).to(at::kDouble), {14, 5}, false).squeeze(0);
  const at::Tensor resized = apply(resize(14, 5), x);
  EXPECT_EQ(resized.scalar_type(), at::kByte);
  EXPECT_LE((resized.to(at::kDouble) - exact).abs().max().item<double>(), 0.5 + 1e-4);
}

TEST(Resize, RefusesWhatIsNoImage) {
  EXPECT_THAT(message_of<UsageError>([] { resize(3, 0); }), HasSubstr("resize to 3 x 0"));
  EXPECT_THAT(message_of<UsageError>([] { apply(resize(3, 3), at::zeros({4})); }),
              HasSubstr("expected an image [..., height, width], got Float [4]"));
  EXPECT_THAT(message_of<UsageError>([] { apply(resize(3, 3), at::zeros({1, 0, 4})); }),
              HasSubstr("without pixels"));
}

TEST(Rescale, ScalesThenShiftsInFloat32) {
  const at::Tensor x = image(1, 28, 28);
  const at::Tensor y = apply(rescale(1 / 255.0, -0.5), x);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(y, x.to(at::kFloat) * (1 / 255.0) - 0.5));
}

TEST(Rescale, KeepsFloat64) {
  const at::Tensor x = at::rand({3}, at::kDouble);
  EXPECT_TRUE(at::equal(apply(rescale(3, 1), x), x * 3 + 1));
}

TEST(Normalize, GivesTheSameBitsAsTensorsDo) {
  const at::Tensor x = image(3, 6, 5);
  const at::Tensor mean = at::tensor({120.5, 110.25, 99.0}, at::kFloat).view({3, 1, 1});
  const at::Tensor std = at::tensor({61.3, 59.1, 70.7}, at::kFloat).view({3, 1, 1});
  const Transform transform = normalize({120.5, 110.25, 99.0}, {61.3, 59.1, 70.7});
  for (const auto dtype : {at::kByte, at::kInt, at::kFloat}) {
    EXPECT_TRUE(at::equal(apply(transform, x.to(dtype)), (x.to(at::kFloat) - mean) / std));
  }
}

TEST(Normalize, TakesOneValueForAllChannels) {
  const at::Tensor x = at::rand({2, 3, 6, 5});
  EXPECT_TRUE(at::equal(apply(normalize({0.5}, {0.25}), x), (x - 0.5) / 0.25));
  EXPECT_TRUE(at::equal(apply(normalize({0.5}, {0.25}), x[0][0]), (x[0][0] - 0.5) / 0.25));
}

TEST(Normalize, AppliesTheChannelsToEveryFrame) {
  const at::Tensor x = at::rand({4, 2, 3, 3});
  const at::Tensor mean = at::tensor({0.5, 0.25}, at::kFloat).view({2, 1, 1});
  EXPECT_TRUE(at::equal(apply(normalize({0.5, 0.25}, {1, 1}), x), x - mean));
}

TEST(Normalize, RefusesCountsThatDifferAndADeviationOfZero) {
  EXPECT_THAT(
      message_of<UsageError>([] { apply(normalize({1, 2, 3}, {1, 1, 1}), image(1, 2, 2)); }),
      HasSubstr("values for 3 channels, but the image has 1: Byte [1, 2, 2]"));
  EXPECT_THAT(message_of<UsageError>([] { normalize({1, 2}, {1}); }),
              HasSubstr("2 means and 1 standard deviations"));
  EXPECT_THAT(message_of<UsageError>([] { normalize({1}, {0}); }),
              HasSubstr("standard deviation of 0"));
}

TEST(HwcToChw, MovesTheChannelsToTheFront) {
  for (const auto dtype : {at::kByte, at::kFloat}) {
    const at::Tensor x = image(5, 4, 3).to(dtype);
    EXPECT_TRUE(at::equal(apply(hwc_to_chw(), x), x.permute({2, 0, 1})));
  }
  EXPECT_THAT(message_of<UsageError>([] { apply(hwc_to_chw(), at::zeros({4, 4})); }),
              HasSubstr("expected an image [height, width, channels], got Float [4, 4]"));
}

TEST(TypeCast, ConvertsAsTensorsDo) {
  const at::Tensor x = at::tensor({-3.75, 0.0, 0.5, 100.0}, at::kDouble);
  for (const auto dtype :
       {at::kBool, at::kChar, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat}) {
    const at::Tensor y = apply(type_cast(dtype), x);
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(y, x.to(dtype)));
  }
}

TEST(Transform, TakesFunctionsWithAndWithoutRandomNumbers) {
  const Transform plain = [](at::Tensor x) { return x.add_(1); };
  const Transform random_one = [](at::Tensor x, Random& random) {
    return x + static_cast<double>(random.bits());
  };
  const at::Tensor x = at::zeros({2}, at::kDouble);
  EXPECT_EQ(apply(plain, x)[0].item<double>(), 1);
  EXPECT_EQ(x[0].item<double>(), 0) << "the sample was changed";
  Random random = numbers();
  EXPECT_EQ(apply(random_one, x)[0].item<double>(), static_cast<double>(random.bits()));
  EXPECT_THAT(message_of<UsageError>([] { Transform("blur", nullptr); }),
              HasSubstr("'blur' has no function"));
}

}  // namespace
}  // namespace trireme::data
