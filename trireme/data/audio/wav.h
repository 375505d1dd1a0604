// SPDX-License-Identifier: Apache-2.0
// Detects truncated WAV files, which libsndfile reads as if they were shorter.
#pragma once

#include <filesystem>

namespace trireme::data::detail {

/// Throws DataError with file and offset if a RIFF file of type WAVE ends before its data do. Other
/// files pass, and so does a WAV file that was written to a pipe and does not know its length.
void check_wav_is_whole(const std::filesystem::path& path);

}  // namespace trireme::data::detail
