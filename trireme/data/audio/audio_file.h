// SPDX-License-Identifier: Apache-2.0
// Reads sound files into tensors with libsndfile.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme::data {

/// The properties of a sound file.
struct AudioInfo {
  /// The sample rate in frames per second.
  std::int64_t sample_rate = 0;
  /// The number of channels.
  std::int64_t channels = 0;
  /// The number of frames: samples of each channel.
  std::int64_t frames = 0;
  /// The format as libsndfile names it, such as "WAV (Microsoft), Signed 16 bit PCM".
  std::string format;
};

/// Sound in memory.
struct Audio {
  /// The samples, float32 [channels, frames]. Integers are scaled to [-1, 1).
  at::Tensor samples;
  /// The sample rate in frames per second.
  std::int64_t sample_rate = 0;
};

/// The part of a file to read, and a limit.
struct AudioOptions {
  /// The first frame to read.
  std::int64_t first_frame = 0;
  /// The maximum number of frames to read; by default all.
  std::optional<std::int64_t> num_frames = std::nullopt;

  /// The maximum of channels times frames; a file with more is refused before memory is allocated
  /// for it. The default is 4 GiB of samples.
  std::int64_t max_samples = std::int64_t{1} << 30;
};

/// Returns the properties of a file. Throws like read_audio() if the file cannot be opened or its
/// header is truncated.
AudioInfo audio_info(const std::filesystem::path& path);

/// Reads a WAV or FLAC file or a part of it, or any other format that the installed libsndfile
/// supports.
///
/// Integers of n bits are divided by 2^(n-1); floating-point samples are not changed, as in
/// torchaudio's `load`. Safe to call concurrently.
/// @throws DataError with the file if it is missing, is not a sound file, or first_frame is beyond
/// its end. It is thrown with the frame if the file is damaged or truncated, and for WAV with the
/// offset of the truncated chunk. It is also thrown if there are more than max_samples, or if a
/// FLAC stream does not state its length.
/// @throws UsageError if a number of frames is negative.
/// @throws ConfigError if Trireme was built without libsndfile.
Audio read_audio(const std::filesystem::path& path, const AudioOptions& options = {});

namespace detail {

/// Throws ConfigError if Trireme was built without libsndfile.
void require_audio_reader();

}  // namespace detail
}  // namespace trireme::data
