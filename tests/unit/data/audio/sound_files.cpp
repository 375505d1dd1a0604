// SPDX-License-Identifier: Apache-2.0
#include "sound_files.h"

#include <sndfile.h>

#include <stdexcept>

namespace trireme::data::testing {
namespace {

template <typename Number, typename Write>
void write(const std::filesystem::path& path, int format, int sample_rate, int channels,
           const std::vector<Number>& samples, const Write& write_frames) {
  SF_INFO info{};
  info.samplerate = sample_rate;
  info.channels = channels;
  info.format = format;
  SNDFILE* const file = ::sf_open(path.c_str(), SFM_WRITE, &info);
  if (file == nullptr) throw std::runtime_error(::sf_strerror(nullptr));
  const auto frames = static_cast<sf_count_t>(samples.size()) / channels;
  const sf_count_t written = write_frames(file, samples.data(), frames);
  if (::sf_close(file) != 0 || written != frames)
    throw std::runtime_error("cannot write " + path.string());
}

}  // namespace

void write_sound(const std::filesystem::path& path, int format, int sample_rate, int channels,
                 const std::vector<std::int32_t>& samples) {
  write(path, format, sample_rate, channels, samples, ::sf_writef_int);
}

void write_sound(const std::filesystem::path& path, int format, int sample_rate, int channels,
                 const std::vector<float>& samples) {
  write(path, format, sample_rate, channels, samples, ::sf_writef_float);
}

}  // namespace trireme::data::testing
