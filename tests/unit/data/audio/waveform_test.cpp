// SPDX-License-Identifier: Apache-2.0
// Against torchaudio's formula: tests/parity/data.
#include <trireme/data/audio/waveform.h>

#include <trireme/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <cmath>
#include <numbers>
#include <utility>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;
using Sizes = std::vector<std::int64_t>;

at::Tensor tone(double hertz, double sample_rate, std::int64_t frames) {
  return at::sin(at::arange(frames, at::kDouble) * (2 * std::numbers::pi * hertz / sample_rate));
}

// Away from the ends, where the sound is cut off.
double largest_inside(const at::Tensor& difference, std::int64_t margin) {
  return difference.slice(-1, margin, difference.size(-1) - margin).abs().max().item<double>();
}

TEST(Resample, KeepsATone) {
  for (const auto& [from, to] :
       {std::pair{16000, 8000}, std::pair{8000, 16000}, std::pair{44100, 16000},
        std::pair{44100, 48000}, std::pair{22050, 16000}}) {
    const at::Tensor resampled = resample(tone(440, from, from / 2), from, to);
    EXPECT_EQ(resampled.size(0), to / 2);
    // The short filter lets a little through beside the tone: 2 parts in a thousand.
    EXPECT_LT(largest_inside(resampled - tone(440, to, to / 2), 50), 2e-3) << from << " to " << to;
  }
}

TEST(Resample, KeepsSilenceOutOfWhatTheLowerRateCannotHold) {
  const at::Tensor high = tone(6000, 16000, 4000);
  EXPECT_LT(largest_inside(resample(high, 16000, 8000), 50), 0.02);
  const ResampleOptions sharp = {.lowpass_filter_width = 64, .window = ResampleWindow::kKaiser};
  EXPECT_LT(largest_inside(resample(high, 16000, 8000, sharp), 200), 1e-6);
}

TEST(Resample, TakesAnyRowsOfEitherDtype) {
  const at::Tensor x = at::rand({2, 3, 1000}, at::kDouble);
  const at::Tensor y = resample(x, 3, 2);
  EXPECT_EQ(y.sizes(), (Sizes{2, 3, 667}));
  EXPECT_TRUE(at::equal(y[1][2], resample(x[1][2], 3, 2)));
  const at::Tensor narrow = resample(x.to(at::kFloat), 3, 2);
  EXPECT_EQ(narrow.scalar_type(), at::kFloat);
  EXPECT_LT((narrow.to(at::kDouble) - y).abs().max().item<double>(), 2e-7);
}

TEST(Resample, LeavesEqualRatesAlone) {
  const at::Tensor x = at::rand({1, 77});
  EXPECT_TRUE(at::equal(resample(x, 44100, 44100), x));
}

TEST(Resample, RoundsTheLengthUp) {
  for (const std::int64_t frames : {0, 1, 2, 440, 441, 442, 12345}) {
    const std::int64_t expected = (frames * 160 + 440) / 441;
    EXPECT_EQ(resample(at::zeros({2, frames}), 44100, 16000).sizes(), (Sizes{2, expected}));
  }
}

TEST(Resample, RefusesWhatItCannotDo) {
  EXPECT_THAT(message_of<UsageError>([] { resample(0, 8000); }), HasSubstr("from 0 to 8000"));
  EXPECT_THAT(message_of<UsageError>([] { resample(8000, 1'000'001); }), HasSubstr("1000001"));
  EXPECT_THAT(message_of<UsageError>([] { resample(2, 1, {.lowpass_filter_width = 0}); }),
              HasSubstr("a width of 0"));
  for (const double rolloff : {0.0, 1.1, std::nan("")}) {
    EXPECT_THAT(message_of<UsageError>([&] { resample(2, 1, {.rolloff = rolloff}); }),
                HasSubstr("a rolloff of"));
  }
  EXPECT_THAT(message_of<UsageError>([] { resample(2, 1, {.beta = -1}); }),
              HasSubstr("a beta of -1"));
  EXPECT_THAT(message_of<UsageError>([] { resample(at::zeros({3}, at::kShort), 2, 1); }),
              HasSubstr("resample cannot compute with Short [3]"));
  EXPECT_THAT(message_of<UsageError>([] { resample(at::zeros({}), 2, 1); }),
              HasSubstr("resample of Float []"));
}

at::Tensor fixed(const at::Tensor& sample, std::int64_t frames) {
  Random unused(0, 0, 0, 0);
  return fix_length(frames)(sample, unused);
}

TEST(FixLength, CutsTheEndOrAddsZeros) {
  for (const auto dtype : {at::kByte, at::kShort, at::kFloat, at::kDouble}) {
    const at::Tensor x = (at::rand({2, 5}) * 100).to(dtype);
    EXPECT_TRUE(at::equal(fixed(x, 3), x.slice(1, 0, 3)));
    EXPECT_TRUE(at::equal(fixed(x, 5), x));
    const at::Tensor longer = fixed(x, 8);
    EXPECT_EQ(longer.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(longer.slice(1, 0, 5), x));
    EXPECT_TRUE(at::equal(longer.slice(1, 5), at::zeros({2, 3}, dtype)));
  }
}

TEST(FixLength, TakesSoundWithoutFramesOrChannels) {
  EXPECT_TRUE(at::equal(fixed(at::zeros({2, 0}), 4), at::zeros({2, 4})));
  EXPECT_EQ(fixed(at::zeros({0, 7}), 4).sizes(), (Sizes{0, 4}));
}

TEST(FixLength, RefusesALengthOfZeroAndASingleNumber) {
  EXPECT_THAT(message_of<UsageError>([] { fix_length(0); }), HasSubstr("fix_length to 0 frames"));
  EXPECT_THAT(message_of<UsageError>([] { fixed(at::zeros({}), 3); }),
              HasSubstr("fix_length of Float []"));
}

}  // namespace
}  // namespace trireme::data
