// SPDX-License-Identifier: Apache-2.0
// `trireme schedule` as the command line gives it its options.
#include <trireme/base/error.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/schedule_text.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/schedule_command.h>
#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace trireme::schedule {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Runs the command and returns what it printed.
std::string run(const std::string& arguments) {
  CLI::App app;
  apps::add_schedule_command(app);
  testing::internal::CaptureStdout();
  try {
    app.parse("schedule " + arguments);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  return testing::internal::GetCapturedStdout();
}

template <typename Exception>
std::string refused(const std::string& arguments) {
  return test::message_of<Exception>([&] { run(arguments); });
}

TEST(ScheduleCommand, SaysWhatAScheduleComesTo) {
  EXPECT_EQ(run("1f1b"),
            "schedule     step ms    bubble   micro-batches\n"
            "1f1b           33.00   27.27 %             4.0\n"
            "micro-batches: most that one rank keeps for backward. Every schedule was verified.\n");
}

TEST(ScheduleCommand, ComparesAllOnTheSameTimes) {
  const std::string printed =
      run("all --ranks 8 --micro-batches 24 --forward 18.522 --backward-input 18.086 "
          "--backward-weight 9.337 --communication 0.601");
  EXPECT_THAT(printed, HasSubstr("1f1b            1456.75   24.31 %             8.0\n"));
  EXPECT_THAT(printed, HasSubstr("zb-h1           1310.41   15.85 %             8.0\n"));
  EXPECT_THAT(printed, HasSubstr("zb-h2           1236.63   10.83 %            15.0\n"));
  for (const char* name : {"gpipe", "interleaved", "zb-v", "search", "search-v"}) {
    EXPECT_THAT(printed, HasSubstr(std::string("\n") + name + " "));
  }
}

// Each `$ trireme schedule …` of the guide, and what stands below it.
TEST(ScheduleCommand, PrintsWhatTheGuideShows) {
  const std::string guide =
      test::read_file(std::string(std::getenv("TRIREME_SOURCE")) + "/docs/guide/pipeline.md");
  const std::string prompt = "\n$ trireme schedule ";
  int num_shown = 0;
  for (std::size_t at = guide.find(prompt); at != std::string::npos; at = guide.find(prompt, at)) {
    const std::size_t begin = at + prompt.size();
    const std::size_t end = guide.find('\n', begin);
    const std::string arguments = guide.substr(begin, end - begin);
    at = std::min(guide.find(prompt, end), guide.find("\n```", end));
    EXPECT_EQ(guide.substr(end + 1, at - end), run(arguments)) << arguments;
    ++num_shown;
  }
  EXPECT_GE(num_shown, 4);
}

TEST(ScheduleCommand, WritesFiles) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path().string();
  const std::string printed = run("zb-h1 --ranks 3 --micro-batches 5 --output " + path +
                                  "/a.txt --svg " + path + "/a.svg --trace " + path + "/a.json");
  EXPECT_THAT(printed, HasSubstr("wrote " + path + "/a.txt\nwrote " + path + "/a.svg\nwrote " +
                                 path + "/a.json\n"));
  EXPECT_EQ(read_schedule(folder / "a.txt"), with_messages(zero_bubble_h1(3, 5)));
  EXPECT_THAT(test::read_file(folder / "a.svg"), testing::StartsWith("<svg"));
  EXPECT_THAT(test::read_file(folder / "a.json"), testing::StartsWith("[\n"));
}

TEST(ScheduleCommand, ReadsAndVerifiesAFile) {
  const test::TemporaryFolder folder;
  const auto file = folder / "mine.txt";
  write_schedule(with_messages(gpipe(2, 3)), file);
  EXPECT_THAT(run("--read " + file.string()), HasSubstr("\ngpipe          12.00"));
  write_schedule(gpipe(2, 3), file);
  EXPECT_THAT(run("--read " + file.string()), HasSubstr("\ngpipe          12.00"));
  Schedule damaged = with_messages(gpipe(2, 3));
  damaged.ranks[1].pop_back();
  write_schedule(damaged, file);
  EXPECT_THAT(refused<UsageError>("--read " + file.string()),
              HasSubstr("schedule 'gpipe' cannot be executed: rank 1: S1.2>0 is missing"));
  test::write_file(file, "gpipe");
  EXPECT_THAT(refused<DataError>("--read " + file.string()), HasSubstr("mine.txt:1:1: "));
}

TEST(ScheduleCommand, TakesTimesOfRanksOrOfStages) {
  EXPECT_THAT(run("gpipe --ranks 2 --micro-batches 1 --forward 1,2 --backward 4"),
              HasSubstr(" 11.00 "));
  EXPECT_THAT(
      run("interleaved --ranks 2 --micro-batches 1 --forward 1,2,3,4 --backward 10,20,30,40"),
      HasSubstr(" 110.00 "));
  EXPECT_THAT(run("interleaved --chunks 4 --ranks 1 --micro-batches 1"), HasSubstr(" 3.00 "));
  EXPECT_THAT(refused<ConfigError>("gpipe --ranks 3 --forward 1,2"),
              HasSubstr("--forward has 2 numbers, but there are 3 stages"));
  EXPECT_THAT(refused<CLI::ParseError>("gpipe --forward -1"), HasSubstr("'-1', expected a number"));
}

TEST(ScheduleCommand, CountsBytesAndHoldsTheCap) {
  EXPECT_THAT(run("1f1b --activation-bytes 100"), HasSubstr("4.0             400\n"));
  EXPECT_THAT(run("zb-h1 --activation-bytes 100 --weight-input-bytes 10"),
              HasSubstr("4.0             400\n"));
  EXPECT_THAT(refused<ConfigError>("gpipe --activation-bytes 100 --memory-cap 500"),
              HasSubstr("a rank keeps 800 bytes, --memory-cap is 500"));
  const std::string all = run("all --activation-bytes 100 --memory-cap 400");
  EXPECT_THAT(all, HasSubstr(" 800  above the cap\n"));
  EXPECT_THAT(refused<UsageError>("search --activation-bytes 100 --memory-cap 50"),
              HasSubstr("rank 0 may hold 50 bytes for backward"));
  EXPECT_THAT(refused<ConfigError>("1f1b --weight-input-bytes 10"),
              HasSubstr("--weight-input-bytes stands without --activation-bytes"));
}

TEST(ScheduleCommand, Offloads) {
  EXPECT_THAT(run("gpipe --activation-bytes 100 --offload 0,1,2,3"), HasSubstr(" 300\n"));
  EXPECT_THAT(refused<UsageError>("1f1b --offload 9"), HasSubstr("stage 9 is to be offloaded"));
}

TEST(ScheduleCommand, RecomputesAndKeepsToTheEnginesRules) {
  // 33 and eight recomputations on rank 0; those of other ranks fit into waits for gradients.
  EXPECT_THAT(run("1f1b --recompute 0,1,2,3"), HasSubstr(" 41.00 "));
  EXPECT_THAT(run("1f1b --outstanding 0 --communication 0.1"), Not(HasSubstr(" 33.00 ")));
  const test::TemporaryFolder folder;
  const auto file = folder / "late.txt";
  write_schedule(with_messages(one_forward_one_backward(2, 4)), file);
  EXPECT_THAT(refused<UsageError>("--outstanding 0 --read " + file.string()),
              HasSubstr("deadlock: rank 0 waits"));
}

TEST(ScheduleCommand, RefusesWhatItCannotDo) {
  EXPECT_THAT(refused<ConfigError>(""), HasSubstr("expected a kind of schedule, or --read"));
  EXPECT_THAT(refused<ConfigError>("1f1b --read x.txt"), HasSubstr("expected a kind of schedule"));
  EXPECT_THAT(refused<ConfigError>("all --svg x.svg"), HasSubstr("'all' makes no files"));
  for (const std::string option : {"--output", "--svg", "--trace"}) {
    EXPECT_THAT(refused<ConfigError>("1f1b " + option + " /dev/null/file"),
                HasSubstr("cannot create /dev/null/file"));
  }
  EXPECT_THAT(refused<UsageError>("1f1b --chunks 3"), HasSubstr("1f1b of 3 chunks"));
  EXPECT_THAT(refused<UsageError>("1f1b --recompute 9"), HasSubstr("stage 9 is to be recomputed"));
  EXPECT_THAT(refused<DataError>("--read missing.txt"), HasSubstr("missing.txt cannot be read"));
  EXPECT_THROW(run("pipedream"), CLI::ParseError);
}

TEST(ScheduleCommand, SaysWhichNumbersItTakes) {
  for (const char* option : {"--ranks", "--micro-batches", "--chunks"}) {
    for (const std::string value : {"0", "-1", "1.5", "many", "99999999999999999999"}) {
      EXPECT_THAT(refused<CLI::ParseError>("1f1b " + (option + (" " + value))),
                  AllOf(HasSubstr(std::string(option) + ": '" + value + "', expected an integer"),
                        HasSubstr("from 1 to 2147483647")));
    }
  }
  EXPECT_THAT(refused<CLI::ParseError>("1f1b --forward 1,nan"),
              HasSubstr("--forward: 'nan', expected a number, 0 or more"));
  EXPECT_THAT(refused<CLI::ParseError>("1f1b --communication -0.5"), HasSubstr("'-0.5', expected"));
  EXPECT_THAT(refused<CLI::ParseError>("1f1b --activation-bytes 9223372036854775807"),
              HasSubstr("expected an integer from 0 to 1099511627776"));
}

// They would take all memory, or end as std::bad_alloc.
TEST(ScheduleCommand, RefusesWhatNoMachineHolds) {
  for (const std::string kind :
       {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "search", "search-v"}) {
    EXPECT_THAT(refused<UsageError>(kind + " --ranks 2147483647"),
                HasSubstr("a schedule of 2147483647 ranks, 8 micro-batches"));
    EXPECT_THAT(refused<UsageError>(kind + " --micro-batches 2147483647"),
                HasSubstr("a schedule of 4 ranks, 2147483647 micro-batches"));
  }
  EXPECT_THAT(refused<UsageError>("interleaved --chunks 2147483647"),
              HasSubstr("2147483647 chunks on each rank"));
}

TEST(ScheduleCommand, RefusesOptionsThatHaveNoEffect) {
  EXPECT_THAT(refused<ConfigError>("search --memory-cap 400"),
              HasSubstr("--memory-cap has no effect here: nothing says how many bytes"));
  EXPECT_THAT(refused<ConfigError>("all --memory-cap 400"), HasSubstr("--memory-cap has no"));
  EXPECT_THAT(refused<ConfigError>("search --chunks 3"), HasSubstr("--chunks has no effect here"));
  for (const std::string option : {"--ranks", "--micro-batches", "--chunks"}) {
    EXPECT_THAT(refused<ConfigError>("--read x.txt " + option + " 3"),
                HasSubstr(option + " has no effect here: the file says it"));
  }
}

}  // namespace
}  // namespace trireme::schedule
