// SPDX-License-Identifier: Apache-2.0
// The exact bytes of the files that a run leaves.
#include <trireme/base/error.h>
#include <trireme/report/append_file.h>
#include <trireme/report/csv_file.h>
#include <trireme/report/jsonl_file.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <limits>
#include <sstream>

namespace trireme::report {
namespace {

using test::message_of;
using test::read_file;
using testing::HasSubstr;
using testing::StartsWith;
using testing::StrEq;

StepRecord full_step() {
  return {.moment = {.time = 1700000000.5, .epoch = 2, .global_step = 7},
          .step = 3,
          .steps = 2,
          .loss = 0.1,
          .samples = 64,
          .seconds = {.data = 0.25,
                      .forward = 0.5,
                      .backward = 1,
                      .communication = 0.125,
                      .optimizer = 0.0625,
                      .callbacks = 0.03125,
                      .total = 2},
          .learning_rate = 0.01,
          .gradient_norm = 1.5,
          .loss_scale = 1024,
          .skipped = 1,
          .memory_bytes = 1000,
          .device_memory_bytes = 2000,
          .scalars = {{"a/b", 3.5}}};
}

TEST(JsonlFile, HasEveryKeyOfAStepInOneLine) {
  const test::TemporaryFolder folder;
  JsonlFile(folder / "run.jsonl").write(full_step());
  EXPECT_EQ(
      read_file(folder / "run.jsonl"),
      R"({"kind":"step","time":1700000000.5,"epoch":2,"global_step":7,"step":3,"steps":2,"loss":0.1,)"
      R"("samples":64,"seconds":{"data":0.25,"forward":0.5,"backward":1.0,"communication":0.125,)"
      R"("optimizer":0.0625,"callbacks":0.03125,"total":2.0},"samples_per_second":32.0,)"
      R"("learning_rate":0.01,"gradient_norm":1.5,"loss_scale":1024.0,"skipped":1,)"
      R"("memory_bytes":1000,"device_memory_bytes":2000,"scalars":{"a/b":3.5}})"
      "\n");
}

TEST(JsonlFile, LeavesOutWhatIsNotKnownAndHasNullForWhatIsNoNumber) {
  const test::TemporaryFolder folder;
  JsonlFile(folder / "run.jsonl")
      .write(StepRecord{.loss = std::numeric_limits<double>::quiet_NaN()});
  EXPECT_EQ(read_file(folder / "run.jsonl"),
            R"({"kind":"step","time":0.0,"epoch":0,"global_step":0,"step":0,"steps":1,"loss":null,)"
            R"("samples":0,"seconds":{"data":0.0,"forward":0.0,"backward":0.0,"communication":0.0,)"
            R"("optimizer":0.0,"callbacks":0.0,"total":0.0}})"
            "\n");
}

TEST(JsonlFile, HasTheOtherKinds) {
  const test::TemporaryFolder folder;
  JsonlFile file(folder / "run.jsonl");
  const Moment moment{.time = 1, .epoch = 2, .global_step = 3};
  file.write(RunRecord{.moment = moment,
                       .rank = 1,
                       .world_size = 4,
                       .epochs = 5,
                       .steps_in_epoch = 6,
                       .settings = {{"plan", "a \"b\"\nc"}},
                       .environment = {{"host", "n\xff"}}});
  file.write(EpochRecord{.moment = moment, .loss = 0.5, .samples = 10, .seconds = 2});
  file.write(EvaluationRecord{
      .moment = moment, .loss = 0.5, .accuracy = 0.75, .samples = 10, .seconds = 2});
  file.write(CheckpointRecord{.moment = moment, .path = "runs/a", .seconds = 2});
  file.write(FailureRecord{.moment = moment, .message = "no"});
  file.write(EndRecord{.moment = moment, .is_stopped = true, .seconds = 2});
  const std::string begin = R"(","time":1.0,"epoch":2,"global_step":3,)";
  EXPECT_EQ(read_file(folder / "run.jsonl"),
            R"({"kind":"run)" + begin +
                R"("format":1,"rank":1,"world_size":4,"epochs":5,"steps_in_epoch":6,"settings":)" +
                R"({"plan":"a \"b\"\nc"},"environment":{"host":"n)" + "\xEF\xBF\xBD" + "\"}}\n" +
                R"({"kind":"epoch)" + begin +
                R"("loss":0.5,"samples":10,"seconds":{"total":2.0}})" + "\n" +
                R"({"kind":"evaluation)" + begin +
                R"("loss":0.5,"accuracy":0.75,"samples":10,"seconds":{"total":2.0}})" + "\n" +
                R"({"kind":"checkpoint)" + begin + R"("path":"runs/a","seconds":{"total":2.0}})" +
                "\n" + R"({"kind":"failure)" + begin + R"("message":"no"})" + "\n" +
                R"({"kind":"end)" + begin + R"("stopped":true,"seconds":{"total":2.0}})" + "\n");
}

TEST(JsonlFile, EndsALineThatAKilledRunLeftHalf) {
  const test::TemporaryFolder folder;
  const auto path = folder.write("run.jsonl", "{\"kind\":\"step\"}\n{\"ki");
  JsonlFile(path).write(FailureRecord{.message = "x"});
  EXPECT_THAT(read_file(path), StartsWith("{\"kind\":\"step\"}\n{\"ki\n{\"kind\":\"failure\""));
}

// The child writes as fast as it can and is killed when it has written some.
TEST(JsonlFile, OfAKilledRunHasWholeLinesAndGoesOn) {
  const test::TemporaryFolder folder;
  const auto path = folder / "run.jsonl";
  for (int run = 1; run <= 5; ++run) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe(ends.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      JsonlFile file(path);
      for (std::int64_t step = 1;; ++step) {
        file.write(StepRecord{.moment = {.global_step = step}});
        if (step == 20 && ::write(ends[1], "x", 1) != 1) ::_exit(1);
      }
    }
    ASSERT_GT(child, 0);
    char told = 0;
    ASSERT_EQ(::read(ends[0], &told, 1), 1);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (const int end : ends) ::close(end);
  }
  JsonlFile(path).write(FailureRecord{.message = "the last"});
  std::istringstream text(read_file(path));
  int num_records = 0;
  for (std::string line; std::getline(text, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    num_records += record.is_object() ? 1 : 0;
    if (record.is_object()) {
      EXPECT_TRUE(record.contains("kind"));
    }
  }
  EXPECT_GE(num_records, 5 * 20 + 1);
}

TEST(CsvFile, HasOneLineOfNamesAndAColumnForEveryNumber) {
  const test::TemporaryFolder folder;
  const Moment moment{.time = 1, .epoch = 2, .global_step = 8};
  {
    CsvFile file(folder / "metrics.csv");
    file.write(full_step());
    file.write(StepRecord{.loss = std::numeric_limits<double>::infinity()});
  }
  CsvFile file(folder / "metrics.csv");  // goes on
  file.write(EpochRecord{.moment = moment, .loss = 0.5, .samples = 10, .seconds = 2});
  file.write(EvaluationRecord{
      .moment = moment, .loss = 0.5, .accuracy = 0.75, .samples = 10, .seconds = 2});
  EXPECT_THAT(
      read_file(folder / "metrics.csv"),
      StrEq("kind,epoch,step,global_step,loss,accuracy,samples,samples_per_second,learning_rate,"
            "gradient_norm,data_seconds,forward_seconds,backward_seconds,communication_seconds,"
            "optimizer_seconds,callbacks_seconds,total_seconds\n"
            "step,2,3,7,0.1,,64,32,0.01,1.5,0.25,0.5,1,0.125,0.0625,0.03125,2\n"
            "step,0,0,0,inf,,0,,,,0,0,0,0,0,0,0\n"
            "epoch,2,,8,0.5,,10,,,,,,,,,,2\n"
            "evaluation,2,,8,0.5,0.75,10,,,,,,,,,,2\n"));
}

TEST(AppendFile, MakesFoldersGoesOnAndStartsAnewOnRequest) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "a" / "b" / "file";
  AppendFile(path).append("one");
  {
    AppendFile file(path);
    EXPECT_TRUE(file.has_earlier_records());
    EXPECT_TRUE(file.ends_within_line());
    file.append("\ntwo\n");
  }
  EXPECT_EQ(read_file(path), "one\ntwo\n");
  EXPECT_FALSE(AppendFile(path).ends_within_line());
  EXPECT_FALSE(AppendFile(path, /*starts_anew=*/true).has_earlier_records());
  EXPECT_EQ(read_file(path), "");
}

TEST(AppendFile, NamesPathAndCauseWhereItCannotWrite) {
  EXPECT_THAT(
      message_of<ConfigError>([] { const AppendFile file("/dev/null/x/file"); }),
      testing::AllOf(HasSubstr("/dev/null/x"), HasSubstr("Not a directory"), HasSubstr("hint:")));
  EXPECT_THAT(message_of<ConfigError>([] { check_can_write("/proc/nowhere"); }),
              HasSubstr("/proc/nowhere"));
  EXPECT_THAT(message_of<ConfigError>([] { AppendFile("/dev/full").append("x"); }),
              testing::AllOf(HasSubstr("/dev/full"), HasSubstr("free space")));
}

TEST(AppendFile, TryingAFolderLeavesNothingInIt) {
  const test::TemporaryFolder folder;
  check_can_write(folder / "new");
  EXPECT_TRUE(std::filesystem::is_empty(folder / "new"));
}

}  // namespace
}  // namespace trireme::report
