// SPDX-License-Identifier: Apache-2.0
// Sound over time and frequency, as torchaudio's transforms of these names compute it: by
// LibTorch's short-time Fourier transform.
#pragma once

#include <trireme/data/transform.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace trireme::data {

/// What the spectrogram is divided by.
enum class SpectrogramNorm {
  kNone,
  kWindow,       ///< the root of the sum of the window's squares
  kFrameLength,  ///< the root of fft_size
};

struct SpectrogramOptions {
  std::int64_t fft_size = 400;                             ///< frames of a transform
  std::optional<std::int64_t> window_size = std::nullopt;  ///< default: fft_size
  std::optional<std::int64_t> hop = std::nullopt;  ///< frames between transforms; default: half the
                                                   ///< window_size
  std::int64_t padding = 0;                        ///< zeros at both ends of the sound
  at::Tensor window = {};             ///< [window_size]; default: Hann's, periodic; float32
  std::optional<double> power = 2.0;  ///< of the magnitude; nullopt: complex numbers
  SpectrogramNorm norm = SpectrogramNorm::kNone;
  bool is_centered = true;  ///< Transform t is around frame t * hop, not from there on.
  PadMode pad_mode = PadMode::kReflect;  ///< what a centred one sees beyond the ends
  bool is_onesided = true;               ///< Only the frequencies of the first half.
};

/// [..., frames] to [..., fft_size / 2 + 1, steps], float32 and float64, complex without a power;
/// steps are 1 + (frames + 2 padding) / hop rounded down, or with the fft_size taken from the
/// frames where they are not centred. Both sides have fft_size frequencies. In a data loader it is
/// as a function of the program: ATen may start OpenMP threads for long samples (see
/// DataLoader::prefetch).
///
/// Throws UsageError unless 1 <= window_size <= fft_size, hop >= 1 and padding >= 0, and where the
/// window is another size; refuses other dtypes, and sound too short for one transform (for
/// PadMode::kReflect: up to fft_size / 2 frames).
Transform spectrogram(const SpectrogramOptions& options = {});

/// The same outside a data loader; autograd goes through it.
at::Tensor spectrogram(const at::Tensor& waveform, const SpectrogramOptions& options = {});

/// How mel relates to Hz.
enum class MelScale {
  kHtk,     ///< 2595 log10(1 + f / 700)
  kSlaney,  ///< linear, 3 f / 200, up to 1000 Hz, then 15 + 27 log(f / 1000) / log(6.4)
};

struct MelOptions {
  std::int64_t sample_rate = 16000;
  std::int64_t num_mels = 128;
  double low = 0;                             ///< Hz, where the first filter begins
  std::optional<double> high = std::nullopt;  ///< Hz, where the last ends; default: half the rate
  MelScale scale = MelScale::kHtk;
  bool is_area_normalized = false;  ///< Slaney's: each filter has the area 1 in Hz.
};

/// Triangular filters that are equally wide in mel, float32 [num_frequencies, num_mels]: those of
/// torchaudio's melscale_fbanks, whose frequencies go from 0 to half the rate, rounded down. Where
/// there are many filters for few frequencies some are all zeros. Throws UsageError unless
/// num_frequencies >= 2, num_mels >= 1, sample_rate >= 1 and 0 <= low < high.
at::Tensor mel_filters(std::int64_t num_frequencies, const MelOptions& options = {});

/// The spectrogram through mel filters, as torchaudio's MelSpectrogram: [..., frames] to [...,
/// num_mels, steps]. Throws UsageError as both do, and without a power or one side.
Transform mel_spectrogram(const MelOptions& mel = {}, const SpectrogramOptions& options = {});

/// The same outside a data loader; autograd goes through it.
at::Tensor mel_spectrogram(const at::Tensor& waveform, const MelOptions& mel = {},
                           const SpectrogramOptions& options = {});

/// What is turned into decibel.
enum class DecibelOf {
  kPower,      ///< 10 log10(x)
  kMagnitude,  ///< 20 log10(x)
};

/// Factor times log10(max(x, 1e-10)), as torchaudio's AmplitudeToDB: float32 and float64, of any
/// shape. With a range, nothing is further below the loudest: that of each [channels, frequencies,
/// steps], where there are more dimensions. Loops without threads of its own. Throws UsageError
/// where the range is negative; refuses other dtypes.
Transform amplitude_to_decibel(DecibelOf of = DecibelOf::kPower,
                               std::optional<double> range = std::nullopt);

/// The same outside a data loader; without autograd.
at::Tensor amplitude_to_decibel(const at::Tensor& spectrogram, DecibelOf of = DecibelOf::kPower,
                                std::optional<double> range = std::nullopt);

}  // namespace trireme::data
