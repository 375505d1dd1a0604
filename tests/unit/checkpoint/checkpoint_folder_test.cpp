// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/checkpoint_folder.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/retention.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

namespace trireme::checkpoint {
namespace {

using test::message_of;
using test::read_file;
using test::TemporaryFolder;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> names(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::string> result;
  for (const auto& path : paths) result.push_back(path.filename());
  return result;
}

// Without contents, and without a place in the order.
void make(const TemporaryFolder& folder, const std::vector<std::string>& checkpoints) {
  for (const auto& name : checkpoints) {
    std::filesystem::create_directory(folder / name);
    write_file(folder / name / "state.json", name);
  }
}

void write(const TemporaryFolder& folder, std::int64_t epoch, std::int64_t step) {
  CheckpointFolderWriter(folder.path(), "demo", epoch, step).commit();
}

TEST(CheckpointFolder, ListsInTheOrderOfWritingWhateverTheNumbers) {
  const TemporaryFolder folder;
  make(folder, {"demo-9_9"});
  write(folder, 1, 8);
  write(folder, 1, 12);
  write(folder, 2, 1);
  // A run goes on from 1_8: what the abandoned one had reached is not newer for its numbers.
  write(folder, 1, 10);
  EXPECT_THAT(names(list_checkpoints(folder.path(), "demo")),
              ElementsAre("demo-9_9", "demo-1_8", "demo-1_12", "demo-2_1", "demo-1_10"));
  EXPECT_EQ(latest(folder.path(), "demo"), folder / "demo-1_10");
  write(folder, 1, 12);
  EXPECT_EQ(latest(folder.path(), "demo"), folder / "demo-1_12");
  keep(folder.path(), "demo", {.last = 2});
  EXPECT_THAT(names(list_checkpoints(folder.path(), "demo")),
              ElementsAre("demo-1_10", "demo-1_12"));
}

// Saves, resumes and removes beside a checkpoint 1_1 whose number nobody can tell, and returns the
// warnings.
std::string go_on_beside_it(const TemporaryFolder& folder) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(latest(folder.path(), "demo"), folder / "demo-1_3");
  write(folder, 1, 4);
  EXPECT_EQ(latest(folder.path(), "demo"), folder / "demo-1_4");
  keep(folder.path(), "demo", {.last = 1});
  EXPECT_THAT(names(list_checkpoints(folder.path(), "demo")), ElementsAre("demo-1_4"));
  EXPECT_TRUE(std::filesystem::exists(folder / "demo-1_1")) << "it may be the newest";
  EXPECT_FALSE(std::filesystem::exists(folder / "demo-1_2"));
  return ::testing::internal::GetCapturedStderr();
}

TEST(CheckpointFolder, GoesOnBesideOneWhoseNumberNobodyCanTell) {
  for (const char* text :
       {"", "first", "-1", "9223372036854775807", "9223372036854775808", "9 9", "1e3"}) {
    const TemporaryFolder folder;
    for (const std::int64_t step : {1, 2, 3}) write(folder, 1, step);
    write_file(folder / "demo-1_1" / "order", text);
    const std::string told = go_on_beside_it(folder);
    const std::string warning = "the checkpoint " + (folder / "demo-1_1").string() +
                                " is passed over: " + (folder / "demo-1_1" / "order").string() +
                                " holds '" + text + "'";
    EXPECT_THAT(told, HasSubstr(warning));
    EXPECT_EQ(told.find(warning), told.rfind(warning)) << "once is enough";
  }
}

TEST(CheckpointFolder, NamesWhyANumberCannotBeRead) {
  const auto replaced = [](const auto& put) {
    const TemporaryFolder folder;
    for (const std::int64_t step : {1, 2, 3}) write(folder, 1, step);
    const auto order = folder / "demo-1_1" / "order";
    std::filesystem::remove(order);
    put(order);
    return go_on_beside_it(folder);
  };
  EXPECT_THAT(replaced([](const auto& order) { ::mkfifo(order.c_str(), 0600); }),
              HasSubstr("order is a FIFO, expected a regular file"));
  EXPECT_THAT(replaced([](const auto& order) { std::filesystem::create_directory(order); }),
              HasSubstr("order is a folder"));
  EXPECT_THAT(replaced([](const auto& order) { std::filesystem::create_symlink(order, order); }),
              HasSubstr("order cannot be opened: Too many levels of symbolic links (errno 40)"));
  EXPECT_THAT(replaced([](const auto& order) { write_file(order, std::string(100, '1')); }),
              HasSubstr("order has 100 bytes"));
}

// It stopped all saving. Who resumes has to know: it may be the newest.
TEST(CheckpointFolder, OneThatTheMachineCannotReadNowStopsResumingAndNotSaving) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {1, 2, 3}) write(folder, 1, step);
  // Reading it is an I/O error (EIO), as of a disk that fails.
  std::filesystem::create_symlink("/proc/self/mem", folder / "demo-1_3" / "index.json");
  EXPECT_THAT(message_of<CheckpointError>([&] { latest(folder.path(), "demo"); }),
              AllOf(HasSubstr("index.json"), HasSubstr("Input/output error")));
  ::testing::internal::CaptureStderr();
  write(folder, 1, 4);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("the checkpoint " + (folder / "demo-1_3").string()),
                    HasSubstr("is passed over: cannot read"), HasSubstr("Input/output error")));
  EXPECT_EQ(read_file(folder / "demo-1_4" / "order"), "4\n");
  std::filesystem::remove(folder / "demo-1_3" / "index.json");
  EXPECT_EQ(latest(folder.path(), "demo"), folder / "demo-1_4");
}

TEST(CheckpointFolder, ANumberThatIsAnotherInTheIndexMakesNothingTheNewest) {
  const auto save = [](const TemporaryFolder& folder, std::int64_t step, std::int64_t last) {
    save_parts({.folder = folder.path(), .prefix = "demo", .keep = last}, {},
               {.epoch = 1, .step = step}, comm::Group::self());
  };
  for (const char* file : {"order", "index.json"}) {
    const TemporaryFolder folder;
    for (const std::int64_t step : {1, 2, 3}) save(folder, step, 0);
    const auto changed = folder / "demo-1_1" / file;
    std::string text = read_file(changed);
    const std::string before = file == std::string("order") ? "1" : "\"order\": 1";
    text.replace(text.find(before) + before.size() - 1, 1, "9");
    write_file(changed, text);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(latest(folder.path(), "demo"), folder / "demo-1_3");
    save(folder, 4, 2);
    EXPECT_THAT(names(list_checkpoints(folder.path(), "demo")),
                ElementsAre("demo-1_3", "demo-1_4"));
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr("demo-1_1 is passed over"), HasSubstr("one of them is damaged")));
    // Nothing is newer than what comes next, whichever of the two was right.
    save(folder, 5, 0);
    EXPECT_GT(std::stoll(read_file(folder / "demo-1_5" / "order")),
              file == std::string("order") ? 1 : 9);
  }
}

TEST(CheckpointFolder, ListsThoseWithoutAnOrderByEpochThenStepAsNumbers) {
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

TEST(CheckpointFolder, RemovesTheOldest) {
  const TemporaryFolder folder;
  make(folder, {"demo-1_1", "demo-1_2", "demo-2_1", "demo-2_2", "other-1_1"});
  keep(folder.path(), "demo", {.last = 2});
  EXPECT_THAT(names(list_checkpoints(folder.path(), "demo")), ElementsAre("demo-2_1", "demo-2_2"));
  keep(folder.path(), "demo", {.last = 1});
  EXPECT_THAT(names(list_checkpoints(folder.path(), "demo")), ElementsAre("demo-2_2"));
  EXPECT_TRUE(std::filesystem::exists(folder / "other-1_1"));
}

TEST(CheckpointFolder, ShowsANewCheckpointOnlyWhenItIsComplete) {
  const TemporaryFolder folder;
  {
    CheckpointFolderWriter writer(folder / "deep" / "er", "demo", 1, 2);
    write_file(writer.path() / "a", "new");
    EXPECT_THAT(list_checkpoints(folder / "deep" / "er", "demo"), IsEmpty());
    EXPECT_EQ(writer.commit(), folder / "deep" / "er" / "demo-1_2");
  }
  EXPECT_EQ(read_file(folder / "deep" / "er" / "demo-1_2" / "a"), "new");
}

TEST(CheckpointFolder, ExchangesACheckpointOfTheSameName) {
  const TemporaryFolder folder;
  make(folder, {"demo-1_2"});
  CheckpointFolderWriter writer(folder.path(), "demo", 1, 2);
  write_file(writer.path() / "a", "new");
  writer.commit();
  EXPECT_EQ(read_file(folder / "demo-1_2" / "a"), "new");
  EXPECT_FALSE(std::filesystem::exists(folder / "demo-1_2" / "state.json"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(CheckpointFolder, LeavesNothingWithoutACommit) {
  const TemporaryFolder folder;
  {
    const CheckpointFolderWriter writer(folder.path(), "demo", 1, 2);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(CheckpointFolder, RemovesWhatDeadWritersLeftAndSparesTheLiving) {
  const TemporaryFolder folder;
  make(folder, {".demo-9_9.1.tmp", ".other-9_9.1.tmp"});
  const CheckpointFolderWriter alive(folder.path(), "demo", 1, 2);
  remove_leftovers(folder.path(), "demo");
  EXPECT_FALSE(std::filesystem::exists(folder / ".demo-9_9.1.tmp"));
  EXPECT_TRUE(std::filesystem::exists(folder / ".other-9_9.1.tmp"));
  EXPECT_TRUE(std::filesystem::exists(alive.path()));
}

TEST(CheckpointFolder, LeavesWhatIsOfOtherPrefixesAlone) {
  const TemporaryFolder folder;
  // Of the prefix demo-best, and files that somebody is writing.
  make(folder, {".demo-best-9_9.1.tmp", ".demo-9_9x.1.tmp", ".demo-9_9.tmp", ".tmp"});
  write_file(folder / ".demo-9_9.1.tmp", "a file");
  remove_leftovers(folder.path(), "demo");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 5);
  remove_leftovers(folder.path(), "demo-best");
  EXPECT_FALSE(std::filesystem::exists(folder / ".demo-best-9_9.1.tmp"));
}

TEST(CheckpointFolder, TakesAnotherNameWhereAProcessOfThisNumberHasLeftOne) {
  const TemporaryFolder folder;
  const std::string own = ".demo-1_2." + std::to_string(::getpid());
  make(folder, {own + ".tmp", own + "-1.tmp"});
  CheckpointFolderWriter writer(folder.path(), "demo", 1, 2);
  EXPECT_EQ(writer.path(), folder / (own + "-2.tmp"));
  writer.commit();
  remove_checkpoint(folder / "demo-1_2");
  remove_leftovers(folder.path(), "demo");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(CheckpointFolder, RefusesNamesAndNumbersThatCannotBe) {
  for (const char* prefix : {"", ".hidden", "a/b"}) {
    EXPECT_THAT(message_of<UsageError>([&] { checkpoint_name(prefix, 1, 1); }),
                HasSubstr("checkpoint prefix is '" + std::string(prefix) + "'"));
  }
  EXPECT_THAT(message_of<UsageError>([] { checkpoint_name("demo", -1, 1); }),
              HasSubstr("epoch -1 and step 1"));
  EXPECT_THAT(message_of<UsageError>([] { keep(".", "demo", {.last = -1}); }),
              HasSubstr("asked to keep -1 checkpoints"));
}

}  // namespace
}  // namespace trireme::checkpoint
