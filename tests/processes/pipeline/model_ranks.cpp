// SPDX-License-Identifier: Apache-2.0
// Model in stages: fit, evaluate and predict as without stages.
#include <trireme/comm/world.h>

#include <gtest/gtest.h>
#include <tests/ranks/train/in_stages.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme {
namespace {

using test::in_stages;
using test::kResidualStages;
using test::perceptron;
using test::Program;
using test::residual;
using test::run_program;
using test::Trained;

const std::vector<std::int64_t> kImage = {3, 6, 6};
const std::vector<std::int64_t> kRow = {6};

TEST(ModelOnProcesses, HasTheBitsOfOneProcess) {
  const Program program{.rows = 22};
  Plan plan = in_stages(4, 1, kResidualStages);
  plan.micro_batches = 2;
  plan.schedule = "zb-h1";
  const Trained expected =
      run_program(residual(), kImage, program, {.micro_batches = 2}, comm::Group::self());
  test::expect_same(run_program(residual(), kImage, program, plan, init().group), expected);
}

TEST(ModelOnProcesses, HasTheBitsOfDataParallelAloneWithAnyZeroStage) {
  const comm::Group group = init().group;
  const Program program{.rows = 22};
  Plan plan = in_stages(2, 2, kResidualStages);
  plan.micro_batches = 2;
  const std::vector<Trained> all = test::without_stages(residual, kImage, program, plan, 2);
  const Trained& expected = all[static_cast<std::size_t>(data_part(plan, group).index)];
  for (const int zero_level : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero_level);
    plan.zero_level = zero_level;
    Trained got = run_program(residual(), kImage, program, plan, group);
    if (zero_level == 3) {  // parameters are not whole at the end; what they predict is compared
      got.parameters = expected.parameters;
      got.buffers = expected.buffers;
    }
    test::expect_same(got, expected);
  }
}

// Split contractions round otherwise.
TEST(ModelOnProcesses, SharesTheWorkOfAStage) {
  const Program program;
  Plan plan;
  plan.mesh = {{kStageAxis, 2}, {"tensor", 2}};
  plan.stages = {{"first", 0}, {"third", 1}};
  plan.layouts = join({column_parallel("first"), row_parallel("second"), column_parallel("third"),
                       row_parallel("last")});
  plan.micro_batches = 2;
  const Trained expected =
      run_program(perceptron(), kRow, program, {.micro_batches = 2}, comm::Group::self());
  const Trained got = run_program(perceptron(), kRow, program, plan, init().group);
  EXPECT_EQ(got.evaluation.samples, expected.evaluation.samples);
  EXPECT_NEAR(got.evaluation.loss, expected.evaluation.loss, 1e-5);
  EXPECT_NEAR(got.history.epochs[1].loss, expected.history.epochs[1].loss, 1e-5);
  EXPECT_TRUE(torch::equal(got.confusion, expected.confusion));
  EXPECT_TRUE(torch::allclose(got.predicted, expected.predicted, 1e-4, 1e-5));
  for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
    EXPECT_TRUE(torch::allclose(got.parameters[i], expected.parameters[i], 1e-4, 1e-5)) << i;
  }
}

}  // namespace
}  // namespace trireme
