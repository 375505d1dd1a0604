// SPDX-License-Identifier: Apache-2.0
// parallel_models_test.cpp over the whole grid, for one to eight ranks.
#include <gmock/gmock.h>
#include <tests/processes/parallel/run_ranks.h>

namespace trireme {
namespace {

constexpr const char* kProgram = "PARALLEL_MODELS_PROGRAM";

class ParallelModelsGrid : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ParallelModelsGrid, ::testing::Range(1, 9));

TEST_P(ParallelModelsGrid, HasTheBitsOfOneProcessWithTheSameMicroBatches) {
  const test::Finished finished = test::run_ranks(GetParam(), kProgram, "grid");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, ::testing::HasSubstr(": 0 differences"));
}

}  // namespace
}  // namespace trireme
