// SPDX-License-Identifier: Apache-2.0
// Sound files sorted into a folder for each class, such as the Speech Commands set.
#pragma once

#include <trireme/data/audio/audio_file.h>
#include <trireme/data/class_folders.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

namespace trireme::data {

struct AudioFolderOptions {
  /// What sound of another rate is resampled to, as resample() does with its defaults. Default:
  /// sound stays at its own rate.
  std::optional<std::int64_t> sample_rate = std::nullopt;

  bool is_mono = false;  ///< Channels are mixed to one, their mean.

  /// Of each file; before resampling.
  AudioOptions part = {};
};

/// Lists `root/<class>/…/<file>` as class_folders() does; samples are the files that end with .wav
/// or .flac in small or capital letters. Columns: "audio" float32 [channels, frames], read by
/// read_audio() each time that it is asked for; "sample_rate" int64 [], which is that of the
/// column; and "label" int64 [].
///
/// Sound of different lengths has to be brought to one before it makes a batch:
///
///     const auto words = audio_folder("speech", {.sample_rate = 16000, .is_mono = true});
///     DataLoader(words).map("audio", fix_length(16000)).map("audio", mel_spectrogram()).batch(32);
///
/// Throws as class_folders() and, in get(), read_audio() and resample() do; UsageError where the
/// sample rate is none, ConfigError where Trireme was built without libsndfile.
std::shared_ptr<const ClassFolders> audio_folder(const std::filesystem::path& root,
                                                 const AudioFolderOptions& options = {});

}  // namespace trireme::data
