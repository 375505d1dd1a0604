// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/monitor/dump.h>

#include <trireme/base/error.h>
#include <trireme/comm/monitor/recorder.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::comm {
namespace {

using test::message_of;
using test::TemporaryFolder;
using test::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

OperationRecord operation(std::uint64_t number, const std::string& what, bool has_finished = true) {
  return {.number = number,
          .is_collective = true,
          .what = what,
          .label = number == 2 ? "layer1" : "",
          .started = std::chrono::nanoseconds(10 * number),
          .finished = std::chrono::nanoseconds(has_finished ? 10 * number + 5 : 0)};
}

Dump dump_of(int rank, std::vector<OperationRecord> operations, int size = 2) {
  return {.group = "world/1",
          .rank = rank,
          .size = size,
          .error = "it failed",
          .operations = std::move(operations)};
}

TEST(Dumps, AreReadAsTheyWereWritten) {
  const TemporaryFolder folder;
  const Dump written = dump_of(1, {operation(1, "barrier"), operation(2, "all-reduce", false)});
  const auto path = write_dump(folder / "deep" / "er", written);
  EXPECT_EQ(path.filename(), "trireme-dump-world-1-rank1.json");
  write_file(folder / "deep" / "er" / "rank_0.log", "of something else");
  const std::vector<Dump> read = read_dumps(folder / "deep" / "er");
  ASSERT_THAT(read, SizeIs(1));
  EXPECT_EQ(read[0].group, written.group);
  EXPECT_EQ(read[0].rank, 1);
  EXPECT_EQ(read[0].size, 2);
  EXPECT_EQ(read[0].error, "it failed");
  ASSERT_THAT(read[0].operations, SizeIs(2));
  EXPECT_EQ(read[0].operations[1].what, "all-reduce");
  EXPECT_EQ(read[0].operations[1].label, "layer1");
  EXPECT_EQ(read[0].operations[1].started.count(), 20);
  EXPECT_EQ(read[0].operations[1].finished.count(), 0);
}

TEST(Dumps, ThatCannotBeWrittenAreNoError) {
  const TemporaryFolder folder;
  write_file(folder / "file", "");
  EXPECT_EQ(write_dump(folder / "file" / "below", dump_of(0, {})), "");
}

TEST(Dumps, ThatAreMissingOrDamagedAreNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<ConfigError>([&] { read_dumps(folder.path()); }),
              AllOf(HasSubstr(folder.path().string()), HasSubstr("TRIREME_DUMP")));
  EXPECT_THAT(message_of<ConfigError>([&] { read_dumps(folder / "nowhere"); }),
              HasSubstr("No such file"));
  write_file(folder / "trireme-dump-world-rank0.json", "{\"group\": \"wor");
  EXPECT_THAT(message_of<ConfigError>([&] { read_dumps(folder.path()); }),
              HasSubstr("trireme-dump-world-rank0.json cannot be read"));
}

TEST(ComparedDumps, SayWhereTheRanksPart) {
  const std::string text =
      compare_dumps({dump_of(1, {operation(1, "barrier"), operation(2, "broadcast", false)}),
                     dump_of(0, {operation(1, "barrier"), operation(2, "all-reduce", false)})});
  EXPECT_THAT(text, AllOf(HasSubstr("group 'world/1' of 2 ranks"),
                          HasSubstr("rank 0: is in all-reduce, number 2 ('layer1')"),
                          HasSubstr("the ranks part at number 2:\n    rank 0: all-reduce"),
                          HasSubstr("\n    rank 1: broadcast, number 2 ('layer1'), unfinished")));
}

TEST(ComparedDumps, SayWhoIsMissingAndWhoDidNotComeToACall) {
  const std::string text =
      compare_dumps({dump_of(0, {operation(1, "barrier"), operation(2, "all-reduce", false)}, 3),
                     dump_of(2, {operation(1, "barrier")}, 3)});
  EXPECT_THAT(text, AllOf(HasSubstr("no dump of rank 1:"), HasSubstr("rank 2: finished barrier"),
                          HasSubstr("rank 2: did not come to it")));
}

TEST(ComparedDumps, LookOnlyAtWhatAllRecordersStillHold) {
  const std::string text = compare_dumps(
      {dump_of(0, {operation(1, "an old call"), operation(2, "barrier"), operation(3, "barrier")}),
       dump_of(1, {operation(2, "barrier"), operation(3, "barrier")})});
  EXPECT_THAT(text, AllOf(HasSubstr("all ranks made the same calls"), Not(HasSubstr("part at"))));
}

TEST(Recorder, KeepsTheLastOperationsInOrder) {
  Recorder recorder;
  EXPECT_TRUE(recorder.records().empty());
  for (std::uint64_t number = 1; number <= Recorder::kRecords + 2; ++number) {
    recorder.begin(number, number % 2 == 0 ? "send" : "all-reduce", "Float", 8, "bucket");
    if (number <= Recorder::kRecords + 1) recorder.end(number);
  }
  const auto records = recorder.records();
  ASSERT_THAT(records, SizeIs(Recorder::kRecords));
  EXPECT_EQ(records.front().number, 3U);
  EXPECT_TRUE(records.front().is_collective);
  EXPECT_EQ(describe(records.front()), "all-reduce of 8 Float, number 3 ('bucket')");
  EXPECT_GT(records.front().finished.count(), 0);
  EXPECT_FALSE(records.back().is_collective);
  EXPECT_EQ(records.back().finished.count(), 0);
}

}  // namespace
}  // namespace trireme::comm
