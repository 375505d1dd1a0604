// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/monitor/dump.h>

#include <trireme/base/error.h>
#include <trireme/comm/monitor/flight_recorder.h>
#include <trireme/comm/monitor/termination.h>

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <csignal>

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

TEST(Dumps, ThatAreNoRegularFilesAreNotWaitedFor) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "trireme-dump-world-rank0.json").c_str(), 0600), 0);
  EXPECT_THAT(message_of<ConfigError>([&] { read_dumps(folder.path()); }),
              HasSubstr("rank0.json cannot be read: it is a FIFO"));
}

// A world of 2147483647 ranks took 8 GB, and floating numbers were cast to integers.
TEST(Dumps, RefuseNumbersThatCannotBe) {
  for (const char* numbers :
       {R"("rank": 0, "size": 2147483647)", R"("rank": 2, "size": 2)", R"("rank": -1, "size": 2)",
        R"("rank": 0, "size": 1e300)", R"("rank": 0.5, "size": 2)",
        R"("rank": 0, "size": 18446744073709551615)"}) {
    const TemporaryFolder folder;
    write_file(
        folder / "trireme-dump-world-rank0.json",
        std::string(R"({"group": "world", "error": "", "operations": [], )") + numbers + "}");
    EXPECT_THAT(message_of<ConfigError>([&] { read_dumps(folder.path()); }),
                AllOf(HasSubstr("rank0.json cannot be read"), HasSubstr("expected an integer")))
        << numbers;
  }
}

// Printing what stands there went down into it by recursion, and off the end of the stack.
TEST(Dumps, RefuseListsInListsWhereANumberIsExpected) {
  constexpr std::size_t kDepth = 500'000;
  const TemporaryFolder folder;
  write_file(folder / "trireme-dump-world-rank0.json",
             R"({"group": "world", "error": "", "operations": [], "rank": 0, "size": )" +
                 std::string(kDepth, '[') + std::string(kDepth, ']') + "}");
  EXPECT_THAT(message_of<ConfigError>([&] { read_dumps(folder.path()); }),
              HasSubstr("'size' is array, expected an integer"));
}

TEST(Dumps, AreWrittenWithALabelThatEndsWithinALetter) {
  const TemporaryFolder folder;
  OperationRecord cut = operation(2, "barrier");
  cut.label = "gr\xC3";
  ASSERT_NE(write_dump(folder.path(), dump_of(0, {cut})), "");
  EXPECT_THAT(read_dumps(folder.path()).at(0).operations.at(0).label, HasSubstr("gr"));
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

TEST(Termination, IsNotHeldUpByALastWordThatDoesNotEnd) {
  const auto terminate_twice = [] {
    ::alarm(60);
    dump_at_termination([] {
      ::kill(::getpid(), SIGTERM);
      while (true) ::pause();
    });
    ::kill(::getpid(), SIGTERM);
    while (true) ::pause();
  };
  EXPECT_EXIT(terminate_twice(), testing::KilledBySignal(SIGTERM), "");
}

TEST(FlightRecorder, KnowsWhatIsWaitedForLongest) {
  FlightRecorder recorder;
  const auto first = recorder.begin({.number = 1, .name = "all-reduce"});
  const auto message = recorder.begin({.number = 1, .name = "receive", .peer = 2});
  const auto last = recorder.begin({.number = 2, .name = "barrier"});
  EXPECT_EQ(recorder.place().last_collective, 2U);
  EXPECT_FALSE(recorder.place().waiting);
  recorder.wait(message);
  recorder.wait(last);
  EXPECT_EQ(recorder.place().waiting.value().serial, message);
  EXPECT_EQ(recorder.place().waiting.value().peer, 2);
  recorder.end(message);
  EXPECT_EQ(recorder.place().waiting.value().operation.what, "barrier");
  recorder.stop_waiting(last);
  recorder.end(first);
  EXPECT_FALSE(recorder.place().waiting);
}

TEST(FlightRecorder, KeepsTheLastOperationsInOrder) {
  FlightRecorder recorder;
  EXPECT_TRUE(recorder.records().empty());
  for (std::uint64_t number = 1; number <= FlightRecorder::kRecords + 2; ++number) {
    const bool is_send = number % 2 == 0;
    const auto serial = recorder.begin({.number = number,
                                        .name = is_send ? "send" : "all-reduce",
                                        .type = "Float",
                                        .count = 8,
                                        .label = "bucket",
                                        .peer = is_send ? 1 : -1});
    if (number <= FlightRecorder::kRecords + 1) recorder.end(serial);
  }
  const auto records = recorder.records();
  ASSERT_THAT(records, SizeIs(FlightRecorder::kRecords));
  EXPECT_EQ(records.front().number, 3U);
  EXPECT_TRUE(records.front().is_collective);
  EXPECT_EQ(describe(records.front()), "all-reduce of 8 Float, number 3 ('bucket')");
  EXPECT_GT(records.front().finished.count(), 0);
  EXPECT_FALSE(records.back().is_collective);
  EXPECT_EQ(records.back().finished.count(), 0);
}

}  // namespace
}  // namespace trireme::comm
