// SPDX-License-Identifier: Apache-2.0
// Transforms of waveforms [..., frames]: resampling and fixing the length. Like the transforms of
// images, they are loops over the memory of the sample and start no threads.
#pragma once

#include <trireme/data/transform.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::data {

/// The window of the sinc filter, with t from -1 to 1 over its width.
enum class ResampleWindow {
  kHann,    ///< cos(pi t / 2)^2.
  kKaiser,  ///< I0(beta sqrt(1 - t^2)) / I0(beta).
};

/// Options of resample(), with the names and defaults of torchaudio's Resample.
struct ResampleOptions {
  /// The number of zero crossings to each side. A larger filter is sharper and slower.
  std::int64_t lowpass_filter_width = 6;
  /// The cut-off frequency as a fraction of that of the lower rate.
  double rolloff = 0.99;
  /// The window.
  ResampleWindow window = ResampleWindow::kHann;
  /// The parameter of the Kaiser window.
  double beta = 14.769656459379492;
};

/// Returns a transform that changes the sample rate by a windowed sinc filter: [..., frames] to
/// [..., frames * to_rate / from_rate], rounded up, of float32 or float64.
///
/// The filter is that of torchaudio's Resample, computed in float64. torchaudio rounds times and
/// filter to float32, so the results agree to 1e-4 of the loudest sample. Equal rates copy the
/// sample. Throws UsageError unless both rates are from 1 to 1,000,000, the width is positive, 0 <
/// rolloff <= 1 and beta is not negative. Rejects other dtypes.
Transform resample(std::int64_t from_rate, std::int64_t to_rate,
                   const ResampleOptions& options = {});

/// Resamples outside a data loader. Does not support autograd.
at::Tensor resample(const at::Tensor& waveform, std::int64_t from_rate, std::int64_t to_rate,
                    const ResampleOptions& options = {});

/// Returns a transform that truncates sound or appends zeros, so that sound of any length forms a
/// batch: [..., n] to [..., frames] of any dtype.
///
/// For a random piece use random_crop(channels, frames), for the middle center_crop(channels,
/// frames). Throws UsageError if `frames` is not positive.
Transform fix_length(std::int64_t frames);

}  // namespace trireme::data
