// SPDX-License-Identifier: Apache-2.0
// Replaces audio_file.cpp if CMake found no libsndfile. Every function throws ConfigError.
#include <trireme/base/error.h>
#include <trireme/data/audio/audio_file.h>

namespace trireme::data {

void detail::require_audio_reader() {
  throw ConfigError("sound files cannot be read: this is a build without libsndfile",
                    "install libsndfile1-dev and build again");
}

AudioInfo audio_info(const std::filesystem::path& /*path*/) {
  detail::require_audio_reader();
  return {};
}

Audio read_audio(const std::filesystem::path& /*path*/, const AudioOptions& /*options*/) {
  detail::require_audio_reader();
  return {};
}

}  // namespace trireme::data
