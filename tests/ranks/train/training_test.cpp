// SPDX-License-Identifier: Apache-2.0
// Model in stages trains, evaluates and predicts as it does without, bit by bit.
#include <trireme/base/error.h>
#include <trireme/graph/mark.h>

#include <gmock/gmock.h>
#include <tests/ranks/train/in_stages.h>

#include <algorithm>

namespace trireme {
namespace {

using test::expect_as_without_stages;
using test::expect_same;
using test::in_stages;
using test::kPerceptronStages;
using test::kResidualStages;
using test::perceptron;
using test::Program;
using test::residual;
using test::run_program;
using test::Trained;
using testing::run_ranks;

const std::vector<std::int64_t> kImage = {3, 6, 6};
const std::vector<std::int64_t> kRow = {6};

// The last batch of an epoch, and of the test, is shorter.
TEST(ModelInStages, HasTheBitsOfOneProcess) {
  const Program program{.rows = 22};
  for (const std::string schedule : {"1f1b", "gpipe", "interleaved", "zb-h1"}) {
    Plan plan = in_stages(schedule == "interleaved" ? 4 : 2, 1, kResidualStages);
    if (schedule == "interleaved") plan.mesh = {{kStageAxis, 2}};
    plan.schedule = schedule;
    plan.micro_batches = 2;
    expect_as_without_stages(residual, kImage, program, plan);
  }
}

TEST(ModelInStages, HasTheBitsOfDataParallelAloneWithAnyZeroStage) {
  const Program program{.rows = 22};
  for (const int zero_level : {0, 1, 2, 3}) {
    Plan plan = in_stages(2, 2, kResidualStages);
    plan.micro_batches = 2;
    plan.zero_level = zero_level;
    if (zero_level < 3) {
      expect_as_without_stages(residual, kImage, program, plan);
      continue;
    }
    // Parameters are not whole at the end.
    Plan whole = plan;
    whole.zero_level = 0;
    const auto expected = test::without_stages(residual, kImage, program, whole, 2);
    run_ranks(4, [&](const comm::Group& group) {
      Trained got = run_program(residual(), kImage, program, plan, group);
      const Trained& trained = expected[static_cast<std::size_t>(data_part(plan, group).index)];
      got.parameters = trained.parameters;
      got.buffers = trained.buffers;
      expect_same(got, trained);
    });
  }
}

TEST(ModelInStages, CutsModulesIntoStagesOfEqualCost) {
  Plan plan{.mesh = {{kStageAxis, 2}}, .micro_batches = 3};
  expect_as_without_stages(perceptron, kRow, {}, plan);
}

TEST(ModelInStages, ComputesInHalfPrecisionWithALossScale) {
  // The first steps overflow.
  const LossScaleOptions scale{.initial = 1 << 22, .growth_interval = 3};
  Program program{.autocast = at::kHalf, .loss_scale = scale};
  for (const int zero_level : {0, 2}) {
    Plan plan = in_stages(2, 2, kPerceptronStages);
    plan.micro_batches = 2;
    plan.zero_level = zero_level;
    expect_as_without_stages(perceptron, kRow, program, plan);
    run_ranks(4, [&](const comm::Group& group) {
      const Trained got = run_program(perceptron(), kRow, program, plan, group);
      EXPECT_GT(std::ranges::count(got.skipped, true), 0);
      EXPECT_GT(std::ranges::count(got.skipped, false), 0);
    });
  }
}

TEST(ModelInStages, ComputesInBfloat16) {
  Program program{.autocast = at::kBFloat16};
  Plan plan = in_stages(4, 1, kResidualStages);
  plan.micro_batches = 3;
  expect_as_without_stages(residual, kImage, program, plan);
  expect_as_without_stages(perceptron, kRow, program, in_stages(2, 1, kPerceptronStages));
}

// Random numbers have their own keys: one stage is the reference.
TEST(ModelInStages, DrawsTheSameNumbersInAnyNumberOfStages) {
  for (const std::optional<std::uint64_t> seed : {std::optional<std::uint64_t>(), {5}}) {
    const Program program{.deterministic = seed};
    Trained expected;
    run_ranks(1, [&](const comm::Group& group) {
      Plan one{.mesh = {{kStageAxis, 1}}, .micro_batches = 2};
      expected = run_program(test::dropping(0.4), kRow, program, one, group);
    });
    Plan plan = in_stages(3, 1, kPerceptronStages);
    plan.micro_batches = 2;
    run_ranks(3, [&](const comm::Group& group) {
      expect_same(run_program(test::dropping(0.4), kRow, program, plan, group), expected);
    });
  }
}

TEST(ModelInStages, ComputesAgainWhatThePlanNames) {
  Plan plan{.recompute = {"blocks.*"}, .micro_batches = 2};
  expect_as_without_stages(residual, kImage, {}, [&] {
    Plan whole = plan;
    whole.recompute.clear();
    whole.mesh = {{kStageAxis, 1}};
    return whole;
  }());
  Program program;
  const Plan none{.micro_batches = 2};
  const Trained expected = run_program(residual(), kImage, program, none, comm::Group::self());
  expect_same(run_program(residual(), kImage, program, plan, comm::Group::self()), expected);
}

// Split contractions round otherwise.
TEST(ModelInStages, SharesTheWorkOfAStage) {
  const Program program;
  Plan plan;
  plan.mesh = {{kDataAxis, 2}, {kStageAxis, 2}, {"tensor", 2}};
  plan.stages = {{"first", 0}, {"third", 1}};
  plan.layouts = join({column_parallel("first"), row_parallel("second"), column_parallel("third"),
                       row_parallel("last")});
  plan.micro_batches = 2;
  const auto expected = test::without_stages(perceptron, kRow, program, {.micro_batches = 2}, 2);
  run_ranks(8, [&](const comm::Group& group) {
    const Trained got = run_program(perceptron(), kRow, program, plan, group);
    const Trained& trained = expected[static_cast<std::size_t>(data_part(plan, group).index)];
    EXPECT_EQ(got.evaluation.samples, trained.evaluation.samples);
    EXPECT_NEAR(got.evaluation.loss, trained.evaluation.loss, 1e-5);
    EXPECT_EQ(got.history.epochs[1].samples, trained.history.epochs[1].samples);
    EXPECT_NEAR(got.history.epochs[1].loss, trained.history.epochs[1].loss, 1e-5);
    EXPECT_TRUE(torch::equal(got.confusion, trained.confusion));
    EXPECT_TRUE(torch::allclose(got.predicted, trained.predicted, 1e-4, 1e-5));
    for (std::size_t i = 0; i < trained.parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(got.parameters[i], trained.parameters[i], 1e-4, 1e-5)) << i;
    }
  });
}

// -- a function of the batch, loss and columns -------------------------------------------------

TEST(ModelInStages, TrainsAFunctionOfTheBatch) {
  const auto train = [](const Plan& plan, const comm::Group& group) {
    const auto network = perceptron();
    torch::optim::AdamW optimizer(network->parameters(), 1e-2);
    const auto rows = test::numbers({24, 6}, 2);
    data::DataLoader data(data::tensors({{"weight", torch::arange(24).remainder(3) + 1.0},
                                         {"label", torch::arange(24).remainder(5)},
                                         {"input", rows}}));
    data.batch(4);
    const auto loss = [&](const data::Batch& batch) {
      const auto each = torch::cross_entropy_loss(network->forward(batch["input"]), batch["label"],
                                                  {}, at::Reduction::None);
      return (each * batch["weight"]).mean();
    };
    Model model(loss, network, optimizer, {.group = group, .plan = plan, .clip_norm = 1.0});
    std::vector<double> numbers;
    for (const auto& epoch : model.train(2, data).epochs) numbers.push_back(epoch.loss);
    numbers.push_back(model.evaluate(data).loss);
    EXPECT_FALSE(model.evaluate(data).accuracy.has_value());
    return std::pair(numbers, network->parameters());
  };
  const auto [numbers, parameters] = train({.micro_batches = 2}, {});
  run_ranks(2, [&](const comm::Group& group) {
    Plan plan = in_stages(2, 1, kPerceptronStages);
    plan.micro_batches = 2;
    const auto [got, trained] = train(plan, group);
    EXPECT_EQ(got, numbers);
    for (std::size_t i = 0; i < trained.size(); ++i)
      EXPECT_TRUE(torch::equal(trained[i], parameters[i]));
  });
}

// -- before, between and after -----------------------------------------------------------------

TEST(ModelInStages, EvaluatesAndPredictsBeforeItHasTrained) {
  const auto data = [] {
    auto rows = test::rows_of(12, kRow);
    rows.batch(4);
    return rows;
  }();
  const auto input = test::numbers({3, 6}, 8);
  const auto alone = perceptron();
  torch::optim::SGD with(alone->parameters(), 0.1);
  Model reference(alone, CrossEntropy(), with);
  const double loss = reference.evaluate(data).loss;
  const auto output = reference.predict(input);
  for (const bool predicts_first : {false, true}) {
    run_ranks(2, [&](const comm::Group& group) {
      const auto network = perceptron();
      torch::optim::SGD optimizer(network->parameters(), 0.1);
      Model model(network, CrossEntropy(), optimizer,
                  {.group = group, .plan = in_stages(2, 1, kPerceptronStages)});
      if (predicts_first) {
        EXPECT_TRUE(torch::equal(model.predict(input), output));
      }
      EXPECT_EQ(model.evaluate(data).loss, loss);
      EXPECT_TRUE(torch::equal(model.predict(input), output));
      EXPECT_TRUE(network->is_training());
      model.train(1, data);
      EXPECT_FALSE(torch::equal(model.predict(input), output));
    });
  }
}

TEST(ModelInStages, ADryRunLeavesEverythingAsItWas) {
  const Program program{.epochs = 1};
  Plan plan = in_stages(2, 2, kResidualStages);
  plan.zero_level = 2;
  run_ranks(4, [&](const comm::Group& group) {
    const auto network = residual();
    const auto before = residual();
    torch::optim::SGD optimizer(network->parameters(), 0.1);
    const DataPart part = data_part(plan, group);
    auto data = test::rows_of(16, kImage);
    data.shard({.index = part.index, .count = part.count}).batch(4);
    Model model(network, CrossEntropy(), optimizer, {.group = group, .plan = plan});
    EXPECT_EQ(model.dry_run(data, &data).epochs.size(), 1);
    EXPECT_EQ(model.progress().global_step, 0);
    for (std::size_t i = 0; i < before->parameters().size(); ++i) {
      EXPECT_TRUE(torch::equal(network->parameters()[i], before->parameters()[i])) << i;
    }
    for (std::size_t i = 0; i < before->buffers().size(); ++i) {
      EXPECT_TRUE(torch::equal(network->buffers()[i], before->buffers()[i])) << i;
    }
  });
}

TEST(ModelInStages, StopsOnAllRanksWhereOneWishes) {
  run_ranks(4, [](const comm::Group& group) {
    Program program;
    program.at_step_end = [&](const StepEndContext& step) {
      if (group.rank() == 3 && step.global_step == 2) step.run.model.request_stop();
    };
    Plan plan = in_stages(2, 2, kPerceptronStages);
    const Trained got = run_program(perceptron(), kRow, program, plan, group);
    EXPECT_TRUE(got.history.is_stopped);
    EXPECT_EQ(got.losses.size(), 3);
  });
}

}  // namespace
}  // namespace trireme
