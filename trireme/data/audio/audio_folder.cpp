// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/audio/audio_folder.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/data/audio/resampler.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace trireme::data {
namespace {

bool is_sound(const std::filesystem::path& file) {
  std::string extension = file.extension().string();
  std::ranges::transform(extension, extension.begin(), ascii_lower);
  return extension == ".wav" || extension == ".flac";
}

// Averages the channels. This is a loop because at::mean starts OpenMP threads for long samples.
at::Tensor mixed(const at::Tensor& samples) {
  const std::int64_t channels = samples.size(0);
  const std::int64_t frames = samples.size(1);
  if (channels == 1) return samples;
  at::Tensor mono = at::empty({1, frames}, at::kFloat);
  const auto* from = samples.const_data_ptr<float>();
  auto* to = mono.mutable_data_ptr<float>();
  for (std::int64_t frame = 0; frame < frames; ++frame) {
    double sum = 0;
    for (std::int64_t channel = 0; channel < channels; ++channel)
      sum += static_cast<double>(from[channel * frames + frame]);
    to[frame] = static_cast<float>(sum / static_cast<double>(channels));
  }
  return mono;
}

// Loads files and caches one filter for each source rate. Safe to call concurrently.
class Loader {
 public:
  explicit Loader(const AudioFolderOptions& options) : options_(options) {
    if (options_.sample_rate) filter_from(*options_.sample_rate);  // Checks the rate early.
  }

  std::vector<at::Tensor> load(const std::filesystem::path& path) {
    auto [samples, rate] = read_audio(path, options_.part);
    if (options_.is_mono) samples = mixed(samples);
    if (options_.sample_rate && rate != *options_.sample_rate) {
      samples = resampled(samples, *filter_from(rate));
      rate = *options_.sample_rate;
    }
    const at::Tensor sample_rate = at::empty({}, at::kLong);
    *sample_rate.mutable_data_ptr<std::int64_t>() = rate;
    return {samples, sample_rate};
  }

 private:
  using Filter = std::shared_ptr<const detail::Resampler>;

  Filter filter_from(std::int64_t rate) {
    const std::lock_guard lock(mutex_);
    Filter& filter = filters_[rate];
    if (!filter) {
      filter = std::make_shared<detail::Resampler>(rate, *options_.sample_rate, ResampleOptions{});
    }
    return filter;
  }

  static at::Tensor resampled(const at::Tensor& samples, const detail::Resampler& filter) {
    const std::int64_t channels = samples.size(0);
    const std::int64_t frames = samples.size(1);
    at::Tensor result = at::empty({channels, filter.frames(frames)}, at::kFloat);
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      filter.run(samples.const_data_ptr<float>() + channel * frames, frames,
                 result.mutable_data_ptr<float>() + channel * filter.frames(frames));
    }
    return result;
  }

  const AudioFolderOptions options_;
  std::mutex mutex_;
  std::map<std::int64_t, Filter> filters_;  // Guarded by mutex_.
};

}  // namespace

std::shared_ptr<const ClassFolders> audio_folder(const std::filesystem::path& root,
                                                 const AudioFolderOptions& options) {
  detail::require_audio_reader();
  const auto loader = std::make_shared<Loader>(options);
  return class_folders(
      root, {.description = "sound files (.wav, .flac)",
             .columns = {"audio", "sample_rate"},
             .is_sample = is_sound,
             .load = [loader](const std::filesystem::path& file) { return loader->load(file); }});
}

}  // namespace trireme::data
