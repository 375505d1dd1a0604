// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/audio/audio_file.h>

#include <trireme/base/error.h>
#include <trireme/data/audio/wav.h>
#include <trireme/data/files/check_is_file.h>

#include <ATen/ops/empty.h>
#include <sndfile.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace trireme::data {
namespace {

constexpr sf_count_t kBlockFrames = 8192;

struct Close {
  void operator()(SNDFILE* file) const { ::sf_close(file); }
};
using File = std::unique_ptr<SNDFILE, Close>;

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view what,
                         std::string_view remedy = "get the file anew, or take it out of the set") {
  throw DataError(join_message(path.string(), ": ", what), remedy);
}

// libsndfile stores the reason of a failed sf_open in a global variable, which every call
// overwrites. The lock keeps it until it is read.
File open(const std::filesystem::path& path, SF_INFO& info) {
  static std::mutex opening;
  check_is_file(path);
  const std::lock_guard lock(opening);
  File file(::sf_open(path.c_str(), SFM_READ, &info));
  if (!file) {
    refuse(path, join_message("cannot be opened as a sound file: ", ::sf_strerror(nullptr)),
           "convert it to WAV or FLAC, or take it out of the data set");
  }
  return file;
}

std::string name_of(int command, int format) {
  SF_FORMAT_INFO info{};
  info.format = format;
  ::sf_command(nullptr, command, &info, sizeof(info));
  return info.name == nullptr ? "unknown" : info.name;
}

std::string describe(int format) {
  return name_of(SFC_GET_FORMAT_INFO, format & SF_FORMAT_TYPEMASK) + ", " +
         name_of(SFC_GET_FORMAT_INFO, format & SF_FORMAT_SUBMASK);
}

void check_options(const AudioOptions& options) {
  if (options.first_frame >= 0 && options.num_frames.value_or(0) >= 0) return;
  throw UsageError(join_message("read_audio from frame ", options.first_frame, ", ",
                                options.num_frames.value_or(0), " frames"),
                   "give numbers of at least 0");
}

// Returns the number of frames to read. Throws DataError if the options do not fit the file.
std::int64_t frames_of(const std::filesystem::path& path, const SF_INFO& info,
                       const AudioOptions& options) {
  if (info.frames == SF_COUNT_MAX)
    refuse(path, "it does not say how long it is", "encode it anew, not through a pipe");
  if (options.first_frame > info.frames) {
    refuse(path,
           join_message("it has ", info.frames, " frames, but is to be read from frame ",
                        options.first_frame),
           "ask for a part that there is");
  }
  const std::int64_t left = info.frames - options.first_frame;
  const std::int64_t frames = std::min(left, options.num_frames.value_or(left));
  if (frames > options.max_samples / info.channels) {
    refuse(path,
           join_message(frames, " frames of ", info.channels, " channels are more than the ",
                        options.max_samples, " samples that are allowed"),
           "read a part of it, or raise AudioOptions::max_samples");
  }
  return frames;
}

}  // namespace

void detail::require_audio_reader() {}

AudioInfo audio_info(const std::filesystem::path& path) {
  SF_INFO info{};
  const File file = open(path, info);
  return {.sample_rate = info.samplerate,
          .channels = info.channels,
          .frames = info.frames,
          .format = describe(info.format)};
}

Audio read_audio(const std::filesystem::path& path, const AudioOptions& options) {
  check_options(options);
  SF_INFO info{};
  const File file = open(path, info);
  detail::check_wav_is_whole(path);
  const std::int64_t frames = frames_of(path, info, options);
  if (options.first_frame > 0 && ::sf_seek(file.get(), options.first_frame, SEEK_SET) < 0)
    refuse(path,
           join_message("no way to frame ", options.first_frame, ": ", ::sf_strerror(file.get())));
  const std::int64_t channels = info.channels;
  at::Tensor samples = at::empty({channels, frames}, at::kFloat);
  auto* to = samples.mutable_data_ptr<float>();
  std::vector<float> block(static_cast<std::size_t>(channels * std::min(kBlockFrames, frames)));
  // libsndfile interleaves channels; the tensor stores one channel after the other. Blocks keep the
  // interleaved samples in the cache.
  for (std::int64_t frame = 0; frame < frames;) {
    const std::int64_t count =
        ::sf_readf_float(file.get(), block.data(), std::min(kBlockFrames, frames - frame));
    if (count <= 0 || ::sf_error(file.get()) != SF_ERR_NO_ERROR) {
      const std::int64_t place = options.first_frame + frame + std::max<std::int64_t>(count, 0);
      refuse(path,
             join_message("frame ", place, " of ", info.frames, ": ",
                          ::sf_error(file.get()) == SF_ERR_NO_ERROR ? "the file is cut short"
                                                                    : ::sf_strerror(file.get())));
    }
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      for (std::int64_t i = 0; i < count; ++i) {
        to[channel * frames + frame + i] = block[static_cast<std::size_t>(i * channels + channel)];
      }
    }
    frame += count;
  }
  return {.samples = std::move(samples), .sample_rate = info.samplerate};
}

}  // namespace trireme::data
