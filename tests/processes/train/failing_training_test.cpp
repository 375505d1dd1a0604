// SPDX-License-Identifier: Apache-2.0
// A rank that cannot read its data, or whose network throws, in real processes.
#include <gmock/gmock.h>
#include <tests/processes/parallel/run_ranks.h>

#include <csignal>
#include <string>

namespace trireme {
namespace {

using test::Finished;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kProgram = "FAILING_TRAINING_PROGRAM";

struct Case {
  std::string engine;
  std::string place;
  std::string zero_level;
  std::string doing;
};

class FailingTraining : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Engines, FailingTraining,
                         ::testing::Values(Case{"shm", "data", "0", "reading data"},
                                           Case{"shm", "forward", "2", "computing forward"},
                                           Case{"gloo", "data", "2", "reading data"},
                                           Case{"gloo", "forward", "0", "computing forward"}));

TEST_P(FailingTraining, EndsOnAllRanksByNameAndTheyTrainOn) {
  const auto& [engine, place, zero_level, doing] = GetParam();
  const Finished finished =
      run_ranks(3, kProgram, place + " " + zero_level, "--env TRIREME_ENGINE=" + engine);
  EXPECT_EQ(finished.code, 0) << finished.output;
  for (int rank = 0; rank < 3; ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    EXPECT_THAT(finished.output,
                AllOf(HasSubstr(who + ": TrainingError: training failed: rank 1, " + doing +
                                " in epoch 1, step 3 of all: "),
                      HasSubstr(who + ": trained on: 4")));
  }
}

TEST(FailingTrainingOfStage3, IsToldByTheEndOfTheGroup) {
  const Finished finished = run_ranks(3, kProgram, "data 3");
  EXPECT_NE(finished.code, 0) << finished.output;
  for (const char* rank : {"rank 0", "rank 2"}) {
    EXPECT_THAT(finished.output, HasSubstr(std::string(rank) + ": CommError: "));
  }
  EXPECT_THAT(finished.output, HasSubstr("rank 1, reading data in epoch 1, step 3 of all: "));
}

// -- in stages: two of them, on two ranks along data --------------------------------------------

std::string in_stages(const std::string& place, const std::string& failure) {
  return place + " 3 2 " + failure;
}

class FailingTrainingInStages : public ::testing::TestWithParam<std::string> {
 protected:
  static std::string engine() { return "--env TRIREME_ENGINE=" + GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Engines, FailingTrainingInStages, ::testing::Values("shm", "gloo"));

TEST_P(FailingTrainingInStages, EndsOnAllRanksByNameAndTheyTrainOn) {
  const Finished finished = run_ranks(4, kProgram, in_stages("data", "throw"), engine());
  EXPECT_EQ(finished.code, 0) << finished.output;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    EXPECT_THAT(finished.output,
                AllOf(HasSubstr(who + ": TrainingError: training failed: rank 1, reading data in "
                                      "epoch 1, step 3 of all: "),
                      HasSubstr(who + ": trained on: 6")));
  }
}

// Over Gloo the others may be ended before they have noticed.
TEST_P(FailingTrainingInStages, EndsAndSaysWhoThrew) {
  const Finished finished = run_ranks(4, kProgram, in_stages("backward", "throw"), engine());
  EXPECT_NE(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("[rank 1] mine"));
  if (GetParam() != "shm") {
    EXPECT_THAT(finished.output, HasSubstr("rank 1 failed first"));
    return;
  }
  for (const char* rank : {"rank 0", "rank 2", "rank 3"}) {
    EXPECT_THAT(finished.output, HasSubstr(std::string(rank) + ": CommError: "));
  }
  EXPECT_THAT(finished.output, HasSubstr("rank 1 failed in step 2 of the pipeline, at B1.0"));
  EXPECT_THAT(finished.output, HasSubstr("rank 1 of the pipelines failed: "));
}

TEST_P(FailingTrainingInStages, EndsAndSaysWhoDied) {
  const Finished finished = run_ranks(4, kProgram, in_stages("backward", "die"), engine());
  EXPECT_EQ(finished.code, 128 + SIGKILL) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("rank 1"), HasSubstr("SIGKILL")));
}

TEST_P(FailingTrainingInStages, MissesARankAtTheDeadline) {
  const Finished finished =
      run_ranks(4, kProgram, in_stages("backward", "stop"), engine() + " --timeout 3");
  EXPECT_NE(finished.code, 0) << finished.output;
  for (const char* rank : {"rank 0", "rank 2", "rank 3"}) {
    EXPECT_THAT(finished.output, HasSubstr(std::string(rank) + ": CommError: "));
  }
  EXPECT_THAT(finished.output, Not(HasSubstr("rank 1: CommError: ")));
  if (GetParam() != "shm") return;
  EXPECT_THAT(finished.output, HasSubstr("did not come within the timeout of 3 s"));
}

}  // namespace
}  // namespace trireme
