// SPDX-License-Identifier: Apache-2.0
// Pipelines in real processes: the same bits by any number of stages and any schedule, and a rank
// that throws, dies or stops in the middle of a step is named on all others at once.
#include <gmock/gmock.h>
#include <tests/processes/parallel/run_ranks.h>

#include <csignal>
#include <string>

namespace trireme {
namespace {

using test::Finished;
using test::run_ranks;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kProgram = "PIPELINE_PROGRAM";

// Losses and parameters, as rank 0 prints them.
std::string bits_of(int ranks, const std::string& arguments, const std::string& options = {}) {
  const Finished finished = run_ranks(ranks, kProgram, arguments, options);
  EXPECT_EQ(finished.code, 0) << finished.output;
  return finished.output.substr(finished.output.find("loss"));
}

TEST(PipelineProcesses, GiveTheBitsOfOneStageByAnySchedule) {
  const std::string one = bits_of(1, "1f1b none 0");
  EXPECT_THAT(one, HasSubstr("parameter"));
  EXPECT_EQ(bits_of(2, "zb-h1 none 0"), one);
  EXPECT_EQ(bits_of(3, "1f1b none 0"), one);
  EXPECT_EQ(bits_of(2, "gpipe none 0", "--env TRIREME_ENGINE=gloo"), one);
}

// With dropout. What is cut over two ranks along data, by two stages and by one.
TEST(PipelineProcesses, GiveTheBitsOfOneStageWithAnyZeroStage) {
  const std::string one = bits_of(2, "1f1b none 0 2 0");
  EXPECT_EQ(bits_of(2, "1f1b none 0 2 3"), one);
  EXPECT_EQ(bits_of(4, "zb-h1 none 0 2 3", "--env TRIREME_ENGINE=gloo"), one);
}

struct Case {
  std::string engine;
  std::string schedule;
  std::string failure;
  int ranks = 2;
  int victim = 0;
  int along_data = 1;
  int zero_level = 0;
};

class FailingPipeline : public ::testing::TestWithParam<Case> {
 protected:
  static Finished run(const std::string& options = {}) {
    const Case& it = GetParam();
    std::string arguments = it.schedule + " " + it.failure;
    for (const int number : {it.victim, it.along_data, it.zero_level}) {
      arguments += " " + std::to_string(number);
    }
    return run_ranks(it.ranks, kProgram, arguments,
                     "--env TRIREME_ENGINE=" + it.engine + " " + options);
  }
};
using ThrowingPipeline = FailingPipeline;
using DyingPipeline = FailingPipeline;
using StoppedPipeline = FailingPipeline;

INSTANTIATE_TEST_SUITE_P(SharedMemory, ThrowingPipeline,
                         ::testing::Values(Case{"shm", "1f1b", "throw", 3, 1},
                                           Case{"shm", "zb-h1", "throw", 2, 0},
                                           Case{"shm", "gpipe", "token", 3, 0},
                                           Case{"shm", "zb-h1", "throw", 4, 3, 2, 3},
                                           Case{"shm", "1f1b", "throw", 4, 1, 2, 1}));

TEST_P(ThrowingPipeline, IsToldByNameOnAllRanks) {
  const Case& it = GetParam();
  const Finished finished = run();
  EXPECT_NE(finished.code, 0) << finished.output;
  const std::string victim = "rank " + std::to_string(it.victim);
  // Compilers disagree about which of the two summands is computed first.
  const char* const own = it.failure == "token"
                              ? "operator [01], aten::embedding of words failed: index out of range"
                              : "mine";
  for (int rank = 0; rank < it.ranks; ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    if (rank == it.victim) {
      EXPECT_THAT(finished.output, ContainsRegex(who + ": error: " + own));
    } else {
      EXPECT_THAT(finished.output, HasSubstr(who + ": CommError: "));
    }
  }
  EXPECT_THAT(finished.output, HasSubstr(victim + " failed in step 1 of the pipeline, at "));
}

INSTANTIATE_TEST_SUITE_P(Engines, DyingPipeline,
                         ::testing::Values(Case{"shm", "1f1b", "die", 3, 1},
                                           Case{"gloo", "1f1b", "die", 2, 1},
                                           Case{"shm", "zb-h1", "die", 4, 3, 2, 3},
                                           Case{"gloo", "1f1b", "die", 4, 3, 2, 3}));

TEST_P(DyingPipeline, EndsTheRunAndSaysWhoDied) {
  const Finished finished = run();
  EXPECT_EQ(finished.code, 128 + SIGKILL) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("rank " + std::to_string(GetParam().victim)));
  EXPECT_THAT(finished.output, HasSubstr("SIGKILL"));
}

INSTANTIATE_TEST_SUITE_P(Engines, StoppedPipeline,
                         ::testing::Values(Case{"shm", "1f1b", "stop", 3, 1},
                                           Case{"gloo", "zb-h1", "stop", 2, 1},
                                           Case{"shm", "zb-h1", "stop", 4, 3, 2, 3},
                                           Case{"gloo", "1f1b", "stop", 4, 3, 2, 3}));

TEST_P(StoppedPipeline, IsMissedAtTheDeadline) {
  const Case& it = GetParam();
  const Finished finished = run("--timeout 3");
  EXPECT_NE(finished.code, 0) << finished.output;
  for (int rank = 0; rank < it.ranks; ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    if (rank == it.victim) {
      EXPECT_THAT(finished.output, Not(HasSubstr(who + ": CommError: ")));
    } else {
      EXPECT_THAT(finished.output, HasSubstr(who + ": CommError: "));
    }
  }
  // By the number in the group that waited, and who that is.
  std::string name = "rank " + std::to_string(it.victim % (it.ranks / it.along_data));
  if (it.along_data > 1) name += " (rank " + std::to_string(it.victim) + " of the world)";
  EXPECT_THAT(finished.output,
              HasSubstr(name + (it.engine == "shm" ? " did not come within the timeout of 3 s"
                                                   : ": hangs, or waits for something else")));
}

}  // namespace
}  // namespace trireme
