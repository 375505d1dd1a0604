// SPDX-License-Identifier: Apache-2.0
// A rank that cannot read its data, or whose network throws, in real processes.
#include <gmock/gmock.h>
#include <tests/processes/parallel/run_ranks.h>

#include <string>

namespace trireme {
namespace {

using test::Finished;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kProgram = "FAILING_TRAINING_PROGRAM";

struct Case {
  std::string engine;
  std::string place;
  std::string stage;
  std::string doing;
};

class FailingTraining : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Engines, FailingTraining,
                         ::testing::Values(Case{"shm", "data", "0", "reading data"},
                                           Case{"shm", "forward", "2", "computing forward"},
                                           Case{"gloo", "data", "2", "reading data"},
                                           Case{"gloo", "forward", "0", "computing forward"}));

TEST_P(FailingTraining, EndsOnAllRanksByNameAndTheyTrainOn) {
  const auto& [engine, place, stage, doing] = GetParam();
  const Finished finished =
      run_ranks(3, kProgram, place + " " + stage, "--env TRIREME_ENGINE=" + engine);
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

}  // namespace
}  // namespace trireme
