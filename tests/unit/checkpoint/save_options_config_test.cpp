// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/save_options_config.h>

#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::checkpoint {
namespace {

using config::Configuration;
using testing::HasSubstr;
using trireme::test::message_of;

TEST(SaveOptionsConfig, ReadsWhatIsToBeSavedAndKept) {
  SaveOptions options;
  Configuration configuration(options);
  configuration.read_text(
      "folder = \"runs\"\nprefix = \"demo\"\nkeep = 3\nkeep_best = 2\nhigher_is_better = true\n"
      "keep_every = \"2 h\"\n",
      "save.toml");
  EXPECT_EQ(options.folder, "runs");
  EXPECT_EQ(options.prefix, "demo");
  EXPECT_EQ(options.keep, 3);
  EXPECT_EQ(options.keep_best, 2);
  EXPECT_TRUE(options.higher_is_better);
  EXPECT_EQ(options.keep_every, std::chrono::hours(2));
}

TEST(SaveOptionsConfig, RefusesPrefixesThatAreNoNames) {
  SaveOptions options;
  Configuration configuration(options);
  EXPECT_THAT(message_of<ConfigError>([&] { configuration.set("prefix=a/b"); }),
              HasSubstr("not empty and without a slash"));
  EXPECT_THROW(configuration.set("prefix="), ConfigError);
  EXPECT_THROW(configuration.set("keep=-1"), ConfigError);
  EXPECT_THAT(message_of<ConfigError>([&] { configuration.set("keep_every=30s"); }),
              HasSubstr("in whole 1 min"));
}

}  // namespace
}  // namespace trireme::checkpoint
