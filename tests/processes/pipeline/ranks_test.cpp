// SPDX-License-Identifier: Apache-2.0
// Pipelines with ZeRO, with a tensor axis and under Model, by four processes: each of them compares
// what it has with one process. Two summands are added alike over every engine.
#include <gmock/gmock.h>
#include <tests/processes/parallel/run_ranks.h>

#include <string>

namespace trireme {
namespace {

using test::Finished;
using test::run_ranks;

class PipelineRanks : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Engines, PipelineRanks, ::testing::Values("shm", "gloo"));

TEST_P(PipelineRanks, TrainLikeOneProcess) {
  constexpr int kRanks = 4;
  const Finished finished = run_ranks(kRanks, "PIPELINE_RANKS_PROGRAM", "--gtest_color=no",
                                      "--env TRIREME_ENGINE=" + GetParam());
  EXPECT_EQ(finished.code, 0) << finished.output;
  const std::string passed = "[  PASSED  ] 12 tests.";
  int num_passed = 0;
  for (std::size_t at = finished.output.find(passed); at != std::string::npos;
       at = finished.output.find(passed, at + 1)) {
    ++num_passed;
  }
  EXPECT_EQ(num_passed, kRanks) << finished.output;
}

}  // namespace
}  // namespace trireme
