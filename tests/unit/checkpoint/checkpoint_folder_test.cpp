// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/checkpoint_folder.h>

#include "temporary_folder.h"
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace trireme::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> names(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::string> result;
  for (const auto& path : paths) result.push_back(path.filename());
  return result;
}

void make(const TemporaryFolder& folder, const std::vector<std::string>& checkpoints) {
  for (const auto& name : checkpoints) {
    std::filesystem::create_directory(folder / name);
    write_file(folder / name / "state.json", name);
  }
}

TEST(CheckpointFolder, ListsByEpochThenStepAsNumbers) {
  const TemporaryFolder folder;
  make(folder, {"demo-10_1", "demo-2_100", "demo-2_9", "demo-x_1", "demo-3_", "demo-3_1x",
                "demo--3_1", "other-7_7", "demo-1-2_3", ".demo-9_9.1.tmp", "demo"});
  write_file(folder / "demo-11_1", "a file, not a folder");
  EXPECT_THAT(names(list_checkpoints(folder.path(), "demo")),
              ElementsAre("demo-2_9", "demo-2_100", "demo-10_1"));
  EXPECT_THAT(names(list_checkpoints(folder.path(), "demo-1")), ElementsAre("demo-1-2_3"));
  EXPECT_EQ(latest(folder.path(), "demo"), folder / "demo-10_1");
}

TEST(CheckpointFolder, HasNothingWhereThereIsNoFolder) {
  const TemporaryFolder folder;
  EXPECT_THAT(list_checkpoints(folder / "absent", "demo"), IsEmpty());
  EXPECT_EQ(latest(folder / "absent", "demo"), std::nullopt);
}

TEST(CheckpointFolder, RemovesTheOldestAndSparesTheOneNamed) {
  const TemporaryFolder folder;
  make(folder, {"demo-1_1", "demo-1_2", "demo-2_1", "demo-2_2", "other-1_1"});
  keep_last(folder.path(), "demo", 2, folder / "demo-1_1");
  EXPECT_THAT(names(list_checkpoints(folder.path(), "demo")), ElementsAre("demo-1_1", "demo-2_2"));
  keep_last(folder.path(), "demo", 1);
  EXPECT_THAT(names(list_checkpoints(folder.path(), "demo")), ElementsAre("demo-2_2"));
  EXPECT_TRUE(std::filesystem::exists(folder / "other-1_1"));
}

TEST(CheckpointFolder, ShowsANewCheckpointOnlyWhenItIsComplete) {
  const TemporaryFolder folder;
  {
    CheckpointFolderWriter writer(folder / "deep" / "er", "demo-1_2");
    write_file(writer.path() / "a", "new");
    EXPECT_THAT(list_checkpoints(folder / "deep" / "er", "demo"), IsEmpty());
    EXPECT_EQ(writer.commit(), folder / "deep" / "er" / "demo-1_2");
  }
  EXPECT_EQ(read_file(folder / "deep" / "er" / "demo-1_2" / "a"), "new");
}

TEST(CheckpointFolder, ExchangesACheckpointOfTheSameName) {
  const TemporaryFolder folder;
  make(folder, {"demo-1_2"});
  CheckpointFolderWriter writer(folder.path(), "demo-1_2");
  write_file(writer.path() / "a", "new");
  writer.commit();
  EXPECT_EQ(read_file(folder / "demo-1_2" / "a"), "new");
  EXPECT_FALSE(std::filesystem::exists(folder / "demo-1_2" / "state.json"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(CheckpointFolder, LeavesNothingWithoutACommit) {
  const TemporaryFolder folder;
  {
    const CheckpointFolderWriter writer(folder.path(), "demo-1_2");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(CheckpointFolder, RemovesWhatDeadWritersLeftAndSparesTheLiving) {
  const TemporaryFolder folder;
  make(folder, {".demo-9_9.1.tmp", ".other-9_9.1.tmp"});
  const CheckpointFolderWriter alive(folder.path(), "demo-1_2");
  remove_leftovers(folder.path(), "demo");
  EXPECT_FALSE(std::filesystem::exists(folder / ".demo-9_9.1.tmp"));
  EXPECT_TRUE(std::filesystem::exists(folder / ".other-9_9.1.tmp"));
  EXPECT_TRUE(std::filesystem::exists(alive.path()));
}

TEST(CheckpointFolder, RefusesNamesAndNumbersThatCannotBe) {
  for (const char* prefix : {"", ".hidden", "a/b"}) {
    EXPECT_THAT(message_of<UsageError>([&] { checkpoint_name(prefix, 1, 1); }),
                HasSubstr("checkpoint prefix is '" + std::string(prefix) + "'"));
  }
  EXPECT_THAT(message_of<UsageError>([] { checkpoint_name("demo", -1, 1); }),
              HasSubstr("epoch -1 and step 1"));
  EXPECT_THAT(message_of<UsageError>([] { keep_last(".", "demo", 0); }),
              HasSubstr("asked to keep 0 checkpoints"));
}

}  // namespace
}  // namespace trireme::checkpoint
