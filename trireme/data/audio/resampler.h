// SPDX-License-Identifier: Apache-2.0
// The filter behind resample().
#pragma once

#include <trireme/data/audio/waveform.h>

#include <cstdint>
#include <vector>

namespace trireme::data::detail {

/// Converts sound to another sample rate by a windowed sinc filter.
///
/// Only the taps within the window are kept. torchaudio convolves over whole periods and multiplies
/// mostly by zeros. Const methods may be called concurrently.
class Resampler {
 public:
  /// Makes the filter. Throws UsageError like resample().
  Resampler(std::int64_t from_rate, std::int64_t to_rate, const ResampleOptions& options);

  /// Returns the number of frames after resampling: frames * to_rate / from_rate, rounded up.
  std::int64_t frames(std::int64_t from_frames) const;

  /// Resamples one channel: writes frames(from_frames) frames to `to`. Sums are computed in
  /// float64.
  template <typename Number>
  void run(const Number* from, std::int64_t from_frames, Number* to) const;

 private:
  void make_taps(const ResampleOptions& options);

  // The rates divided by their greatest common divisor: `from_` frames become `to_` frames.
  std::int64_t from_;
  std::int64_t to_;
  // The number of taps of each of the `to_` filters.
  std::int64_t width_ = 0;
  // The frame at which each filter begins.
  std::vector<std::int64_t> first_;
  std::vector<double> taps_;  // The taps, [to_, width_].
};

}  // namespace trireme::data::detail
