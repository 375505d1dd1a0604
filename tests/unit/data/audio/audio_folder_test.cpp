// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/audio/audio_folder.h>

#include "sound_files.h"
#include <trireme/base/error.h>
#include <trireme/data/audio/spectrogram.h>
#include <trireme/data/audio/waveform.h>
#include <trireme/data/data_loader.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <sndfile.h>
#include <tests/temporary_folder.h>

#include <cmath>
#include <numbers>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::write_sound;
using Sizes = std::vector<std::int64_t>;

// A tone in each channel, the second one an octave higher.
std::vector<float> tones(int frames, int sample_rate, int channels) {
  std::vector<float> samples;
  for (int frame = 0; frame < frames; ++frame) {
    for (int channel = 1; channel <= channels; ++channel) {
      samples.push_back(static_cast<float>(
          0.5 * std::sin(2 * std::numbers::pi * 440 * channel * frame / sample_rate)));
    }
  }
  return samples;
}

class AudioFolder : public ::testing::Test {
 protected:
  AudioFolder() {
    std::filesystem::create_directories(folder_ / "no");
    std::filesystem::create_directories(folder_ / "yes");
    write_sound(folder_ / "no/1.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 16000, 2,
                tones(4000, 16000, 2));
    write_sound(folder_ / "yes/1.WAV", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 8000, 1,
                tones(1600, 8000, 1));
    write_sound(folder_ / "yes/2.flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_24, 22050, 1,
                tones(2000, 22050, 1));
    folder_.write("yes/notes.txt", "said twice");
  }

  test::TemporaryFolder folder_;
};

TEST_F(AudioFolder, GivesSoundRateAndLabel) {
  const auto set = audio_folder(folder_.path());
  EXPECT_THAT(set->classes(), ElementsAre("no", "yes"));
  EXPECT_THAT(set->columns(), ElementsAre("audio", "sample_rate", "label"));
  ASSERT_EQ(set->size(), 3);
  const auto first = set->get(0);
  EXPECT_TRUE(at::equal(first[0], read_audio(set->file(0)).samples));
  EXPECT_EQ(first[0].sizes(), (Sizes{2, 4000}));
  EXPECT_EQ(first[1].item<std::int64_t>(), 16000);
  EXPECT_EQ(first[2].item<std::int64_t>(), 0);
  EXPECT_EQ(set->get(2)[1].item<std::int64_t>(), 22050);
  EXPECT_EQ(set->get(2)[2].item<std::int64_t>(), 1);
}

TEST_F(AudioFolder, BringsSoundToOneRateAndOneChannel) {
  const auto set = audio_folder(folder_.path(), {.sample_rate = 16000, .is_mono = true});
  const auto stereo = read_audio(set->file(0)).samples;
  EXPECT_TRUE(at::allclose(set->get(0)[0], (stereo[0] + stereo[1]).unsqueeze(0) / 2));
  const auto low = read_audio(set->file(1)).samples;
  for (int repetition = 0; repetition < 2; ++repetition) {
    const auto sample = set->get(1);
    EXPECT_TRUE(at::equal(sample[0], resample(low, 8000, 16000)));
    EXPECT_EQ(sample[0].sizes(), (Sizes{1, 3200}));
    EXPECT_EQ(sample[1].item<std::int64_t>(), 16000);
  }
  EXPECT_EQ(set->get(2)[0].size(1), (2000 * 16000 + 22049) / 22050);
}

TEST_F(AudioFolder, ReadsAPartOfEachFile) {
  const auto set = audio_folder(folder_.path(), {.part = {.first_frame = 100, .num_frames = 50}});
  EXPECT_EQ(set->get(0)[0].sizes(), (Sizes{2, 50}));
}

TEST_F(AudioFolder, FeedsBatchesOfSpectrograms) {
  const auto loader =
      DataLoader(audio_folder(folder_.path(), {.sample_rate = 16000, .is_mono = true}))
          .map("audio", fix_length(4000))
          .map("audio", mel_spectrogram({.num_mels = 40}))
          .map("audio", amplitude_to_decibel(DecibelOf::kPower, 80))
          .batch(3)
          .prefetch(2, 2);
  const auto batch = loader.open(0)->next();
  ASSERT_TRUE(batch);
  EXPECT_EQ((*batch)["audio"].sizes(), (Sizes{3, 1, 40, 21}));
  EXPECT_EQ((*batch)["sample_rate"].sizes(), (Sizes{3}));
  const at::Tensor spectrum = (*batch)["audio"][1][0];
  EXPECT_NEAR((spectrum.max() - spectrum.min()).item<double>(), 80, 1e-4);
}

TEST_F(AudioFolder, NamesSampleAndFileOfADamagedOne) {
  const auto path = folder_.write("yes/1.WAV", "no sound");
  const auto stream = DataLoader(audio_folder(folder_.path())).batch(1).open(0, 1);
  EXPECT_THAT(message_of<DataError>([&] { stream->next(); }),
              AllOf(HasSubstr("sample 1"), HasSubstr(path.string() + ": cannot be opened")));
}

TEST_F(AudioFolder, RefusesWhatIsNoRateAndFoldersWithoutSound) {
  EXPECT_THAT(message_of<UsageError>([&] { audio_folder(folder_.path(), {.sample_rate = 0}); }),
              HasSubstr("resample from 0 to 0"));
  folder_.write("maybe/notes.txt", "none");
  EXPECT_THAT(message_of<DataError>([&] { audio_folder(folder_.path()); }),
              HasSubstr((folder_ / "maybe").string() + " has no sound files (.wav, .flac)"));
}

}  // namespace
}  // namespace trireme::data
