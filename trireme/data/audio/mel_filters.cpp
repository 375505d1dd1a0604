// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/data/audio/spectrogram.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace trireme::data {
namespace {

// Slaney's scale is linear below this frequency and logarithmic above.
constexpr double kKneeHz = 1000;
constexpr double kKneeMel = 15;
const double kLogStep = std::log(6.4) / 27;

double mel_of(double hz, MelScale scale) {
  if (scale == MelScale::kHtk) return 2595 * std::log10(1 + hz / 700);
  return hz < kKneeHz ? hz * 3 / 200 : kKneeMel + std::log(hz / kKneeHz) / kLogStep;
}

double hz_of(double mel, MelScale scale) {
  if (scale == MelScale::kHtk) return 700 * (std::pow(10, mel / 2595) - 1);
  return mel < kKneeMel ? mel * 200 / 3 : kKneeHz * std::exp(kLogStep * (mel - kKneeMel));
}

}  // namespace

at::Tensor mel_filters(std::int64_t num_frequencies, const MelOptions& options) {
  const std::int64_t whole_half = options.sample_rate / 2;
  const auto half = static_cast<double>(whole_half);
  const double high = options.high.value_or(half);
  if (num_frequencies < 2 || options.num_mels < 1 || options.sample_rate < 1 ||
      !(options.low >= 0 && options.low < high && std::isfinite(high))) {
    throw UsageError(join_message("mel filters of ", num_frequencies, " frequencies and ",
                                  options.num_mels, " mels from ", options.low, " to ", high,
                                  " Hz at a rate of ", options.sample_rate),
                     "give at least 2 frequencies, 1 mel, a rate, and 0 <= low < high");
  }
  // Filter i rises from corner i to corner i + 1 and falls to corner i + 2. Corners are equidistant
  // in mel.
  const double first = mel_of(options.low, options.scale);
  const double last = mel_of(high, options.scale);
  std::vector<double> corners;
  for (std::int64_t i = 0; i < options.num_mels + 2; ++i) {
    const double part = static_cast<double>(i) / static_cast<double>(options.num_mels + 1);
    corners.push_back(hz_of(first + (last - first) * part, options.scale));
  }
  at::Tensor filters = at::empty({num_frequencies, options.num_mels}, at::kFloat);
  auto* filter = filters.mutable_data_ptr<float>();
  for (std::int64_t f = 0; f < num_frequencies; ++f) {
    const double hz = half * static_cast<double>(f) / static_cast<double>(num_frequencies - 1);
    for (std::size_t i = 0; i + 2 < corners.size(); ++i) {
      const double up = (hz - corners[i]) / (corners[i + 1] - corners[i]);
      const double down = (corners[i + 2] - hz) / (corners[i + 2] - corners[i + 1]);
      const double area = options.is_area_normalized ? 2 / (corners[i + 2] - corners[i]) : 1;
      *filter++ = static_cast<float>(std::max(0.0, std::min(up, down)) * area);
    }
  }
  return filters;
}

}  // namespace trireme::data
