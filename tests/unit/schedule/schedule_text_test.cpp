// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/schedule_text.h>

#include <trireme/base/error.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/verifier/verify.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <tests/unit/schedule/parts.h>

#include <cstdint>
#include <random>
#include <sstream>

namespace trireme::schedule {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kTwoRanks = R"(trireme-schedule 1
name test
micro-batches 1
stages 0 1
rank 0: F0.0 S0.0>1 R0.0<1 B0.0
rank 1: R1.0<0 F1.0 B1.0 S1.0>0
)";

TEST(ScheduleText, IsWhatTheFormatSays) { EXPECT_EQ(to_text(two_ranks()), kTwoRanks); }

TEST(ScheduleText, IsReadBackAsTheSameSchedule) {
  for (const std::string_view kind : kKinds) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const Schedule schedule = with_steps(
          with_reduction(with_messages(generate(kind, ranks, 7)), ReduceAfter::kMicroBatch));
      EXPECT_EQ(parse_schedule(to_text(schedule)), schedule);
    }
  }
  Schedule skipping = schedule_of({"F0.0 B0.0", "F1.0 B1.0", ""});
  skipping.edges = {{0, 1}, {0, 2}};
  EXPECT_THAT(to_text(skipping), HasSubstr("\nedges 0>1 0>2\n"));
  EXPECT_EQ(parse_schedule(to_text(skipping)), skipping);
}

TEST(ScheduleText, HasLinesThatFitAPage) {
  std::istringstream text(to_text(with_messages(gpipe(2, 40))));
  for (std::string line; std::getline(text, line);) EXPECT_LE(line.size(), 100U);
}

TEST(ScheduleText, MayHaveCommentsBlankLinesAndContinuations) {
  const Schedule read = parse_schedule(
      "# by hand\n\ntrireme-schedule 1\r\nstages 0 1   # two\nmicro-batches 1\nname test\n"
      "rank 0:\n\tF0.0\n   S0.0>1 # sent\n\n  R0.0<1 B0.0\nrank 1: R1.0<0 F1.0 B1.0 S1.0>0");
  EXPECT_EQ(read, two_ranks());
}

TEST(ScheduleText, IsReadFromAFileAndWrittenToOne) {
  const test::TemporaryFolder folder;
  const auto file = folder / "schedule.txt";
  write_schedule(two_ranks(), file);
  EXPECT_EQ(test::read_file(file), kTwoRanks);
  EXPECT_EQ(read_schedule(file), two_ranks());
  test::write_file(file, "no schedule");
  EXPECT_THAT(test::message_of<DataError>([&] { read_schedule(file); }),
              StartsWith(file.string() + ":1:1: "));
  EXPECT_THAT(test::message_of<DataError>([&] { read_schedule(folder / "missing.txt"); }),
              HasSubstr("missing.txt cannot be read"));
  EXPECT_THAT(test::message_of<DataError>([&] { read_schedule(folder.path()); }),
              HasSubstr("cannot be read"));
  test::write_file(file, "");
  EXPECT_THAT(test::message_of<DataError>([&] { read_schedule(file); }),
              StartsWith(file.string() + ":1:1: the text ends without"));
  EXPECT_THAT(test::message_of<DataError>(
                  [&] { write_schedule(two_ranks(), folder / "missing" / "schedule.txt"); }),
              AllOf(HasSubstr("cannot create"), HasSubstr("the folder exists")));
}

TEST(ScheduleText, NamesLineAndColumnOfWhatIsWrong) {
  const auto refused = [](const std::string& text) {
    return test::message_of<DataError>([&] { parse_schedule(text, "mine.txt"); });
  };
  const std::string head = "trireme-schedule 1\nname test\nmicro-batches 1\nstages 0 1\n";
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"", "mine.txt:1:1: the text ends without 'trireme-schedule'"},
      {"name test", "mine.txt:1:1: found 'name', expected the first line to be"},
      {"trireme-schedule 2\n", "mine.txt:1:18: found '2', expected format 1"},
      {"trireme-schedule\n", "mine.txt:1:17: the value of 'trireme-schedule' is missing"},
      {"trireme-schedule 1\nname a b", "mine.txt:2:8: found 'b', expected the end of the line"},
      {"trireme-schedule 1\nname a\n\nname b", "mine.txt:4:1: 'name' is there twice"},
      {"trireme-schedule 1\nmicro-batches -1",
       "mine.txt:2:15: found '-1', expected a number of micro-batches"},
      {"trireme-schedule 1\nmicro-batches 4x", "mine.txt:2:15: found '4x'"},
      {"trireme-schedule 1\nstages 0 x", "mine.txt:2:10: found 'x', expected the rank of a stage"},
      {"trireme-schedule 1\nedges 0>1 1-2", "mine.txt:2:11: found '1-2', expected two stages"},
      {"trireme-schedule 1\nsteps 2", "mine.txt:2:1: found 'steps', expected name, micro-batches"},
      {"trireme-schedule 1\n  F0.0", "mine.txt:2:3: found 'F0.0', expected a key"},
      {head + "rank 1: F1.0", "mine.txt:5:6: found '1:', expected 'rank 0:'"},
      {head + "rank", "mine.txt:5:1: found 'rank', expected 'rank 0:'"},
      {head + "rank 0: F0.0 F0.x B0.0", "mine.txt:5:14: found 'F0.x', expected an action such as"},
      {head + "rank 0: F0.0\n  B0.0 b", "mine.txt:6:8: found 'b', expected an action"},
      {head + "rank 0: F0.0\nname test2", "mine.txt:6:1: found 'name', expected 'rank'"},
      {head + "\n", "the text ends without 'rank'"},
      {"trireme-schedule 1\nname a\nstages 0\nrank 0: F0.0",
       "mine.txt:4:1: the text ends without 'micro-batches'"}};
  for (const auto& [text, message] : wrong) EXPECT_THAT(refused(text), HasSubstr(message)) << text;
}

TEST(ScheduleText, IsReadOrRefusedWhateverItIs) {
  const std::string whole = to_text(with_steps(with_messages(interleaved(2, 3, 2))));
  int num_read = 0;
  int num_refused = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    std::mt19937_64 random(seed);
    std::string text = whole;
    for (int change = 0; change < 2; ++change) {
      const std::string_view characters = "0123456789FBIWSR.<>-:# \n\tx\xff";
      text[random() % text.size()] = characters[random() % characters.size()];
    }
    try {
      find_errors(parse_schedule(text));
      ++num_read;
    } catch (const DataError&) {
      ++num_refused;
    }
  }
  EXPECT_GT(num_read, 50);
  EXPECT_GT(num_refused, 300);
}

TEST(ScheduleText, NeedsANameThatIsOneWord) {
  Schedule schedule = two_ranks();
  for (const char* name : {"", "my schedule", "a#b", "a\nb"}) {
    schedule.name = name;
    EXPECT_THAT(test::message_of<UsageError>([&] { to_text(schedule); }),
                HasSubstr("its name has to be one word"));
  }
}

}  // namespace
}  // namespace trireme::schedule
