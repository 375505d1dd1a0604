// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/run_log.h>

#include "tests/unit/report/page/run_files.h"
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

namespace trireme::report {
namespace {

using test::file_of;
using test::run_record;
using test::step_record;
using test::write_run;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using trireme::test::message_of;
using trireme::test::TemporaryFolder;

constexpr const char* kRun =
    R"({"kind":"run","time":1,"epoch":0,"global_step":0,"format":1,"rank":0,"world_size":1,"epochs":1})"
    "\n";

std::string step_line(std::int64_t step, const std::string& loss) {
  return R"({"kind":"step","time":2,"epoch":1,"global_step":)" + std::to_string(step) +
         R"(,"step":1,"steps":1,"loss":)" + loss + "}\n";
}

std::vector<std::int64_t> steps_of(const RankLog& rank) {
  std::vector<std::int64_t> steps;
  for (const StepRecord& step : rank.steps) steps.push_back(step.moment.global_step);
  return steps;
}

TEST(RunLog, NumbersThatNoRunHasAreDamage) {
  const TemporaryFolder folder;
  const std::string damaged =
      R"({"kind":"run","time":1e300,"epoch":0,"global_step":0,"world_size":2147483647})"
      "\n"
      R"({"kind":"run","time":1,"epoch":0,"global_step":0,"rank":-1})"
      "\n"
      R"({"kind":"step","time":1,"epoch":1e300,"global_step":1,"loss":1})"
      "\n"
      R"({"kind":"step","time":1,"epoch":1,"global_step":9223372036854775807,"loss":1})"
      "\n"
      R"({"kind":"step","time":1,"epoch":1,"global_step":1,"loss":1,"memory_bytes":-1e30})"
      "\n";
  folder.write("events-rank0.jsonl", kRun + damaged + step_line(1, "0.5"));
  const RunLog run = read_run(folder.path());
  EXPECT_EQ(run.world_size, 1);
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("5 lines are no record (the first is line 2)")));
  ASSERT_THAT(run.ranks, SizeIs(1));
  EXPECT_THAT(steps_of(run.ranks[0]), ElementsAre(1));
}

TEST(RunLog, KnowsTheTokensOfASampleWhereTheLastRunSaysThem) {
  const auto tokens = [](const std::string& lines) {
    const TemporaryFolder folder;
    folder.write("events-rank0.jsonl", lines);
    return tokens_per_sample_of(read_run(folder.path()));
  };
  const auto run = [](const std::string& number) {
    return R"({"kind":"run","time":1,"epoch":0,"global_step":0,"tokens_per_sample":)" + number +
           "}\n";
  };
  EXPECT_EQ(tokens(kRun), std::nullopt);
  EXPECT_EQ(tokens(kRun + run("512")), 512);
  EXPECT_EQ(tokens(run("512") + kRun), std::nullopt);
  EXPECT_EQ(tokens(kRun + run("-1")), std::nullopt);
}

TEST(RunLog, KnowsTheFlopsOfASampleAndThePeakWhereTheLastRunSaysThem) {
  const TemporaryFolder folder;
  JsonlFile file(folder / file_of(0));
  RunRecord record = test::run_record(0, 2);
  file.write(record);
  EXPECT_EQ(flops_per_sample_of(read_run(folder.path())), std::nullopt);
  EXPECT_EQ(dtype_of(read_run(folder.path())), std::nullopt);
  EXPECT_FALSE(read_run(folder.path()).peak);
  record.flops_per_sample = 3e9;
  record.dtype = "bfloat16";
  record.peak_flops = 4e12;
  record.environment["cluster"] = "lab";
  file.write(record);
  const RunLog run = read_run(folder.path());
  EXPECT_EQ(flops_per_sample_of(run), 3e9);
  EXPECT_EQ(dtype_of(run), "bfloat16");
  ASSERT_TRUE(run.peak);
  EXPECT_EQ(run.peak->flops, 4e12);
  EXPECT_EQ(run.peak->dtype, "bfloat16");
  EXPECT_EQ(run.peak->cluster, "lab");
  record.flops_per_sample = -1;
  record.peak_flops = 0;
  file.write(record);
  EXPECT_EQ(flops_per_sample_of(read_run(folder.path())), std::nullopt);
  EXPECT_FALSE(read_run(folder.path()).peak);
}

TEST(RunLog, SaysWhatTheDiskDidNotTake) {
  const TemporaryFolder folder;
  folder.write("events-rank0.jsonl",
               kRun + step_line(1, "0.5") +
                   R"({"kind":"lost","time":2,"epoch":1,"global_step":4,"records":2})" + "\n" +
                   step_line(4, "0.4"));
  EXPECT_THAT(read_run(folder.path()).notes,
              ElementsAre(HasSubstr("2 records were not written: the disk was full")));
}

TEST(RunLog, ReadsWhatTheWriterWrote) {
  const TemporaryFolder folder;
  write_run(folder.path(), 2, 100);
  folder.write("config.toml", "epochs = 2\n");
  const RunLog run = read_run(folder.path());
  EXPECT_EQ(run.name, folder.path().filename().string());
  EXPECT_EQ(run.world_size, 2);
  EXPECT_EQ(run.config, "epochs = 2\n");
  EXPECT_THAT(run.notes, IsEmpty());
  ASSERT_THAT(run.ranks, SizeIs(2));
  const RankLog& rank = run.ranks[1];
  EXPECT_EQ(rank.rank, 1);
  ASSERT_THAT(rank.steps, SizeIs(100));
  const StepRecord expected = step_record(1, 7);
  const StepRecord& step = rank.steps[6];
  EXPECT_EQ(step.moment.global_step, 7);
  EXPECT_EQ(step.moment.epoch, 1);
  EXPECT_EQ(step.loss, expected.loss);
  EXPECT_EQ(step.samples, 32);
  EXPECT_EQ(step.seconds.communication, expected.seconds.communication);
  EXPECT_EQ(step.seconds.total, expected.seconds.total);
  EXPECT_EQ(step.learning_rate, expected.learning_rate);
  EXPECT_EQ(step.gradient_norm, expected.gradient_norm);
  EXPECT_EQ(step.memory_bytes, expected.memory_bytes);
  EXPECT_EQ(step.device_memory_bytes, std::nullopt);
  EXPECT_THAT(rank.epochs, SizeIs(2));
  ASSERT_THAT(rank.evaluations, SizeIs(2));
  EXPECT_EQ(rank.evaluations[1].accuracy, 0.8);
  ASSERT_TRUE(rank.end.has_value());
  EXPECT_FALSE(rank.end->is_stopped);
  EXPECT_EQ(rank.runs.front().environment.at("host"), "node0");
}

TEST(RunLog, ALastLineThatWasCutOffIsLeftOutAndSaid) {
  const TemporaryFolder folder;
  folder.write(file_of(0), kRun + step_line(1, "2") + R"({"kind":"step","time":3,"glo)");
  const RunLog run = read_run(folder.path());
  EXPECT_THAT(steps_of(run.ranks[0]), ElementsAre(1));
  EXPECT_THAT(run.notes, ElementsAre("events-rank0.jsonl: the last line was cut off, as by a kill; "
                                     "it is left out"));
  EXPECT_EQ(run.ranks[0].end, std::nullopt);
}

TEST(RunLog, OtherLinesThatAreNoRecordsArePassedOverAndCounted) {
  const TemporaryFolder folder;
  folder.write(file_of(0), kRun + std::string("garbage\n") + step_line(1, "2") + "[1]\n" +
                               R"({"kind":"step"})" + "\n" + R"({"kind":"poem","text":"unknown"})" +
                               "\n\n" + step_line(2, "\"two\"") + step_line(3, "1"));
  const RunLog run = read_run(folder.path());
  EXPECT_THAT(steps_of(run.ranks[0]), ElementsAre(1, 3));
  EXPECT_THAT(run.notes, ElementsAre("events-rank0.jsonl: 4 lines are no record (the first is line "
                                     "2), passed over"));
}

TEST(RunLog, ANumberThatIsNoneIsSaid) {
  const TemporaryFolder folder;
  folder.write(file_of(0), kRun + step_line(1, "2") + step_line(2, "null"));
  const RunLog run = read_run(folder.path());
  ASSERT_THAT(run.ranks[0].steps, SizeIs(2));
  EXPECT_TRUE(std::isnan(run.ranks[0].steps[1].loss));
  EXPECT_THAT(run.notes, Contains(HasSubstr("1 losses are infinite or not a number, the first at "
                                            "step 2")));
}

TEST(RunLog, ARunThatWentOnReplacesWhatCameAfterItsStep) {
  const TemporaryFolder folder;
  {
    JsonlFile file(folder / file_of(0));
    file.write(run_record(0, 1));
    for (std::int64_t step = 1; step <= 8; ++step) file.write(step_record(0, step));
    file.write(
        CheckpointRecord{.moment = {.epoch = 1, .global_step = 4}, .path = "four", .seconds = 1});
    file.write(
        CheckpointRecord{.moment = {.epoch = 1, .global_step = 8}, .path = "eight", .seconds = 1});
    file.write(FailureRecord{.moment = {.epoch = 1, .global_step = 8}, .message = "broke"});
  }
  JsonlFile file(folder / file_of(0));
  file.write(run_record(0, 1, 4));
  StepRecord again = step_record(0, 5);
  again.loss = 77;
  file.write(again);
  file.write(step_record(0, 6));
  const RunLog run = read_run(folder.path());
  const RankLog& rank = run.ranks[0];
  EXPECT_THAT(steps_of(rank), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(rank.steps[4].loss, 77);
  ASSERT_THAT(rank.checkpoints, SizeIs(1));
  EXPECT_EQ(rank.checkpoints[0].path, "four");
  EXPECT_THAT(rank.failures, SizeIs(1));
  EXPECT_FALSE(rank.has_failed);
  EXPECT_THAT(rank.runs, SizeIs(2));
  EXPECT_THAT(rank.resumed_at, ElementsAre(4));
}

TEST(RunLog, AnotherCallOfTheSameProgramIsNoResumption) {
  const TemporaryFolder folder;
  write_run(folder.path(), 1, 10);
  {
    JsonlFile file(folder / file_of(0));
    file.write(run_record(0, 1, 10));
    file.write(step_record(0, 11));
    file.write(EndRecord{.moment = {.epoch = 1, .global_step = 11}, .is_stopped = true});
  }
  EXPECT_THAT(read_run(folder.path()).ranks[0].resumed_at, IsEmpty());
  JsonlFile file(folder / file_of(0));
  file.write(run_record(0, 1, 11));
  const RunLog run = read_run(folder.path());
  EXPECT_THAT(run.ranks[0].resumed_at, ElementsAre(11));
  EXPECT_THAT(run.ranks[0].steps, SizeIs(11));
}

TEST(RunLog, OfTwoRecordsOfOneStepTheLaterCounts) {
  const TemporaryFolder folder;
  folder.write(file_of(0), kRun + step_line(1, "5") + step_line(2, "6") + step_line(1, "7"));
  const RunLog run = read_run(folder.path());
  EXPECT_THAT(steps_of(run.ranks[0]), ElementsAre(1, 2));
  EXPECT_EQ(run.ranks[0].steps[0].loss, 7);
}

TEST(RunLog, RanksThatAreMissingOrEndEarlyAreSaid) {
  const TemporaryFolder folder;
  write_run(folder.path(), 4, 10);
  std::filesystem::remove(folder / file_of(1));
  std::filesystem::remove(folder / file_of(3));
  JsonlFile file(folder / file_of(0));
  file.write(step_record(0, 11));
  const RunLog run = read_run(folder.path());
  EXPECT_THAT(run.notes, ElementsAre("of 4 ranks, ranks 1, 3 left no file",
                                     "rank 2 has steps up to 10, others up to 11"));
}

TEST(RunLog, RanksOfAnEarlierAndLargerRunAreSaid) {
  const TemporaryFolder folder;
  write_run(folder.path(), 2, 10);
  JsonlFile file(folder / file_of(0));
  file.write(run_record(0, 1, 8));
  file.write(step_record(0, 9));
  const RunLog run = read_run(folder.path());
  EXPECT_EQ(run.world_size, 1);
  ASSERT_THAT(run.ranks, SizeIs(2));
  EXPECT_EQ(steps_of(run.ranks[1]).back(), 8);
  EXPECT_THAT(run.notes,
              ElementsAre("rank 1 took part in an earlier run only; the last one had 1 rank"));
}

TEST(RunLog, ARunThatBeganAnewInTheFolderKeepsNothing) {
  const TemporaryFolder folder;
  write_run(folder.path(), 1, 10);
  JsonlFile file(folder / file_of(0));
  file.write(run_record(0, 1));
  file.write(step_record(0, 1));
  const RunLog run = read_run(folder.path());
  EXPECT_THAT(steps_of(run.ranks[0]), ElementsAre(1));
  EXPECT_THAT(run.ranks[0].resumed_at, IsEmpty());
}

TEST(RunLog, AFolderUsedAgainByFewerRanksForgetsTheOthers) {
  const TemporaryFolder folder;
  write_run(folder.path(), 2, 10);
  JsonlFile file(folder / file_of(0));
  RunRecord again = run_record(0, 1);
  again.moment.time += 100;
  file.write(again);
  file.write(step_record(0, 1));
  const RunLog run = read_run(folder.path());
  EXPECT_THAT(run.ranks, SizeIs(1));
  EXPECT_THAT(run.notes,
              ElementsAre("rank 1 took part in an earlier run only; the last one had 1 rank"));
}

TEST(RunLog, OtherFilesOfTheFolderAreNotRead) {
  const TemporaryFolder folder;
  write_run(folder.path(), 1, 1);
  for (const char* name : {"events-rankx.jsonl", "events-rank.jsonl", "events-rank-1.jsonl",
                           "events-rank1.jsonl.old", "metrics.csv"}) {
    folder.write(name, "garbage");
  }
  EXPECT_THAT(read_run(folder.path()).ranks, SizeIs(1));
}

TEST(RunLog, AFolderWithoutARunIsAnError) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<ConfigError>([&] { read_run(folder / "none"); }),
              HasSubstr("none is no folder\n  hint: give the folder of a run"));
  EXPECT_THAT(message_of<ConfigError>([&] { read_run(folder.path()); }),
              HasSubstr("holds no events-rank<r>.jsonl"));
}

TEST(RunLog, AFifoInPlaceOfAFileIsNotWaitedFor) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / file_of(0)).c_str(), 0600), 0);
  EXPECT_THAT(message_of<ConfigError>([&] { read_run(folder.path()); }),
              HasSubstr("events-rank0.jsonl: it is a FIFO, expected a regular file"));
  std::filesystem::remove(folder / file_of(0));
  write_run(folder.path(), 1, 2);
  ASSERT_EQ(::mkfifo((folder / "config.toml").c_str(), 0600), 0);
  EXPECT_EQ(read_run(folder.path()).config, "");
}

TEST(RunLog, ANewerFormatIsAnError) {
  const TemporaryFolder folder;
  folder.write(file_of(0), R"({"kind":"run","time":1,"epoch":0,"global_step":0,"format":2})"
                           "\n");
  EXPECT_THAT(message_of<ConfigError>([&] { read_run(folder.path()); }),
              HasSubstr("events-rank0.jsonl: format 2, expected 1"));
}

}  // namespace
}  // namespace trireme::report
