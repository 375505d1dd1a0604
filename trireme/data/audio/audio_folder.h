// SPDX-License-Identifier: Apache-2.0
// Data sets of sound files in one folder per class, such as Speech Commands.
#pragma once

#include <trireme/data/audio/audio_file.h>
#include <trireme/data/class_folders.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

namespace trireme::data {

/// Options of audio_folder().
struct AudioFolderOptions {
  /// The rate that sound is resampled to, like resample() with its defaults. By default sound keeps
  /// its own rate.
  std::optional<std::int64_t> sample_rate = std::nullopt;

  /// Averages the channels into one.
  bool is_mono = false;

  /// The part of each file to read, before resampling.
  AudioOptions part = {};
};

/// Makes a data set of the files `root/<class>/…/<file>` like class_folders(). Samples are the
/// files that end in .wav or .flac, in lower or upper case.
///
/// The columns are "audio", float32 [channels, frames], read by read_audio() on each request;
/// "sample_rate", int64 [], the rate of "audio"; and "label", int64 []. Sound of different lengths
/// must be brought to one length before it forms a batch:
///
///     const auto words = audio_folder("speech", {.sample_rate = 16000, .is_mono = true});
///     DataLoader(words).map("audio", fix_length(16000)).map("audio", mel_spectrogram()).batch(32);
///
/// Throws like class_folders(); get() throws like read_audio() and resample().
/// @throws UsageError if the sample rate is out of range.
/// @throws ConfigError if Trireme was built without libsndfile.
std::shared_ptr<const ClassFolders> audio_folder(const std::filesystem::path& root,
                                                 const AudioFolderOptions& options = {});

}  // namespace trireme::data
