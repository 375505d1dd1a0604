// SPDX-License-Identifier: Apache-2.0
// In a build without libjpeg or libpng.
#include <trireme/base/error.h>
#include <trireme/data/images/image_folder.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ImagesInABuildWithoutTheirLibraries, SayWhatToInstall) {
  const auto says_so = AllOf(HasSubstr("without libjpeg or libpng"),
                             HasSubstr("install libjpeg-dev and libpng-dev"));
  EXPECT_THAT(message_of<ConfigError>([] { decode_image({}); }), says_so);
  EXPECT_THAT(message_of<ConfigError>([] { read_image("photo.jpg"); }), says_so);
  EXPECT_THAT(message_of<ConfigError>([] { image_folder("photos"); }), says_so);
}

}  // namespace
}  // namespace trireme::data
