// SPDX-License-Identifier: Apache-2.0
// The exact bytes of the files that a run leaves.
#include <trireme/base/error.h>
#include <trireme/report/append_file.h>
#include <trireme/report/csv_file.h>
#include <trireme/report/jsonl_file.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

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
                       .tokens_per_sample = 128,
                       .flops_per_sample = 1.5e9,
                       .dtype = "bfloat16",
                       .peak_flops = 2.5e12,
                       .settings = {{"plan", "a \"b\"\nc"}},
                       .environment = {{"host", "n\xff"}}});
  file.write(EpochRecord{.moment = moment, .loss = 0.5, .samples = 10, .seconds = 2});
  file.write(EvaluationRecord{
      .moment = moment, .loss = 0.5, .accuracy = 0.75, .samples = 10, .seconds = 2});
  file.write(CheckpointRecord{.moment = moment, .path = "runs/a", .seconds = 2});
  file.write(FailureRecord{.moment = moment, .message = "no"});
  file.write(EndRecord{.moment = moment, .is_stopped = true, .seconds = 2});
  const std::string begin = R"(","time":1.0,"epoch":2,"global_step":3,)";
  EXPECT_EQ(
      read_file(folder / "run.jsonl"),
      R"({"kind":"run)" + begin +
          R"("format":1,"rank":1,"world_size":4,"epochs":5,"steps_in_epoch":6,)" +
          R"("tokens_per_sample":128,"flops_per_sample":1500000000.0,"dtype":"bfloat16",)" +
          R"("peak_flops":2500000000000.0,"settings":{"plan":"a \"b\"\nc"},"environment":{"host":"n)" +
          "\xEF\xBF\xBD" + "\"}}\n" + R"({"kind":"epoch)" + begin +
          R"("loss":0.5,"samples":10,"seconds":{"total":2.0}})" + "\n" + R"({"kind":"evaluation)" +
          begin + R"("loss":0.5,"accuracy":0.75,"samples":10,"seconds":{"total":2.0}})" + "\n" +
          R"({"kind":"checkpoint)" + begin + R"("path":"runs/a","seconds":{"total":2.0}})" + "\n" +
          R"({"kind":"failure)" + begin + R"("message":"no"})" + "\n" + R"({"kind":"end)" + begin +
          R"("stopped":true,"seconds":{"total":2.0}})" + "\n");
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
    StepRecord step = full_step();
    step.all_samples = 128;
    file.write(step);
    file.write(StepRecord{.loss = std::numeric_limits<double>::infinity()});
  }
  CsvFile file(folder / "metrics.csv");  // goes on
  file.write(EpochRecord{.moment = moment, .loss = 0.5, .samples = 10, .seconds = 2});
  file.write(EvaluationRecord{
      .moment = moment, .loss = 0.5, .accuracy = 0.75, .samples = 10, .seconds = 2});
  EXPECT_THAT(
      read_file(folder / "metrics.csv"),
      StrEq("kind,epoch,step,global_step,loss,accuracy,samples,all_samples,samples_per_second,"
            "learning_rate,"
            "gradient_norm,data_seconds,forward_seconds,backward_seconds,communication_seconds,"
            "optimizer_seconds,callbacks_seconds,total_seconds\n"
            "step,2,3,7,0.1,,64,128,64,0.01,1.5,0.25,0.5,1,0.125,0.0625,0.03125,2\n"
            "step,0,0,0,inf,,0,,,,,0,0,0,0,0,0,0\n"
            "epoch,2,,8,0.5,,10,,,,,,,,,,,2\n"
            "evaluation,2,,8,0.5,0.75,10,,,,,,,,,,,2\n"));
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
}

// A disk with so little space that a few records fill it, and more when it is asked for.
class SmallDisk {
 public:
  explicit SmallDisk(const std::filesystem::path& folder) : folder_(folder) {
    std::filesystem::create_directory(folder_);
    is_mounted_ = ::mount("none", folder_.c_str(), "tmpfs", 0, "size=8k") == 0;
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (is_mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }

  bool is_mounted() const { return is_mounted_; }
  void grow() { EXPECT_EQ(::mount("none", folder_.c_str(), "tmpfs", MS_REMOUNT, "size=1m"), 0); }

 private:
  std::filesystem::path folder_;
  bool is_mounted_ = false;
};

std::int64_t count(const std::string& text, const std::string& part) {
  std::int64_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(AppendFile, GoesOnWhereTheDiskIsFullAndMarksWhatWasLost) {
  const test::TemporaryFolder folder;
  SmallDisk disk(folder / "disk");
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting a small file system needs root";
  const auto events = folder / "disk" / "events.jsonl";
  const auto fill = folder / "disk" / "filler";
  testing::internal::CaptureStderr();
  {
    JsonlFile file(events);
    file.write(full_step());
    test::write_file(fill, std::string(8192, 'x'));  // as much as there is
    for (int i = 0; i < 100; ++i) file.write(full_step());
    // Whole records alone, of which the rest of a page took some.
    EXPECT_THAT(read_file(events), testing::EndsWith("}\n"));
    const std::int64_t kept = count(read_file(events), "\n");
    disk.grow();
    file.write(full_step());
    file.write(full_step());
    std::istringstream lines(read_file(events));
    std::vector<nlohmann::json> records;
    for (std::string line; std::getline(lines, line);)
      records.push_back(nlohmann::json::parse(line));
    ASSERT_EQ(static_cast<std::int64_t>(records.size()), kept + 3);
    const auto& mark = records.at(static_cast<std::size_t>(kept));
    EXPECT_EQ(mark.at("kind"), "lost");
    EXPECT_EQ(mark.at("records"), 101 - kept);
    EXPECT_EQ(mark.at("global_step"), 7);
    EXPECT_EQ(records.back().at("kind"), "step");
  }
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(told, "cannot write to " + events.string() + ": No space left on device"), 1);
  EXPECT_THAT(told, testing::ContainsRegex("events.jsonl lacks [0-9]+ records"));
}

TEST(AppendFile, WritesTheBeginningOfATableOnceThereIsSpace) {
  const test::TemporaryFolder folder;
  SmallDisk disk(folder / "disk");
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting a small file system needs root";
  const auto table = folder / "disk" / "metrics.csv";
  test::write_file(folder / "disk" / "filler", std::string(8192, 'x'));
  testing::internal::CaptureStderr();
  {
    CsvFile file(table);
    file.write(EpochRecord{.loss = 0.5});
    EXPECT_EQ(read_file(table), "");
    disk.grow();
    file.write(EpochRecord{.loss = 0.25});
  }
  testing::internal::GetCapturedStderr();
  EXPECT_THAT(read_file(table), testing::MatchesRegex("kind,epoch,[^\n]*\nlost,,,,,,1,,,,,,,,,,,\n"
                                                      "epoch,0,,0,0.25,[^\n]*\n"));
}

TEST(AppendFile, SaysOnceThatADeviceTakesNothing) {
  testing::internal::CaptureStderr();
  {
    AppendFile file("/dev/full");
    file.append("x");
    file.append("y");
    EXPECT_EQ(file.lost(), 2);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "trireme: warning: cannot write to /dev/full: No space left on device (errno 28); the "
            "run goes on, and records are left out until they can be written\n"
            "trireme: warning: /dev/full lacks 2 records that could not be written\n");
}

TEST(AppendFile, IsNotHeldUpByAFifoThatNobodyReads) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  testing::internal::CaptureStderr();
  {
    AppendFile file(folder / "fifo");
    for (int i = 0; i < 1000; ++i) file.append(std::string(4096, 'x'));
    EXPECT_GT(file.lost(), 900);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("fifo: Resource temporarily unavailable"));
}

TEST(AppendFile, TryingAFolderLeavesNothingInIt) {
  const test::TemporaryFolder folder;
  check_can_write(folder / "new");
  EXPECT_TRUE(std::filesystem::is_empty(folder / "new"));
}

}  // namespace
}  // namespace trireme::report
