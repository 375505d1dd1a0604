// SPDX-License-Identifier: Apache-2.0
// Whether a WAV file is all there: libsndfile reads one that is cut short as if it were shorter.
#pragma once

#include <filesystem>

namespace trireme::data::detail {

/// Throws DataError with file and offset where a RIFF file of type WAVE ends before its data do.
/// Any other file passes, and one that was written to a pipe and so does not know its length.
void check_wav_is_whole(const std::filesystem::path& path);

}  // namespace trireme::data::detail
