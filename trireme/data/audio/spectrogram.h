// SPDX-License-Identifier: Apache-2.0
// Spectrograms, mel spectrograms and decibels. The results are those of torchaudio's transforms
// with the same names. Uses LibTorch's short-time Fourier transform.
#pragma once

#include <trireme/data/transform.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace trireme::data {

/// How a spectrogram is normalized.
enum class SpectrogramNorm {
  /// No normalization.
  kNone,
  kWindow,       ///< Divides by the square root of the sum of the squared window.
  kFrameLength,  ///< Divides by the square root of fft_size.
};

/// Options of spectrogram().
struct SpectrogramOptions {
  /// The number of frames of one Fourier transform.
  std::int64_t fft_size = 400;
  /// The size of the window; by default fft_size.
  std::optional<std::int64_t> window_size = std::nullopt;
  /// The number of frames between two transforms; by default half of window_size.
  std::optional<std::int64_t> hop = std::nullopt;
  /// The number of zeros added at both ends of the sound.
  std::int64_t padding = 0;
  /// The window, [window_size]; by default a periodic Hann window.
  at::Tensor window = {};
  /// The exponent of the magnitude; nullopt for complex numbers.
  std::optional<double> power = 2.0;
  /// The normalization.
  SpectrogramNorm norm = SpectrogramNorm::kNone;
  /// Centres transform t at frame t * hop; if false, transform t begins there.
  bool is_centered = true;
  /// How centred transforms continue the sound beyond its ends.
  PadMode pad_mode = PadMode::kReflect;
  /// Returns the lower half of the frequencies only.
  bool is_onesided = true;
};

/// Returns a transform [..., frames] to [..., fft_size / 2 + 1, steps] of float32 or float64. The
/// result is complex if there is no power.
///
/// The number of steps is 1 + (frames + 2 padding) / hop, rounded down; if not centred, fft_size is
/// subtracted from the frames first. If not one-sided, the result has fft_size frequencies. In a
/// data loader this counts as a function of the program: ATen may start OpenMP threads for long
/// samples (see DataLoader::prefetch).
/// @throws UsageError unless 1 <= window_size <= fft_size, hop >= 1, padding >= 0 and the window
/// has window_size elements. Rejects other dtypes and sound that is too short for one transform
/// (with PadMode::kReflect: up to fft_size / 2 frames).
Transform spectrogram(const SpectrogramOptions& options = {});

/// Computes a spectrogram outside a data loader. Supports autograd.
at::Tensor spectrogram(const at::Tensor& waveform, const SpectrogramOptions& options = {});

/// The relation between mel and Hz.
enum class MelScale {
  kHtk,     ///< 2595 log10(1 + f / 700).
  kSlaney,  ///< Linear, 3 f / 200, up to 1000 Hz; above, 15 + 27 log(f / 1000) / log(6.4).
};

/// Options of mel_filters() and mel_spectrogram().
struct MelOptions {
  /// The sample rate of the sound.
  std::int64_t sample_rate = 16000;
  /// The number of filters.
  std::int64_t num_mels = 128;
  /// The frequency in Hz at which the first filter begins.
  double low = 0;
  /// The frequency in Hz at which the last filter ends; by default half the sample rate.
  std::optional<double> high = std::nullopt;
  /// The mel scale.
  MelScale scale = MelScale::kHtk;
  /// Normalizes each filter to the area 1 in Hz, like Slaney.
  bool is_area_normalized = false;
};

/// Returns triangular filters of equal width in mel, float32 [num_frequencies, num_mels].
///
/// These are the filters of torchaudio's melscale_fbanks; the frequencies go from 0 to half the
/// sample rate, rounded down. With many filters for few frequencies, some filters are zero
/// everywhere. Throws UsageError unless num_frequencies >= 2, num_mels >= 1, sample_rate >= 1 and 0
/// <= low < high.
at::Tensor mel_filters(std::int64_t num_frequencies, const MelOptions& options = {});

/// Returns a transform [..., frames] to [..., num_mels, steps]: the spectrogram multiplied by mel
/// filters, like torchaudio's MelSpectrogram. Throws UsageError like spectrogram() and
/// mel_filters(), and if the options have no power or are not one-sided.
Transform mel_spectrogram(const MelOptions& mel = {}, const SpectrogramOptions& options = {});

/// Computes a mel spectrogram outside a data loader. Supports autograd.
at::Tensor mel_spectrogram(const at::Tensor& waveform, const MelOptions& mel = {},
                           const SpectrogramOptions& options = {});

/// The quantity that is converted to decibel.
enum class DecibelOf {
  kPower,      ///< 10 log10(x).
  kMagnitude,  ///< 20 log10(x).
};

/// Returns a transform that computes 10 or 20 times log10(max(x, 1e-10)), like torchaudio's
/// AmplitudeToDB.
///
/// Takes float32 and float64 of any shape. `range` limits how many decibel a value may be below the
/// maximum; lower values are raised. The maximum is that of each [channels, frequencies, steps] if
/// there are more dimensions. Starts no threads. Throws UsageError if the range is negative.
/// Rejects other dtypes.
Transform amplitude_to_decibel(DecibelOf of = DecibelOf::kPower,
                               std::optional<double> range = std::nullopt);

/// Converts to decibel outside a data loader. Does not support autograd.
at::Tensor amplitude_to_decibel(const at::Tensor& spectrogram, DecibelOf of = DecibelOf::kPower,
                                std::optional<double> range = std::nullopt);

}  // namespace trireme::data
