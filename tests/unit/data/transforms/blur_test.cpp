// SPDX-License-Identifier: Apache-2.0
#include "samples.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/reflection_pad2d.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <limits>

namespace trireme::data {
namespace {

using test::message_of;
using testing::apply;
using ::testing::HasSubstr;
using testing::random_image;
using testing::refusal;

// Torchvision's GaussianBlur in float64, by a convolution with the whole square.
at::Tensor blurred(const at::Tensor& x, std::int64_t kernel_size, double sigma) {
  const std::int64_t half = kernel_size / 2;
  const at::Tensor place = at::arange(-half, half + 1, at::kDouble);
  at::Tensor line = at::exp(-0.5 * (place / sigma).pow(2));
  line = line / line.sum();
  const at::Tensor square = at::outer(line, line).view({1, 1, kernel_size, kernel_size});
  const at::Tensor planes = x.to(at::kDouble).reshape({-1, 1, x.size(-2), x.size(-1)});
  const at::Tensor padded = at::reflection_pad2d(planes, {half, half, half, half});
  return at::conv2d(padded, square).view(x.sizes());
}

double drawn_sigma(std::uint64_t sample, double low, double high) {
  Random random = testing::numbers(sample);
  return testing::draw(random, low, high);
}

TEST(GaussianBlur, AgreesWithAConvolutionByTheSigmaDrawn) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> sides = {{9, 9}, {4, 13}, {10, 5}};
  for (const auto& [height, width] : sides) {
    const at::Tensor x = at::rand({2, 3, height, width}, at::kDouble);
    for (const std::int64_t kernel_size : {1, 3, 5, 7}) {
      for (std::uint64_t sample = 0; sample < 10; ++sample) {
        const Transform blur = gaussian_blur(kernel_size, 0.3, 4);
        const at::Tensor expected = blurred(x, kernel_size, drawn_sigma(sample, 0.3, 4));
        EXPECT_TRUE(at::allclose(apply(blur, x, sample), expected, 0, 1e-12));
        // Sums of at most 49 numbers below 1.
        EXPECT_TRUE(
            at::allclose(apply(blur, x.to(at::kFloat), sample).to(at::kDouble), expected, 0, 1e-6));
      }
    }
  }
}

TEST(GaussianBlur, HasTorchvisionsDefaults) {
  const at::Tensor x = at::rand({6, 6}, at::kDouble);
  for (std::uint64_t sample = 0; sample < 20; ++sample) {
    EXPECT_TRUE(at::allclose(apply(gaussian_blur(3), x, sample),
                             blurred(x, 3, drawn_sigma(sample, 0.1, 2)), 0, 1e-12));
  }
}

TEST(GaussianBlur, RoundsIntegersToTheNearest) {
  for (const auto dtype : {at::kByte, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16}) {
    const at::Tensor x = random_image({3, 8, 7}, at::kInt).to(dtype);
    const at::Tensor y = apply(gaussian_blur(5), x, 4);
    EXPECT_EQ(y.scalar_type(), dtype);
    const at::Tensor exact = blurred(x, 5, drawn_sigma(4, 0.1, 2));
    // Half of the spacing of numbers up to 255 in bfloat16 is 0.5, too.
    EXPECT_LE((y.to(at::kDouble) - exact).abs().max().item<double>(), 0.5 + 1e-4) << dtype;
  }
}

TEST(GaussianBlur, LeavesTheImageWhereTheBellIsNarrow) {
  const at::Tensor x = random_image({3, 8, 7});
  EXPECT_TRUE(at::equal(apply(gaussian_blur(1), x), x));
  EXPECT_TRUE(at::equal(apply(gaussian_blur(7, 1e-200, 1e-200), x), x));
}

TEST(GaussianBlur, RefusesWhatIsNoBell) {
  for (const std::int64_t kernel_size : {-3, 0, 4}) {
    EXPECT_THAT(message_of<UsageError>([&] { gaussian_blur(kernel_size); }),
                HasSubstr("gaussian_blur with a kernel of"));
  }
  const double none = std::nan("");
  const std::vector<std::pair<double, double>> sigmas = {
      {0, 1}, {2, 1}, {1, std::numeric_limits<double>::infinity()}, {none, 1}, {1, none}};
  for (const auto& [low, high] : sigmas) {
    EXPECT_THAT(message_of<UsageError>([low, high] { gaussian_blur(3, low, high); }),
                HasSubstr("gaussian_blur with a sigma from"));
  }
}

TEST(GaussianBlur, RefusesImagesSmallerThanTheirReflection) {
  EXPECT_THAT(refusal(gaussian_blur(5), at::zeros({1, 2, 9})),
              HasSubstr("gaussian_blur with a kernel of 5 of Float [1, 2, 9]"));
  EXPECT_EQ(apply(gaussian_blur(5), at::zeros({1, 3, 9})).size(1), 3);
  EXPECT_THAT(refusal(gaussian_blur(1), at::zeros({1, 0, 9})), HasSubstr("gaussian_blur with"));
  EXPECT_THAT(refusal(gaussian_blur(3), at::zeros({4, 4}, at::kBool)),
              HasSubstr("gaussian_blur cannot compute with Bool [4, 4]"));
  EXPECT_THAT(refusal(gaussian_blur(3), at::zeros({4})),
              HasSubstr("expected an image [..., height, width]"));
}

}  // namespace
}  // namespace trireme::data
