// SPDX-License-Identifier: Apache-2.0
// A multilayer perceptron, a residual network, a transformer and an LSTM trained by ranks in real
// processes, where dropout draws from LibTorch's own generator: the bits of one process. The whole
// grid is in parallel_models_grid_test.cpp.
#include <gmock/gmock.h>
#include <tests/processes/parallel/run_ranks.h>

namespace trireme {
namespace {

using test::Finished;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kProgram = "PARALLEL_MODELS_PROGRAM";

class ParallelModels : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ParallelModels, ::testing::Values(1, 2, 3));

TEST_P(ParallelModels, HaveTheBitsOfOneProcessWithTheSameMicroBatches) {
  const Finished finished = run_ranks(GetParam(), kProgram, "fast");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("12 cases"), HasSubstr(": 0 differences"), Not(HasSubstr("FAILED"))));
}

// Two summands are the same in either order.
TEST(ParallelModels, HaveThoseBitsOverGlooToo) {
  const Finished finished = run_ranks(2, kProgram, "fast", "--env TRIREME_ENGINE=gloo");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr(": 0 differences"));
}

// Else equal bits would prove nothing.
TEST(ParallelModels, DifferFromAProcessThatAddsInAnotherOrder) {
  const Finished finished = run_ranks(3, kProgram, "reverse");
  EXPECT_NE(finished.code, 0);
  for (const char* model : {"mlp", "resnet", "gpt", "lstm"}) {
    EXPECT_THAT(finished.output, HasSubstr(std::string(": ") + model));
  }
}

}  // namespace
}  // namespace trireme
