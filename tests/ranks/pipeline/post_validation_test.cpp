// SPDX-License-Identifier: Apache-2.0
// Pipelines whose steps are validated afterwards: every bit of loops that wait before they step.
#include <trireme/optim/post_validation.h>

#include <trireme/base/error.h>
#include <trireme/parallel/training_step.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/stepping.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace trireme {
namespace {

using test::Arranged;
using test::Network;
using test::Snapshot;
using test::Stepping;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_catching;

constexpr int kSteps = 10;

struct Trained {
  std::vector<torch::Tensor> losses;
  std::vector<Snapshot> steps;
  std::vector<torch::Tensor> parameters;
  int num_taken_back = 0;
  int num_skipped = 0;
};

// The embedding's weight is the last stage's too.
Trained train(const Arranged& arranged, const test::Demands& demands, Stepping::Way way,
              const comm::Group& group) {
  const Network network = test::language_model(0, /*tied=*/true);
  const auto optimizer = test::make_optimizer(arranged.optimizer, network.module->parameters());
  TrainingStep pipeline(*network.module, network.forward, test::plan_of(arranged, network), group);
  pipeline.shard(*optimizer);
  Stepping stepping(*optimizer, demands, way);
  const comm::Group& data = pipeline.data_group();
  Trained run;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    const auto batch = network.batch(arranged.rows * data.size(), step);
    run.losses.push_back(
        pipeline.step(test::part_of(batch, data.rank(), data.size())).loss.clone());
    test::resize_gradients(*optimizer, step, demands.max_norm.has_value());
    // On one stage alone.
    const bool spoils = demands.skip_not_finite && (step == 0 || step == 4);
    if (spoils && pipeline.stage_group().rank() == 1) {
      test::spoil_a_gradient(*optimizer, /*is_infinite=*/step == 4);
    }
    stepping.step(pipeline.sharing());
    test::set_rates(*optimizer, step);
    run.steps.push_back(stepping.finish());
  }
  pipeline.gather_parameters();
  run.parameters = test::copies(*network.module);
  run.num_taken_back = stepping.num_taken_back;
  run.num_skipped = stepping.num_skipped;
  return run;
}

class PipelinePostValidation : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ZeroLevels, PipelinePostValidation, ::testing::Values(0, 1, 2, 3));

TEST_P(PipelinePostValidation, HasTheBitsOfALoopThatWaits) {
  for (const std::string optimizer : {"momentum", "adam", "rmsprop"}) {
    for (const bool skips : {false, true}) {
      const Arranged arranged{
          .pipe = 2, .data = 2, .zero_level = GetParam(), .optimizer = optimizer, .rows = 4};
      const test::Demands demands{.max_norm = 0.05, .skip_not_finite = skips};
      run_ranks(4, [&](const comm::Group& group) {
        SCOPED_TRACE(::testing::Message() << optimizer << ", rank " << group.rank());
        const Trained expected = train(arranged, demands, Stepping::Way::kWaits, group);
        const Trained got = train(arranged, demands, Stepping::Way::kValidates, group);
        test::expect_same_bits(got.losses, expected.losses, "loss");
        test::expect_same_bits(got.parameters, expected.parameters, "parameter");
        for (std::size_t step = 0; step < expected.steps.size(); ++step) {
          test::expect_same_bits(got.steps[step], expected.steps[step],
                                 "step " + std::to_string(step));
        }
        EXPECT_EQ(got.num_skipped, skips ? 2 : 0);
        EXPECT_EQ(got.num_taken_back, skips ? 5 : 4);
      });
    }
  }
}

// A rank that is gone before its step: the others have what they had before theirs.
TEST(PipelinePostValidationFault, TakesTheStepBackOnTheOtherStages) {
  const auto thrown = run_ranks_catching(2, [](const comm::Group& group) {
    const Network network = test::residual_net();
    torch::optim::Adam optimizer(network.module->parameters());
    TrainingStep pipeline(*network.module, network.forward, test::plan_of({.pipe = 2}, network),
                          group);
    PostValidation validation(optimizer, {.max_norm = 1e6});
    static_cast<void>(pipeline.step(network.batch(4, 0)));
    if (group.rank() == 1) throw std::runtime_error("reading data");
    const Snapshot before = test::snapshot_of(optimizer);
    validation.step(pipeline.sharing());
    try {
      validation.validate();
    } catch (const CommError&) {
      test::expect_same_bits(test::snapshot_of(optimizer), before, "after");
      throw;
    }
  });
  EXPECT_THAT(message_of<CommError>(thrown[0]), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace trireme
