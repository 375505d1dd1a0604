// SPDX-License-Identifier: Apache-2.0
// In a build without libsndfile.
#include <trireme/base/error.h>
#include <trireme/data/audio/audio_folder.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SoundInABuildWithoutItsLibrary, SaysWhatToInstall) {
  const auto says_so = AllOf(HasSubstr("without libsndfile"), HasSubstr("install libsndfile1-dev"));
  EXPECT_THAT(message_of<ConfigError>([] { audio_info("word.wav"); }), says_so);
  EXPECT_THAT(message_of<ConfigError>([] { read_audio("word.wav"); }), says_so);
  EXPECT_THAT(message_of<ConfigError>([] { audio_folder("words"); }), says_so);
}

}  // namespace
}  // namespace trireme::data
