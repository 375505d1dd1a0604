// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/audio/spectrogram.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/operation.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/hann_window.h>
#include <ATen/ops/stft.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::data {
namespace {

// The settings with all defaults filled in. Also the function that a transform copies.
class Spectrogram {
 public:
  explicit Spectrogram(SpectrogramOptions options) : options_(std::move(options)) {
    const std::int64_t window_size = options_.window_size.value_or(options_.fft_size);
    const std::int64_t hop = options_.hop.value_or(std::max<std::int64_t>(window_size / 2, 1));
    if (window_size < 1 || window_size > options_.fft_size || hop < 1 || options_.padding < 0) {
      throw UsageError(
          join_message("spectrogram with an fft_size of ", options_.fft_size, ", a window_size of ",
                       window_size, ", a hop of ", hop, " and a padding of ", options_.padding),
          "give 1 <= window_size <= fft_size, hop >= 1 and padding >= 0");
    }
    if (!options_.window.defined())
      options_.window = at::hann_window(window_size, true, at::kDouble);
    if (options_.window.dim() != 1 || options_.window.size(0) != window_size) {
      throw UsageError(join_message("the window of a spectrogram is ", options_.window.sizes(),
                                    ", expected [", window_size, "]"),
                       "give one number for each frame of the window");
    }
    options_.window_size = window_size;
    options_.hop = hop;
    options_.window = options_.window.to(at::kDouble);
  }

  at::Tensor operator()(const at::Tensor& waveform) const {
    check(waveform);
    const at::Tensor window = options_.window.to(waveform.scalar_type());
    // stft takes at most two dimensions.
    at::Tensor rows = waveform.reshape({-1, waveform.size(-1)});
    if (options_.padding > 0)
      rows = at::constant_pad_nd(rows, {options_.padding, options_.padding});
    at::Tensor result = at::stft(
        rows, options_.fft_size, options_.hop, options_.window_size, window, options_.is_centered,
        pad_mode(), options_.norm == SpectrogramNorm::kFrameLength, options_.is_onesided, true);
    at::DimVector sizes(waveform.sizes().begin(), waveform.sizes().end() - 1);
    sizes.push_back(result.size(-2));
    sizes.push_back(result.size(-1));
    // Restores the leading dimensions.
    result = result.reshape(sizes);
    if (options_.norm == SpectrogramNorm::kWindow) result = result / window.square().sum().sqrt();
    if (!options_.power) return result;
    const at::Tensor magnitude = result.abs();
    // The usual power 1 needs no pow().
    return *options_.power == 1 ? magnitude : magnitude.pow(*options_.power);
  }

 private:
  void check(const at::Tensor& waveform) const {
    const auto refuse = [&](const std::string& what, std::string_view remedy) {
      throw UsageError(join_message("spectrogram of ", waveform.scalar_type(), " ",
                                    waveform.sizes(), ": ", what),
                       remedy);
    };
    if (waveform.scalar_type() != at::kFloat && waveform.scalar_type() != at::kDouble)
      refuse("expected float32 or float64", "type_cast the column to float32 first");
    if (waveform.dim() == 0 || waveform.numel() == 0)
      refuse("there is no sound", "give sound [..., frames]");
    const std::int64_t frames = waveform.size(-1) + 2 * options_.padding;
    // A reflection needs more frames than it adds; without centring, a whole transform must fit.
    const bool is_reflected = options_.is_centered && options_.pad_mode == PadMode::kReflect;
    const std::int64_t least = is_reflected           ? options_.fft_size / 2 + 1
                               : options_.is_centered ? 1
                                                      : options_.fft_size;
    if (frames < least) {
      refuse(join_message("expected at least ", least, " frames for an fft_size of ",
                          options_.fft_size),
             "take a smaller fft_size, or add zeros by fix_length");
    }
  }

  std::string_view pad_mode() const {
    switch (options_.pad_mode) {
      case PadMode::kConstant:
        return "constant";
      case PadMode::kReflect:
        return "reflect";
      case PadMode::kEdge:
        return "replicate";
    }
    throw InternalError("an unknown kind of padding",
                        "this is a defect in Trireme; please report it");
  }

  SpectrogramOptions options_;
};

class MelSpectrogram {
 public:
  MelSpectrogram(const MelOptions& mel, const SpectrogramOptions& options)
      : spectrogram_(options),
        filters_(mel_filters(options.fft_size / 2 + 1, mel).t().contiguous()) {
    if (options.power && options.is_onesided) return;
    throw UsageError("mel_spectrogram of complex numbers or of both sides",
                     "give a power, and leave is_onesided");
  }

  at::Tensor operator()(const at::Tensor& waveform) const {
    return filters_.to(waveform.scalar_type()).matmul(spectrogram_(waveform));
  }

 private:
  Spectrogram spectrogram_;
  at::Tensor filters_;  // [num_mels, frequencies]
};

}  // namespace

Transform spectrogram(const SpectrogramOptions& options) {
  return {"spectrogram", [spectrogram = Spectrogram(options)](const at::Tensor& sample, Random&) {
            return spectrogram(sample);
          }};
}

at::Tensor spectrogram(const at::Tensor& waveform, const SpectrogramOptions& options) {
  return Spectrogram(options)(waveform);
}

Transform mel_spectrogram(const MelOptions& mel, const SpectrogramOptions& options) {
  return {"mel_spectrogram",
          [spectrogram = MelSpectrogram(mel, options)](const at::Tensor& sample, Random&) {
            return spectrogram(sample);
          }};
}

at::Tensor mel_spectrogram(const at::Tensor& waveform, const MelOptions& mel,
                           const SpectrogramOptions& options) {
  return MelSpectrogram(mel, options)(waveform);
}

}  // namespace trireme::data
