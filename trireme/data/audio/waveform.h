// SPDX-License-Identifier: Apache-2.0
// What is done to sound as it was recorded, [..., frames]: another sample rate, another length.
// Loops over the sample's memory without threads of their own, as the transforms of images.
#pragma once

#include <trireme/data/transform.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::data {

/// What the sinc is multiplied with, t from -1 to 1 over its width.
enum class ResampleWindow {
  kHann,    ///< cos(pi t / 2)^2
  kKaiser,  ///< I0(beta sqrt(1 - t^2)) / I0(beta)
};

/// The names and defaults of torchaudio's Resample.
struct ResampleOptions {
  std::int64_t lowpass_filter_width = 6;  ///< zero crossings to each side: more are sharper, slower
  double rolloff = 0.99;                  ///< of the lower of both rates; less lets less through
  ResampleWindow window = ResampleWindow::kHann;
  double beta = 14.769656459379492;  ///< of the Kaiser window
};

/// Changes the sample rate by a windowed sinc: [..., frames] to [..., frames * to_rate /
/// from_rate], rounded up; float32 and float64. The filter is that of torchaudio's Resample,
/// computed in float64, where torchaudio rounds times and filter to float32: the results agree to
/// 1e-4 of the loudest sample. Equal rates leave the sample as it is. Throws UsageError unless both
/// rates are from 1 to 1,000,000, the width is positive and 0 < rolloff <= 1; refuses other dtypes.
Transform resample(std::int64_t from_rate, std::int64_t to_rate,
                   const ResampleOptions& options = {});

/// The same outside a data loader; without autograd.
at::Tensor resample(const at::Tensor& waveform, std::int64_t from_rate, std::int64_t to_rate,
                    const ResampleOptions& options = {});

/// Cuts the end off, or adds zeros there, so that sound of any length makes a batch: [..., n] to
/// [..., frames], any dtype. For a random piece there is random_crop(channels, frames), for the
/// middle center_crop(channels, frames). Throws UsageError where frames is not positive.
Transform fix_length(std::int64_t frames);

}  // namespace trireme::data
