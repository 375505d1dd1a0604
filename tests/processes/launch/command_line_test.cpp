// SPDX-License-Identifier: Apache-2.0
// The words of the command line.
#include <gmock/gmock.h>
#include <tests/processes/launch/launched.h>

namespace trireme::launch {
namespace {

using test::Launched;
using test::TemporaryFolder;
using testing::HasSubstr;
using Words = std::vector<std::string>;

TEST(CommandLine, LeavesTheProgramsArgumentsAlone) {
  const Words tail{"printf", "<%s>", "-n", "5", "--help", "--", "run", "", "a b", "--output=all"};
  const std::string expected = "<-n><5><--help><--><run><><a b><--output=all>";
  for (const bool with_mark : {true, false}) {
    Words words{"run", "-n", "1"};
    if (with_mark) words.emplace_back("--");
    words.insert(words.end(), tail.begin(), tail.end());
    Launched trireme(words);
    EXPECT_EQ(trireme.wait(), 0) << trireme.error;
    EXPECT_EQ(trireme.output, expected);
  }
}

TEST(CommandLine, DryRunPrintsWhatWouldRunAndStartsNothing) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "made").string();
  Launched trireme(
      {"run", "-n", "2", "--dry-run", "--env", "A=it's", "--", "/bin/sh", "-c", "touch " + file});
  EXPECT_EQ(trireme.wait(), 0);
  EXPECT_THAT(trireme.output, HasSubstr("RANK=0 WORLD_SIZE=2 "));
  EXPECT_THAT(trireme.output, HasSubstr("RANK=1 WORLD_SIZE=2 "));
  EXPECT_THAT(trireme.output, HasSubstr("A='it'\\''s' "));
  EXPECT_THAT(trireme.output, HasSubstr(" /bin/sh -c 'touch " + file + "'\n"));
  EXPECT_EQ(trireme.error, "");
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(CommandLine, HasHelpAndVersion) {
  for (const Words& words : {Words{"--help"}, {"run", "--help"}, {"--version"}}) {
    Launched trireme(words);
    EXPECT_EQ(trireme.wait(), 0);
    EXPECT_THAT(trireme.output, HasSubstr("trireme"));
  }
}

struct Mistake {
  Words words;
  std::string message;
};

class Mistakes : public testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreExplained) {
  Launched trireme(GetParam().words);
  EXPECT_EQ(trireme.wait(), 2);
  EXPECT_THAT(trireme.error, testing::StartsWith("trireme: error: "));
  EXPECT_THAT(trireme.error, HasSubstr(GetParam().message));
  EXPECT_THAT(trireme.error, HasSubstr("\n  hint: "));
  EXPECT_EQ(trireme.output, "");
}

INSTANTIATE_TEST_SUITE_P(
    CommandLine, Mistakes,
    testing::Values(
        Mistake{{}, "no command"}, Mistake{{"walk"}, "no command is called 'walk'"},
        Mistake{{"run"}, "no program to run"},
        Mistake{{"run", "-n", "2", "--"}, "no program to run"},
        Mistake{{"run", "-n", "0", "true"}, "-n is 0, expected 1 to 4096"},
        Mistake{{"run", "-n", "two", "true"}, "two"},
        Mistake{{"run", "--frobnicate", "true"}, "trireme run has no option --frobnicate"},
        Mistake{{"run", "--bind", "socket", "true"}, "socket not in {core,none}"},
        Mistake{{"run", "--output", "some", "true"}, "some not in {first,all,none}"},
        Mistake{{"run", "--env", "A", "true"}, "--env is 'A', expected NAME=VALUE"},
        Mistake{{"run", "--env", "RANK=1", "true"},
                "--env sets RANK to '1', which trireme run sets itself"},
        Mistake{{"bench"}, "subcommand is required"},
        Mistake{{"bench", "comm", "--sizes", "4x"}, "--sizes is '4x', expected bytes"},
        Mistake{{"bench", "comm", "--sizes", "8:4"}, "--sizes is '8:4', expected bytes"},
        Mistake{{"bench", "comm", "--sizes", "4,,8"}, "--sizes is '4,,8', expected bytes"},
        Mistake{{"bench", "comm", "--dtype", "float"}, "float not in {float64,"},
        Mistake{{"run", "--timeout", "0", "true"}, "--timeout is 0, expected 1"},
        Mistake{{"run", "--nnodes", "2", "-n", "1", "true"},
                "--nnodes is 2, expected with it: --node-rank --master-addr --master-port"},
        Mistake{{"run", "--nnodes", "2", "--node-rank", "2", "true"},
                "--node-rank is 2, expected 0 to 1"}));

}  // namespace
}  // namespace trireme::launch
