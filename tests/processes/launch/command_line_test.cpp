// SPDX-License-Identifier: Apache-2.0
// The words of the command line.
#include <gmock/gmock.h>
#include <tests/processes/launch/launched.h>

#include <fstream>

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

TEST(CommandLine, KnowsTheNamesThatOtherLaunchersGiveToTheNumberOfRanks) {
  for (const Words& words : {Words{"-np", "2"},
                             {"-n2"},
                             {"--output", "first", "-np", "2"},
                             {"--nproc-per-node", "2"},
                             {"--nproc_per_node=2"},
                             {"--ranks", "2"}}) {
    Words all{"run", "--dry-run"};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"printf", "-np", "3"});
    Launched trireme(all);
    EXPECT_EQ(trireme.wait(), 0) << trireme.error;
    EXPECT_THAT(trireme.output, HasSubstr(" WORLD_SIZE=2 "));
    EXPECT_THAT(trireme.output, HasSubstr("/printf -np 3\n"));
  }
}

TEST(CommandLine, KnowsOptionsOfHorovodrun) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "hosts").string();
  std::ofstream(file) << "# the only host\nlocalhost slots=2\n";
  for (const Words& words : {Words{"-H", "localhost:2"},
                             {"-np", "2", "--gloo", "-H", "127.0.0.1:4"},
                             {"--mpi", "--verbose", "--hostfile", file},
                             {"-np", "2", "--hosts", "localhost"}}) {
    Words all{"run", "--dry-run", "--network-interface", "lo", "--start-timeout", "77"};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"printf", "-np", "3"});
    Launched trireme(all);
    EXPECT_EQ(trireme.wait(), 0) << trireme.error;
    EXPECT_THAT(trireme.output, HasSubstr(" WORLD_SIZE=2 "));
    EXPECT_THAT(trireme.output, HasSubstr("TRIREME_INTERFACE=lo "));
    EXPECT_THAT(trireme.output, HasSubstr("TRIREME_TIMEOUT=77 "));
    EXPECT_THAT(trireme.output, HasSubstr("/printf -np 3\n"));
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

TEST(CommandLine, NamesTheClusterToTheRanks) {
  const TemporaryFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  test::write_file("lab.toml",
                   "name = \"lab\"\n[[devices]]\nname = \"cpu\"\nmemory_gib = 4\n"
                   "memory_gb_per_s = 10\nteraflops = { float32 = 1 }\n"
                   "[[hosts]]\ncount = 1\ndevice = \"cpu\"\n");
  for (const auto& [given, named] :
       {std::pair<std::string, std::string>{"a100-80", "a100-80"},
        {"lab.toml", std::filesystem::absolute("lab.toml").string()}}) {
    Launched trireme({"run", "-n", "1", "--cluster", given, "--dry-run", "true"});
    EXPECT_EQ(trireme.wait(), 0) << trireme.error;
    EXPECT_THAT(trireme.output, HasSubstr("TRIREME_CLUSTER=" + named + " "));
  }
  std::filesystem::current_path(before);
}

TEST(CommandLine, NamesThePlanToTheRanks) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "plan.toml";
  test::write_file(file, "zero_level = 1\n");
  for (const std::string& plan : {std::string("auto"), file}) {
    Launched trireme({"run", "-n", "1", "--plan", plan, "--dry-run", "true"});
    EXPECT_EQ(trireme.wait(), 0) << trireme.error;
    EXPECT_THAT(trireme.output, HasSubstr("TRIREME_PLAN=" + plan + " "));
  }
  Launched trireme({"run", "-n", "1", "--plan", "automatic", "--dry-run", "true"});
  EXPECT_EQ(trireme.wait(), 2);
  EXPECT_THAT(trireme.error, HasSubstr("--plan is 'automatic', and there is no file of this name"));
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
        Mistake{{"schedul"}, "did you mean 'schedule'? the commands are run, "},
        Mistake{{"--verison"}, "did you mean '--version'?"},
        Mistake{{"schedule", "1fb1"}, "'1fb1', expected one of "},
        Mistake{{"schedule", "1fb1"}, "did you mean '1f1b'?"},
        Mistake{{"schedule", "1f1b", "--rank", "3"},
                "trireme schedule has no option '--rank'\n  hint: did you mean '--ranks'?"},
        Mistake{{"schedule", "--rank=3", "1f1b"}, "trireme schedule has no option '--rank'"},
        Mistake{{"bench", "com"},
                "trireme bench has no command 'com'\n  hint: did you mean 'comm'?"},
        Mistake{
            {"checkpoint", "prune", "x", "--prefx", "y"},
            "trireme checkpoint prune has no option '--prefx'\n  hint: did you mean '--prefix'?"},
        Mistake{{"doctor", "--dump"}, "--dump was given no value"},
        Mistake{{"doctor", "all"}, "trireme doctor was given 'all', and expects no such word"},
        Mistake{{"schedule", "1f1b", "--ranks", "0"},
                "--ranks: '0', expected an integer from 1 to 2147483647"},
        Mistake{{"bench", "comm", "--ranks", "0"}, "--ranks: '0', expected an integer from 1 to"},
        Mistake{{"data", "fashion-mnist-to-cifar10", "--to", "x", "--limit", "0"},
                "--limit: '0', expected an integer from 1"},
        Mistake{{"checkpoint", "prune", "x", "--prefix", "y", "--keep-last", "0"},
                "--keep-last: '0', expected an integer from 1"},
        Mistake{
            {"checkpoint", "prune", "x", "--prefix", "y", "--keep-last", "1", "--higher-is-better"},
            "--higher-is-better has no effect here: scores play no part without --keep-best"},
        Mistake{{"checkpoint", "inspect", "a", "b"},
                "trireme checkpoint inspect takes at most 1 path, and was given 2"},
        Mistake{{"checkpoint", "convert", "x", "y.safetensors", "--prefix", "z"},
                "--prefix has no effect here"},
        Mistake{{"checkpoint", "convert", "x", "y", "--section", "model"},
                "--section has no effect here"},
        Mistake{{"report", "no\x1b[2Jfolder"}, "no?[2Jfolder"},
        Mistake{{"run"}, "no program to run"},
        Mistake{{"run", "-n", "2", "--"}, "no program to run"},
        Mistake{{"run", "-n", "0", "true"}, "-n is 0, expected 1 to 4096"},
        Mistake{{"run", "--frobnicate", "true"}, "trireme run has no option '--frobnicate'"},
        Mistake{{"run", "-n", "two", "true"}, "-n (--nproc) is 'two', expected a number"},
        Mistake{{"run", "--nprocs", "2", "true"}, "did you mean '--nproc'? see trireme run --help"},
        Mistake{{"run", "--bind", "socket", "true"}, "'socket', expected one of core, none"},
        Mistake{{"run", "--output", "some", "true"}, "'some', expected one of first, all, none"},
        Mistake{{"run", "--env", "A", "true"}, "--env is 'A', expected NAME=VALUE"},
        Mistake{{"run", "--cluster", "a100-08", "true"},
                "there is no cluster 'a100-08' and no file of this name"},
        Mistake{{"run", "--env", "RANK=1", "true"},
                "--env sets RANK to '1', which trireme run sets itself"},
        Mistake{{"bench"}, "trireme bench was given no command\n  hint: the commands are comm"},
        Mistake{{"bench", "comm", "--sizes", "4x"}, "--sizes is '4x', expected bytes"},
        Mistake{{"bench", "comm", "--sizes", "8:4"}, "--sizes is '8:4', expected bytes"},
        Mistake{{"bench", "comm", "--sizes", "4,,8"}, "--sizes is '4,,8', expected bytes"},
        Mistake{{"bench", "comm", "--dtype", "float"}, "'float', expected one of float64, "},
        Mistake{{"run", "-H", "localhost:2,elsewhere:2", "true"},
                "-H or --hostfile names 2 hosts, among them 'localhost'"},
        Mistake{{"run", "-H", "elsewhere:2", "true"}, "'elsewhere'"},
        Mistake{{"run", "-H", "localhost:x", "true"}, "'localhost:x', expected HOST:SLOTS"},
        Mistake{{"run", "-n", "3", "-H", "localhost:2", "true"}, "the host has 2 slots"},
        Mistake{{"run", "--hostfile", "/nowhere", "true"}, "'/nowhere', which cannot be read"},
        Mistake{{"run", "--grace", "-1", "true"}, "--grace is -1, expected 0 to"},
        Mistake{{"run", "--linger", "-1", "true"}, "--linger is -1, expected 0 to"},
        Mistake{{"run", "--ranks", "0", "true"}, "-n is 0, expected 1 to 4096"},
        Mistake{{"run", "--timeout", "0", "true"}, "--timeout is 0, expected 1"},
        Mistake{{"run", "--nnodes", "2", "-n", "1", "true"},
                "--nnodes is 2, expected with it: --node-rank --master-addr --master-port"},
        Mistake{{"run", "--nnodes", "2", "--node-rank", "2", "true"},
                "--node-rank is 2, expected 0 to 1"}));

}  // namespace
}  // namespace trireme::launch
