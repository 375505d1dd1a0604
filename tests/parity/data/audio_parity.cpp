// SPDX-License-Identifier: Apache-2.0
// What audio_parity.py compares:
//   audio_parity <folder>
// reads waveform.npy [channels, frames] and every .wav file of the folder, and writes results
// beside.
#include <trireme/data/audio/audio_file.h>
#include <trireme/data/audio/spectrogram.h>
#include <trireme/data/audio/waveform.h>
#include <trireme/data/npy.h>

#include <tests/parity/data/results.h>

namespace trireme::data {
namespace {

void add_resampled(test::Results& results, const at::Tensor& x) {
  for (const auto& [from, to] :
       {std::pair{16000, 8000}, std::pair{44100, 16000}, std::pair{8000, 22050}, std::pair{3, 7}}) {
    const std::string name = "resample-" + std::to_string(from) + "-" + std::to_string(to);
    results.add(name + "-hann", resample(x, from, to));
    results.add(name + "-kaiser", resample(x, from, to,
                                           {.lowpass_filter_width = 20,
                                            .rolloff = 0.9,
                                            .window = ResampleWindow::kKaiser,
                                            .beta = 9}));
  }
}

void add_spectrograms(test::Results& results, const at::Tensor& x) {
  results.add("spectrogram-default", spectrogram(x));
  results.add("spectrogram-magnitude",
              spectrogram(x, {.fft_size = 256, .window_size = 200, .hop = 80, .power = 1}));
  results.add("spectrogram-padded",
              spectrogram(x, {.fft_size = 128, .padding = 30, .norm = SpectrogramNorm::kWindow}));
  results.add("spectrogram-plain", spectrogram(x, {.fft_size = 128,
                                                   .norm = SpectrogramNorm::kFrameLength,
                                                   .is_centered = false}));
  results.add("spectrogram-edge",
              spectrogram(x, {.fft_size = 100, .power = 3, .pad_mode = PadMode::kEdge}));
  results.add("spectrogram-zeros",
              spectrogram(x, {.fft_size = 100, .pad_mode = PadMode::kConstant}));
}

void add_mels(test::Results& results, const at::Tensor& x) {
  const at::Tensor mel = mel_spectrogram(x, {.num_mels = 40});
  results.add("mel-htk", mel);
  results.add("mel-slaney", mel_spectrogram(x,
                                            {.sample_rate = 22050,
                                             .num_mels = 64,
                                             .low = 20,
                                             .high = 8000,
                                             .scale = MelScale::kSlaney,
                                             .is_area_normalized = true},
                                            {.fft_size = 512, .hop = 128}));
  results.add("filters-htk", mel_filters(201, {.num_mels = 40}));
  results.add("filters-slaney", mel_filters(257, {.sample_rate = 22050,
                                                  .num_mels = 64,
                                                  .low = 20,
                                                  .high = 8000,
                                                  .scale = MelScale::kSlaney,
                                                  .is_area_normalized = true}));
  results.add("decibel", amplitude_to_decibel(mel));
  results.add("decibel-range", amplitude_to_decibel(mel, DecibelOf::kMagnitude, 30));
}

void add_files(test::Results& results, const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".wav")
      results.add(entry.path().stem().string(), read_audio(entry.path()).samples);
  }
}

}  // namespace
}  // namespace trireme::data

int main(int, char** arguments) {
  const std::filesystem::path folder = arguments[1];
  trireme::test::Results results(folder);
  const at::Tensor x = trireme::data::read_npy(folder / "waveform.npy");
  trireme::data::add_resampled(results, x);
  trireme::data::add_spectrograms(results, x);
  trireme::data::add_mels(results, x);
  trireme::data::add_files(results, folder);
  results.print_shapes();
}
