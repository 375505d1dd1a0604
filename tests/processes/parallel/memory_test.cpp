// SPDX-License-Identifier: Apache-2.0
// What every rank holds with each ZeRO level, as the kernel counts it, is what the formula says.
#include <gmock/gmock.h>
#include <tests/processes/parallel/run_ranks.h>
#include <tests/zero_levels.h>

#include <string>
#include <tuple>

namespace trireme {
namespace {

using test::Finished;
using ::testing::HasSubstr;

Finished run_memory(int ranks, int zero_level, int level_of_formula) {
  return test::run_ranks(ranks, "PARALLEL_MEMORY_PROGRAM",
                         std::to_string(zero_level) + " " + std::to_string(level_of_formula));
}

class ParallelMemory : public ::testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(RanksAndStages, ParallelMemory,
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::Range(0, test::kHighestZeroLevel + 1)));

TEST_P(ParallelMemory, IsThatOfTheFormulaWithinFivePercent) {
  const auto [ranks, zero_level] = GetParam();
  const Finished finished = run_memory(ranks, zero_level, zero_level);
  EXPECT_EQ(finished.code, 0) << finished.output;
}

TEST(ParallelMemory, OfOneStageIsNotThatOfTheNext) {
  for (int zero_level = 1; zero_level <= test::kHighestZeroLevel; ++zero_level) {
    const Finished finished = run_memory(2, zero_level - 1, zero_level);
    EXPECT_EQ(finished.code, 1) << finished.output;
    EXPECT_THAT(finished.output, HasSubstr("held: off by"));
  }
}

}  // namespace
}  // namespace trireme
