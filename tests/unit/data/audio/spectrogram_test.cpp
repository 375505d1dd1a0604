// SPDX-License-Identifier: Apache-2.0
// Against NumPy: tests/parity/data.
#include <trireme/data/audio/spectrogram.h>

#include <trireme/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Sizes = std::vector<std::int64_t>;

TEST(Spectrogram, HasItsPeakAtTheFrequencyOfATone) {
  const at::Tensor tone = at::sin(at::arange(4000) * (2 * std::numbers::pi * 1000 / 16000));
  const at::Tensor spectrum = spectrogram(tone.unsqueeze(0));
  ASSERT_EQ(spectrum.sizes(), (Sizes{1, 201, 21}));
  EXPECT_EQ(spectrum[0].select(1, 10).argmax().item<std::int64_t>(), 25);  // 1000 / 16000 * 400
}

// The definition, term by term.
TEST(Spectrogram, IsTheFourierTransformOfWindowedPieces) {
  const at::Tensor x = at::rand({60}, at::kDouble);
  const at::Tensor spectrum =
      spectrogram(x, {.fft_size = 16, .hop = 5, .power = {}, .is_centered = false});
  ASSERT_EQ(spectrum.sizes(), (Sizes{9, 9}));
  double worst = 0;
  for (std::int64_t f = 0; f < 9; ++f) {
    for (std::int64_t step = 0; step < 9; ++step) {
      std::complex<double> sum = 0;
      for (std::int64_t i = 0; i < 16; ++i) {
        const double angle = 2 * std::numbers::pi * static_cast<double>(i) / 16;
        sum += x[step * 5 + i].item<double>() * (0.5 - 0.5 * std::cos(angle)) *
               std::polar(1.0, -angle * static_cast<double>(f));
      }
      const auto value = spectrum[f][step].item<c10::complex<double>>();
      worst = std::max(worst, std::abs(std::complex<double>(value) - sum));
    }
  }
  EXPECT_LT(worst, 1e-12);
}

TEST(Spectrogram, TakesPowersNormsAndSides) {
  const at::Tensor x = at::rand({2, 500}, at::kDouble);
  const at::Tensor power = spectrogram(x);
  EXPECT_TRUE(at::allclose(spectrogram(x, {.power = 1}).square(), power));
  EXPECT_TRUE(at::allclose(spectrogram(x, {.power = {}}).abs().square(), power));
  EXPECT_TRUE(at::allclose(spectrogram(x, {.norm = SpectrogramNorm::kFrameLength}) * 400.0, power));
  // The squares of Hann's window sum up to 3/8 of its length.
  EXPECT_TRUE(at::allclose(spectrogram(x, {.norm = SpectrogramNorm::kWindow}) * 150.0, power));
  const at::Tensor both = spectrogram(x, {.is_onesided = false});
  EXPECT_EQ(both.size(1), 400);
  EXPECT_TRUE(at::allclose(both.slice(1, 0, 201), power));
}

TEST(Spectrogram, TakesAWindowOfItsOwn) {
  const at::Tensor x = at::rand({1, 200}, at::kDouble);
  const SpectrogramOptions options = {
      .fft_size = 64, .window_size = 10, .hop = 8, .window = at::ones({10}), .is_centered = false};
  const at::Tensor spectrum = spectrogram(x, options);
  EXPECT_EQ(spectrum.sizes(), (Sizes{1, 33, 18}));
  // The window lies in the middle of the transform.
  const double sum = x[0].slice(0, 27, 37).sum().item<double>();
  EXPECT_NEAR(spectrum[0][0][0].item<double>(), sum * sum, 1e-9);
}

TEST(Spectrogram, SeesWhatItIsToldBeyondTheEnds) {
  const at::Tensor x = at::rand({1, 100}, at::kDouble);
  const auto first = [&](PadMode mode) {
    return spectrogram(x, {.fft_size = 32, .window = at::ones({32}), .pad_mode = mode})[0][0][0]
        .item<double>();
  };
  const double half = x[0].slice(0, 0, 16).sum().item<double>();
  EXPECT_NEAR(first(PadMode::kConstant), half * half, 1e-9);
  const double edge = half + 16 * x[0][0].item<double>();
  EXPECT_NEAR(first(PadMode::kEdge), edge * edge, 1e-9);
  const double mirrored = half + x[0].slice(0, 1, 17).sum().item<double>();
  EXPECT_NEAR(first(PadMode::kReflect), mirrored * mirrored, 1e-9);
  EXPECT_EQ(spectrogram(x, {.fft_size = 32, .padding = 50}).size(2), 1 + 200 / 16);
}

TEST(Spectrogram, KeepsShapeDtypeAndAutograd) {
  const at::Tensor x = at::rand({2, 3, 500});
  const at::Tensor spectrum = spectrogram(x, {.fft_size = 64});
  EXPECT_EQ(spectrum.scalar_type(), at::kFloat);
  EXPECT_EQ(spectrum.sizes(), (Sizes{2, 3, 33, 16}));
  EXPECT_TRUE(at::equal(spectrum[1][2], spectrogram(x[1][2], {.fft_size = 64})));
  const at::Tensor leaf = at::rand({100}).requires_grad_();
  mel_spectrogram(leaf, {.num_mels = 4}, {.fft_size = 64}).sum().backward();
  EXPECT_GT(leaf.grad().abs().sum().item<double>(), 0);
}

TEST(Spectrogram, RefusesSettingsThatCannotBe) {
  for (const SpectrogramOptions& options :
       {SpectrogramOptions{.fft_size = 0}, SpectrogramOptions{.window_size = 401},
        SpectrogramOptions{.hop = 0}, SpectrogramOptions{.padding = -1}}) {
    EXPECT_THAT(message_of<UsageError>([&] { spectrogram(options); }),
                HasSubstr("spectrogram with an fft_size of"));
  }
  EXPECT_THAT(message_of<UsageError>([] { spectrogram({.window = at::ones({5})}); }),
              HasSubstr("the window of a spectrogram is [5], expected [400]"));
}

TEST(Spectrogram, RefusesSoundThatItCannotTake) {
  EXPECT_THAT(message_of<UsageError>([] { spectrogram(at::zeros({1, 200})); }),
              HasSubstr("spectrogram of Float [1, 200]: expected at least 201 frames for an "
                        "fft_size of 400"));
  EXPECT_EQ(spectrogram(at::zeros({1, 201})).size(2), 2);
  EXPECT_THAT(message_of<UsageError>([] { spectrogram(at::zeros({399}), {.is_centered = false}); }),
              HasSubstr("at least 400 frames"));
  EXPECT_THAT(message_of<UsageError>([] { spectrogram(at::zeros({1, 0})); }),
              HasSubstr("there is no sound"));
  EXPECT_THAT(message_of<UsageError>([] { spectrogram(at::zeros({1, 500}, at::kShort)); }),
              HasSubstr("Short [1, 500]: expected float32 or float64"));
}

TEST(MelFilters, AreTrianglesSideBySide) {
  for (const MelScale scale : {MelScale::kHtk, MelScale::kSlaney}) {
    const at::Tensor filters = mel_filters(4001, {.num_mels = 20, .low = 50, .scale = scale});
    ASSERT_EQ(filters.sizes(), (Sizes{4001, 20}));
    EXPECT_GE(filters.min().item<double>(), 0);
    EXPECT_NEAR(filters.max().item<double>(), 1, 0.05);
    const at::Tensor peaks = filters.argmax(0);
    for (std::int64_t i = 0; i + 1 < 20; ++i) {
      const auto peak = peaks[i].item<std::int64_t>();
      EXPECT_LT(peak, peaks[i + 1].item<std::int64_t>());
      // Where one falls the next rises: together they are 1.
      const at::Tensor pair =
          filters.slice(0, peak + 1, peaks[i + 1].item<std::int64_t>()).slice(1, i, i + 2).sum(1);
      EXPECT_TRUE(at::allclose(pair, at::ones_like(pair), 1e-5, 1e-5));
    }
  }
}

TEST(MelFilters, HaveTheAreaOneWhereAsked) {
  const at::Tensor filters =
      mel_filters(8001, {.num_mels = 10, .scale = MelScale::kSlaney, .is_area_normalized = true});
  const at::Tensor areas = filters.sum(0);  // one frequency for each Hz
  EXPECT_TRUE(at::allclose(areas, at::ones_like(areas), 1e-3));
}

TEST(MelFilters, RefuseSettingsThatCannotBe) {
  for (const MelOptions& options :
       {MelOptions{.sample_rate = 0}, MelOptions{.num_mels = 0}, MelOptions{.low = -1},
        MelOptions{.low = 9000}, MelOptions{.high = 0}, MelOptions{.high = std::nan("")}}) {
    EXPECT_THAT(message_of<UsageError>([&] { mel_filters(201, options); }),
                HasSubstr("mel filters of 201 frequencies"));
  }
  EXPECT_THAT(message_of<UsageError>([] { mel_filters(1); }), HasSubstr("of 1 frequencies"));
}

TEST(MelSpectrogram, IsTheSpectrogramThroughTheFilters) {
  const at::Tensor x = at::rand({2, 1000});
  const at::Tensor mel = mel_spectrogram(x, {.num_mels = 30});
  EXPECT_EQ(mel.sizes(), (Sizes{2, 30, 6}));
  const at::Tensor expected = mel_filters(201, {.num_mels = 30}).t().matmul(spectrogram(x));
  EXPECT_TRUE(at::allclose(mel, expected, 1e-5, 1e-5));
}

TEST(MelSpectrogram, RefusesComplexNumbersAndBothSides) {
  EXPECT_THAT(message_of<UsageError>([] { mel_spectrogram(MelOptions{}, {.power = {}}); }),
              HasSubstr("mel_spectrogram of complex numbers"));
  EXPECT_THAT(message_of<UsageError>([] { mel_spectrogram(MelOptions{}, {.is_onesided = false}); }),
              AllOf(HasSubstr("both sides"), HasSubstr("hint")));
}

}  // namespace
}  // namespace trireme::data
