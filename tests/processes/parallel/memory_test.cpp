// SPDX-License-Identifier: Apache-2.0
// What every rank holds with each stage of ZeRO, as the kernel counts it, is what the formula says.
#include <gmock/gmock.h>
#include <tests/processes/parallel/run_ranks.h>
#include <tests/stages.h>

#include <string>
#include <tuple>

namespace trireme {
namespace {

using test::Finished;
using ::testing::HasSubstr;

Finished run_memory(int ranks, int stage, int stage_of_formula) {
  return test::run_ranks(ranks, "PARALLEL_MEMORY_PROGRAM",
                         std::to_string(stage) + " " + std::to_string(stage_of_formula));
}

class ParallelMemory : public ::testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(RanksAndStages, ParallelMemory,
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::Range(0, test::kHighestStage + 1)));

TEST_P(ParallelMemory, IsThatOfTheFormulaWithinFivePercent) {
  const auto [ranks, stage] = GetParam();
  const Finished finished = run_memory(ranks, stage, stage);
  EXPECT_EQ(finished.code, 0) << finished.output;
}

TEST(ParallelMemory, OfOneStageIsNotThatOfTheNext) {
  for (int stage = 1; stage <= test::kHighestStage; ++stage) {
    const Finished finished = run_memory(2, stage - 1, stage);
    EXPECT_EQ(finished.code, 1) << finished.output;
    EXPECT_THAT(finished.output, HasSubstr("held: off by"));
  }
}

}  // namespace
}  // namespace trireme
