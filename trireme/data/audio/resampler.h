// SPDX-License-Identifier: Apache-2.0
// The filter behind resample().
#pragma once

#include <trireme/data/audio/waveform.h>

#include <cstdint>
#include <vector>

namespace trireme::data::detail {

/// Sound of one rate as sound of another, by a windowed sinc. Only taps within the window are kept:
/// a convolution over whole periods, as torchaudio does it, multiplies by zeros for the most part.
/// Const methods may be called concurrently.
class Resampler {
 public:
  /// Throws UsageError as resample() says.
  Resampler(std::int64_t from_rate, std::int64_t to_rate, const ResampleOptions& options);

  /// Frames that so many become: frames * to_rate / from_rate, rounded up.
  std::int64_t frames(std::int64_t from_frames) const;

  /// Writes frames(from_frames) of them; sums in float64.
  template <typename Number>
  void run(const Number* from, std::int64_t from_frames, Number* to) const;

 private:
  void make_taps(const ResampleOptions& options);

  // Rates without their common divisor: `to_` frames come out of `from_`.
  std::int64_t from_;
  std::int64_t to_;
  std::int64_t width_ = 0;           // taps of each of the `to_` filters
  std::vector<std::int64_t> first_;  // which frame each filter begins with
  std::vector<double> taps_;         // [to_, width_]
};

}  // namespace trireme::data::detail
