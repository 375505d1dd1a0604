// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/audio/audio_file.h>

#include "sound_files.h"
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <sndfile.h>
#include <tests/temporary_folder.h>

#include <atomic>
#include <thread>

namespace trireme::data {
namespace {

using test::message_of;
using test::read_file;
using test::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::write_sound;
using Sizes = std::vector<std::int64_t>;

constexpr int kWav16 = SF_FORMAT_WAV | SF_FORMAT_PCM_16;
constexpr int kFlac16 = SF_FORMAT_FLAC | SF_FORMAT_PCM_16;

// Numbers of so many bits, from the least to the greatest, in the upper bits.
std::vector<std::int32_t> numbers_of_bits(int bits, int count) {
  std::vector<std::int32_t> numbers = {INT32_MIN};
  std::uint32_t state = 1;
  while (static_cast<int>(numbers.size()) < count) {
    state = state * 1664525U + 1013904223U;
    numbers.push_back(static_cast<std::int32_t>(state >> (32 - bits) << (32 - bits)));
  }
  numbers.back() = static_cast<std::int32_t>(0x7FFFFFFFU >> (32 - bits) << (32 - bits));
  return numbers;
}

class AudioFile : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, int format, int channels,
                              const std::vector<std::int32_t>& numbers) const {
    write_sound(folder_ / name, format, 8000, channels, numbers);
    return folder_ / name;
  }

  test::TemporaryFolder folder_;
};

TEST_F(AudioFile, ReadsWholeNumbersOfEveryWidthAsPartsOfTheirRange) {
  struct Case {
    int format;
    int bits;
  };
  for (const auto& [format, bits] :
       {Case{SF_FORMAT_WAV | SF_FORMAT_PCM_U8, 8}, Case{kWav16, 16},
        Case{SF_FORMAT_WAV | SF_FORMAT_PCM_24, 24}, Case{SF_FORMAT_FLAC | SF_FORMAT_PCM_S8, 8},
        Case{kFlac16, 16}, Case{SF_FORMAT_FLAC | SF_FORMAT_PCM_24, 24}}) {
    for (const int channels : {1, 2, 3}) {
      SCOPED_TRACE(join_message("format ", std::hex, format, ", channels ", channels));
      const auto numbers = numbers_of_bits(bits, 6000);
      const Audio audio = read_audio(write("sound", format, channels, numbers));
      EXPECT_EQ(audio.sample_rate, 8000);
      EXPECT_EQ(audio.samples.scalar_type(), at::kFloat);
      ASSERT_EQ(audio.samples.sizes(), (Sizes{channels, 6000 / channels}));
      int differences = 0;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const std::size_t place = i % static_cast<std::size_t>(channels) * numbers.size() /
                                      static_cast<std::size_t>(channels) +
                                  i / static_cast<std::size_t>(channels);
        differences += audio.samples.const_data_ptr<float>()[place] !=
                       static_cast<float>(numbers[i]) * 0x1p-31F;
      }
      EXPECT_EQ(differences, 0);
    }
  }
}

TEST_F(AudioFile, LeavesFloatingPointNumbersAsTheyAre) {
  const std::vector<float> numbers = {0.1F, -3.5F, 1e-30F, 7e20F};
  write_sound(folder_ / "float.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 44100, 1, numbers);
  const Audio audio = read_audio(folder_ / "float.wav");
  EXPECT_EQ(audio.sample_rate, 44100);
  const auto* begin = audio.samples.const_data_ptr<float>();
  EXPECT_EQ(std::vector<float>(begin, begin + 4), numbers);
}

TEST_F(AudioFile, TellsWhatItIs) {
  const AudioInfo wav = audio_info(write("a.wav", kWav16, 2, numbers_of_bits(16, 20)));
  EXPECT_EQ(wav.sample_rate, 8000);
  EXPECT_EQ(wav.channels, 2);
  EXPECT_EQ(wav.frames, 10);
  EXPECT_THAT(wav.format, AllOf(HasSubstr("WAV"), HasSubstr("16 bit")));
  EXPECT_THAT(audio_info(write("a.flac", kFlac16, 1, {1})).format, HasSubstr("FLAC"));
}

TEST_F(AudioFile, ReadsAPart) {
  const auto numbers = numbers_of_bits(16, 20'000);
  for (const int format : {kWav16, kFlac16}) {
    const auto path = write("sound", format, 1, numbers);
    const at::Tensor part = read_audio(path, {.first_frame = 9000, .num_frames = 3}).samples;
    ASSERT_EQ(part.sizes(), (Sizes{1, 3}));
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(part.const_data_ptr<float>()[i], static_cast<float>(numbers[9000 + i]) * 0x1p-31F);
    }
    EXPECT_EQ(read_audio(path, {.first_frame = 19'990}).samples.size(1), 10);
    EXPECT_EQ(read_audio(path, {.first_frame = 19'990, .num_frames = 50}).samples.size(1), 10);
    EXPECT_EQ(read_audio(path, {.first_frame = 20'000}).samples.size(1), 0);
    EXPECT_EQ(read_audio(path, {.num_frames = 0}).samples.size(1), 0);
  }
}

TEST_F(AudioFile, RefusesAPartThatCannotBe) {
  const auto path = write("a.wav", kWav16, 1, {1, 2, 3});
  EXPECT_THAT(message_of<DataError>([&] { read_audio(path, {.first_frame = 4}); }),
              HasSubstr(path.string() + ": it has 3 frames, but is to be read from frame 4"));
  EXPECT_THAT(message_of<UsageError>([&] { read_audio(path, {.first_frame = -1}); }),
              HasSubstr("from frame -1"));
  EXPECT_THAT(message_of<UsageError>([&] { read_audio(path, {.num_frames = -2}); }),
              HasSubstr("-2 frames"));
}

TEST_F(AudioFile, LimitsTheSamples) {
  const auto path = write("a.flac", kFlac16, 2, numbers_of_bits(16, 100));
  EXPECT_EQ(read_audio(path, {.max_samples = 100}).samples.numel(), 100);
  EXPECT_EQ(read_audio(path, {.num_frames = 10, .max_samples = 20}).samples.numel(), 20);
  EXPECT_THAT(message_of<DataError>([&] { read_audio(path, {.max_samples = 99}); }),
              HasSubstr("50 frames of 2 channels are more than the 99 samples"));
}

TEST_F(AudioFile, NamesTheOffsetOfAWavThatIsCutShort) {
  const auto path = write("a.wav", kWav16, 1, numbers_of_bits(16, 1000));
  const std::string whole = read_file(path);
  const std::size_t data = whole.find("data") + 8;
  for (const std::size_t bytes : {whole.size() - 1, data + 1, data}) {
    write_file(path, whole.substr(0, bytes));
    EXPECT_THAT(message_of<DataError>([&] { read_audio(path); }),
                HasSubstr(join_message(path.string(), ": offset ", data, ": the chunk 'data' has ",
                                       bytes - data, " bytes, but its header promises 2000")));
  }
}

TEST_F(AudioFile, ReadsAWavThatWasWrittenToAPipe) {
  const auto path = write("a.wav", kWav16, 1, numbers_of_bits(16, 1000));
  std::string file = read_file(path);
  file.replace(4, 4, 4, '\xFF');
  file.replace(file.find("data") + 4, 4, 4, '\xFF');
  write_file(path, file);
  EXPECT_EQ(read_audio(path).samples.size(1), 1000);
}

TEST_F(AudioFile, RefusesEveryFileThatIsCutShort) {
  for (const int format : {kWav16, kFlac16}) {
    const auto path = write("sound", format, 1, numbers_of_bits(16, 10'000));
    const std::string whole = read_file(path);
    for (std::size_t part = 0; part < 50; ++part) {
      write_file(path, whole.substr(0, part * whole.size() / 50));
      EXPECT_THAT(message_of<DataError>([&] { read_audio(path); }), HasSubstr(path.string()))
          << "part " << part;
    }
  }
}

TEST_F(AudioFile, RefusesAFlacThatIsDamaged) {
  const auto path = write("a.flac", kFlac16, 1, numbers_of_bits(16, 50'000));
  std::string file = read_file(path);
  const std::size_t middle = file.size() / 2;
  for (std::size_t i = middle; i < middle + 40; ++i) file[i] = static_cast<char>(~file[i]);
  write_file(path, file);
  EXPECT_THAT(message_of<DataError>([&] { read_audio(path); }),
              AllOf(HasSubstr(path.string() + ": frame "), HasSubstr(" of 50000: ")));
}

TEST_F(AudioFile, RefusesAFlacThatDoesNotSayItsLength) {
  const auto path = write("a.flac", kFlac16, 1, numbers_of_bits(16, 5000));
  std::string file = read_file(path);
  // The stream's description begins at 8; of its bytes 13 to 17 the last 36 bits are the length.
  file[21] = static_cast<char>(file[21] & 0xF0);
  file.replace(22, 4, 4, '\0');
  write_file(path, file);
  EXPECT_THAT(message_of<DataError>([&] { read_audio(path); }),
              HasSubstr(path.string() + ": it does not say how long it is"));
}

TEST_F(AudioFile, NamesAFileThatIsNone) {
  EXPECT_THAT(message_of<DataError>([&] { read_audio(folder_ / "none.wav"); }),
              HasSubstr("no file " + (folder_ / "none.wav").string()));
  const auto text = folder_.write("a.wav", "this is not sound, this is a text");
  EXPECT_THAT(message_of<DataError>([&] { read_audio(text); }),
              HasSubstr(text.string() + ": cannot be opened as a sound file: "));
  EXPECT_THAT(message_of<DataError>([&] { audio_info(text); }), HasSubstr(text.string()));
}

TEST_F(AudioFile, WorksOnSeveralThreadsBesideFilesThatFail) {
  const auto good = write("good.flac", kFlac16, 2, numbers_of_bits(16, 20'000));
  const auto text = folder_.write("text.wav", "no sound");
  std::atomic<int> wrong = 0;
  const auto work = [&] {
    for (int i = 0; i < 50; ++i) {
      wrong += read_audio(good).samples.size(1) != 10'000;
      try {
        read_audio(text);
        ++wrong;
      } catch (const DataError& error) {
        wrong += std::string(error.what()).find("text.wav: cannot be opened") == std::string::npos;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace trireme::data
