// SPDX-License-Identifier: Apache-2.0
// Sound files as tensors, by libsndfile.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme::data {

/// What a sound file says of itself.
struct AudioInfo {
  std::int64_t sample_rate = 0;  ///< frames per second
  std::int64_t channels = 0;
  std::int64_t frames = 0;  ///< samples of each channel
  std::string format;       ///< as libsndfile calls it: "WAV (Microsoft), Signed 16 bit PCM"
};

/// Sound in memory.
struct Audio {
  at::Tensor
      samples;  ///< float32 [channels, frames]; whole numbers as parts of their range, [-1, 1)
  std::int64_t sample_rate = 0;  ///< frames per second
};

struct AudioOptions {
  std::int64_t first_frame = 0;
  std::optional<std::int64_t> num_frames = std::nullopt;  ///< at most so many; default: all

  /// Channels times frames above which a file is refused before memory is taken for it. The default
  /// is 4 GiB of samples.
  std::int64_t max_samples = std::int64_t{1} << 30;
};

/// Reads what a file says of itself. Throws as read_audio() does where it cannot be opened or is
/// cut short in its header.
AudioInfo audio_info(const std::filesystem::path& path);

/// Reads a WAV or FLAC file, or a part of it, or whatever else this libsndfile knows. Whole numbers
/// of n bits are divided by 2^(n-1), floating-point numbers stay as they are, as in torchaudio's
/// `load`. Safe to call concurrently.
///
/// Throws DataError with the file where it is missing, is no sound file, or has another number of
/// frames than it says: with the frame where it is damaged or ends, and for WAV with the offset of
/// the chunk that is cut short; where first_frame is beyond its end; where there are more than
/// max_samples; and where a FLAC stream does not say how long it is. Throws UsageError where a
/// number of frames is negative, ConfigError where Trireme was built without libsndfile.
Audio read_audio(const std::filesystem::path& path, const AudioOptions& options = {});

namespace detail {

/// Throws ConfigError where Trireme was built without libsndfile.
void require_audio_reader();

}  // namespace detail
}  // namespace trireme::data
