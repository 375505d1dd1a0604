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
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kProgram = "PIPELINE_PROGRAM";

// Losses and parameters, as rank 0 prints them.
std::string bits_of(int ranks, const std::string& schedule, const std::string& options = {}) {
  const Finished finished = run_ranks(ranks, kProgram, schedule + " none 0", options);
  EXPECT_EQ(finished.code, 0) << finished.output;
  return finished.output.substr(finished.output.find("loss"));
}

TEST(PipelineProcesses, GiveTheBitsOfOneStageByAnySchedule) {
  const std::string one = bits_of(1, "1f1b");
  EXPECT_THAT(one, HasSubstr("parameter"));
  EXPECT_EQ(bits_of(2, "zb-h1"), one);
  EXPECT_EQ(bits_of(3, "1f1b"), one);
  EXPECT_EQ(bits_of(2, "gpipe", "--env TRIREME_ENGINE=gloo"), one);
}

struct Case {
  std::string engine;
  std::string schedule;
  std::string failure;
  int ranks = 2;
  int victim = 0;
};

class FailingPipeline : public ::testing::TestWithParam<Case> {
 protected:
  static Finished run(const std::string& options = {}) {
    const Case& it = GetParam();
    return run_ranks(it.ranks, kProgram,
                     it.schedule + " " + it.failure + " " + std::to_string(it.victim),
                     "--env TRIREME_ENGINE=" + it.engine + " " + options);
  }
};
using ThrowingPipeline = FailingPipeline;
using DyingPipeline = FailingPipeline;
using StoppedPipeline = FailingPipeline;

INSTANTIATE_TEST_SUITE_P(SharedMemory, ThrowingPipeline,
                         ::testing::Values(Case{"shm", "1f1b", "throw", 3, 1},
                                           Case{"shm", "zb-h1", "throw", 2, 0},
                                           Case{"shm", "gpipe", "token", 3, 0}));

TEST_P(ThrowingPipeline, IsToldByNameOnAllRanks) {
  const Case& it = GetParam();
  const Finished finished = run();
  EXPECT_NE(finished.code, 0) << finished.output;
  const std::string victim = "rank " + std::to_string(it.victim);
  const char* const own = it.failure == "token" ? "index out of range" : "mine";
  for (int rank = 0; rank < it.ranks; ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    if (rank == it.victim) {
      EXPECT_THAT(finished.output, HasSubstr(who + ": error: " + own));
    } else {
      EXPECT_THAT(finished.output, HasSubstr(who + ": CommError: "));
    }
  }
  EXPECT_THAT(finished.output, HasSubstr(victim + " failed in step 1 of the pipeline, at "));
}

INSTANTIATE_TEST_SUITE_P(Engines, DyingPipeline,
                         ::testing::Values(Case{"shm", "1f1b", "die", 3, 1},
                                           Case{"gloo", "1f1b", "die", 2, 1}));

TEST_P(DyingPipeline, EndsTheRunAndSaysWhoDied) {
  const Finished finished = run();
  EXPECT_EQ(finished.code, 128 + SIGKILL) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("rank 1"));
  EXPECT_THAT(finished.output, HasSubstr("SIGKILL"));
}

INSTANTIATE_TEST_SUITE_P(Engines, StoppedPipeline,
                         ::testing::Values(Case{"shm", "1f1b", "stop", 3, 1},
                                           Case{"gloo", "zb-h1", "stop", 2, 1}));

TEST_P(StoppedPipeline, IsMissedAtTheDeadline) {
  const Case& it = GetParam();
  const Finished finished = run("--timeout 3");
  EXPECT_NE(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("rank 0: CommError: "));
  EXPECT_THAT(finished.output, Not(HasSubstr("rank " + std::to_string(it.victim) + ": ")));
}

}  // namespace
}  // namespace trireme
