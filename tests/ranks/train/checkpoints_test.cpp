// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a model in stages go on in any number of stages, and without.
#include <trireme/base/error.h>
#include <trireme/parallel/deferred.h>
#include <trireme/parallel/init/deferred_scope.h>

#include <gmock/gmock.h>
#include <tests/ranks/train/in_stages.h>
#include <tests/temporary_folder.h>

#include <memory>
#include <mutex>
#include <vector>

namespace trireme {
namespace {

using test::expect_same;
using test::in_stages;
using test::kPerceptronStages;
using test::kResidualStages;
using test::perceptron;
using test::Program;
using test::residual;
using test::run_program;
using test::Trained;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;

const std::vector<std::int64_t> kImage = {3, 6, 6};
const std::vector<std::int64_t> kRow = {6};

Plan with(Plan plan, int zero_level) {
  plan.micro_batches = 2;
  plan.zero_level = zero_level;
  return plan;
}

// What a run of two epochs that goes on after `steps` of them gives: the last ones.
Trained last_of(Trained trained, std::size_t steps) {
  const auto cut = [&](auto& all) {
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(steps));
  };
  cut(trained.losses);
  cut(trained.norms);
  cut(trained.skipped);
  trained.history.epochs.erase(trained.history.epochs.begin());
  return trained;
}

// Along data there is one rank: with more, the tree of sums is another.
TEST(CheckpointsInStages, GoOnInAnotherNumberOfStages) {
  const std::vector<Plan> plans = {with({}, 0), with(in_stages(2, 1, kResidualStages), 0),
                                   with(in_stages(4, 1, kResidualStages), 0)};
  for (const Plan& saves : plans) {
    const test::TemporaryFolder folder;
    Program program;
    program.saves = {.save = {.folder = folder.path(), .keep = 0}, .every_epochs = 1};
    Trained expected;
    run_ranks(stage_ranks(saves), [&](const comm::Group& group) {
      const Trained got = run_program(residual(), kImage, program, saves, group);
      if (group.rank() == 0) expected = last_of(got, 3);
    });
    Program rest;
    rest.resume = folder / "checkpoint-1_3";
    for (const Plan& loads : plans) {
      run_ranks(stage_ranks(loads), [&](const comm::Group& group) {
        SCOPED_TRACE(to_string(saves) + "\n" + to_string(loads));
        expect_same(run_program(residual(), kImage, rest, loads, group), expected);
      });
    }
  }
}

TEST(CheckpointsInStages, GoOnWithAnotherZeroStage) {
  const test::TemporaryFolder folder;
  Program program;
  program.saves = {.save = {.folder = folder.path(), .keep = 0},
                   .every_steps = 2,
                   .every_epochs = 0,
                   .asynchronous = true};
  Trained expected;
  run_ranks(4, [&](const comm::Group& group) {
    const Plan plan = with(in_stages(2, 2, kResidualStages), 2);
    const Trained got = run_program(residual(), kImage, program, plan, group);
    if (group.rank() == 0) expected = got;
  });
  Program rest;
  rest.resume = folder / "checkpoint-2_1";  // within the second epoch
  for (const int zero_level : {0, 1, 3}) {
    run_ranks(4, [&](const comm::Group& group) {
      const Plan plan = with(in_stages(2, 2, kResidualStages), zero_level);
      const Trained got = run_program(residual(), kImage, rest, plan, group);
      if (group.rank() != 0) return;
      EXPECT_EQ(got.losses, std::vector<float>(expected.losses.begin() + 4, expected.losses.end()));
      EXPECT_EQ(got.evaluation.loss, expected.evaluation.loss);
      EXPECT_TRUE(torch::equal(got.predicted, expected.predicted));
    });
  }
}

// The seed of dropout's numbers is in the checkpoint, the step of each in its position.
TEST(CheckpointsInStages, GoOnWithTheSameRandomNumbers) {
  const test::TemporaryFolder folder;
  Program program;
  program.saves = {
      .save = {.folder = folder.path(), .keep = 0}, .every_steps = 2, .every_epochs = 0};
  Trained expected;
  torch::manual_seed(1);
  run_ranks(2, [&](const comm::Group& group) {
    const Plan plan = with(in_stages(2, 1, kPerceptronStages), 0);
    const Trained got = run_program(test::dropping(0.3), kRow, program, plan, group);
    if (group.rank() == 0) expected = got;
  });
  torch::manual_seed(2);
  Program rest;
  rest.resume = folder / "checkpoint-1_2";
  run_ranks(4, [&](const comm::Group& group) {
    const Plan plan = with(in_stages(4, 1, kPerceptronStages), 0);
    const Trained got = run_program(test::dropping(0.3), kRow, rest, plan, group);
    EXPECT_EQ(got.losses, std::vector<float>(expected.losses.begin() + 2, expected.losses.end()));
    EXPECT_TRUE(torch::equal(got.predicted, expected.predicted));
  });
}

std::shared_ptr<test::PerceptronImpl> perceptron_without_memory() {
  static std::mutex one_at_a_time;  // LibTorch's random generator is the process's
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(7);
  return deferred([] { return std::make_shared<test::PerceptronImpl>(); });
}

// A rank never has memory for other stages; tensors come with the first batch.
TEST(CheckpointsInStages, GoOnInModulesWithoutMemory) {
  const test::TemporaryFolder folder;
  Program program;
  program.saves = {.save = {.folder = folder.path(), .keep = 0}, .every_epochs = 1};
  Trained expected;
  run_ranks(2, [&](const comm::Group& group) {
    const Plan plan = with(in_stages(2, 1, kPerceptronStages), 0);
    const Trained got = run_program(perceptron(), kRow, program, plan, group);
    if (group.rank() == 0) expected = last_of(got, 3);
  });
  run_ranks(2, [&](const comm::Group& group) {
    const auto network = perceptron_without_memory();
    torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const Plan plan = with(in_stages(2, 1, kPerceptronStages), 0);
    auto data = test::rows_of(24, kRow);
    data.batch(4);
    Model model(network, CrossEntropy(), optimizer,
                {.group = group, .plan = plan, .clip_norm = 0.5});
    model.resume(folder / "checkpoint-1_3");
    EXPECT_EQ(model.progress().global_step, 3);
    std::vector<float> losses;
    LambdaCallback record(
        {.step_end = [&](const StepEndContext& step) { losses.push_back(step.loss); }});
    model.train(2, data, {record});
    EXPECT_EQ(losses, expected.losses);
    const bool is_first = group.rank() == 0;
    EXPECT_EQ(detail::is_deferred(network->first->weight), !is_first);
    EXPECT_EQ(detail::is_deferred(network->last->weight), is_first);
  });
}

// Parts of the data may be shorter than others, or than a round of micro-batches, or empty: which
// rank has what is decided all the same.
TEST(CheckpointsInStages, AreEvaluatedFirstOnUnevenParts) {
  const test::TemporaryFolder folder;
  Plan plan = in_stages(2, 2, kPerceptronStages);
  plan.micro_batches = 4;
  const auto part_of = [&](std::int64_t rows, const comm::Group& group) {
    const DataPart part = data_part(plan, group);
    auto data = test::rows_of(rows, kRow);
    data.shard({.index = part.index, .count = part.count, .remainder = data::Remainder::kUneven});
    data.batch(4);
    return data;
  };
  for (const std::int64_t rows : {17, 3, 1}) {
    Evaluation expected;
    run_ranks(4, [&](const comm::Group& group) {
      const auto network = perceptron();
      torch::optim::SGD optimizer(network->parameters(), 0.1);
      Model model(network, CrossEntropy(), optimizer, {.group = group, .plan = plan});
      model.train(1, part_of(32, group));
      if (rows == 17) model.save({.folder = folder.path()});
      const Evaluation evaluation = model.evaluate(part_of(rows, group));
      if (group.rank() == 0) expected = evaluation;
    });
    run_ranks(4, [&](const comm::Group& group) {
      SCOPED_TRACE(rows);
      const auto network = perceptron();
      torch::optim::SGD optimizer(network->parameters(), 0.1);
      Model model(network, CrossEntropy(), optimizer, {.group = group, .plan = plan});
      model.resume(folder / "checkpoint-1_1");
      const Evaluation evaluation = model.evaluate(part_of(rows, group));
      EXPECT_EQ(evaluation.loss, expected.loss);
      EXPECT_EQ(evaluation.samples, rows);
      EXPECT_EQ(evaluation.accuracy, expected.accuracy);
      model.train(2, part_of(32, group));  // of which one epoch is done
      EXPECT_EQ(model.progress().global_step, 2);
    });
  }
}

TEST(CheckpointsInStages, NeedTheFirstBatchToBeWritten) {
  const test::TemporaryFolder folder;
  const auto thrown = testing::run_ranks_catching(2, [&](const comm::Group& group) {
    const auto network = perceptron();
    torch::optim::SGD optimizer(network->parameters(), 0.1);
    Model model(network, CrossEntropy(), optimizer,
                {.group = group, .plan = in_stages(2, 1, kPerceptronStages)});
    model.save({.folder = folder.path()});
  });
  for (const auto& error : thrown) {
    EXPECT_THAT(testing::message_of<CheckpointError>(error),
                AllOf(HasSubstr("not known before its first batch"), HasSubstr("train, evaluate")));
  }
}

TEST(CheckpointsInStages, AreLookedAtAtOnce) {
  const test::TemporaryFolder folder;
  const auto thrown = testing::run_ranks_catching(2, [&](const comm::Group& group) {
    const auto network = perceptron();
    torch::optim::SGD optimizer(network->parameters(), 0.1);
    Model model(network, CrossEntropy(), optimizer,
                {.group = group, .plan = in_stages(2, 1, kPerceptronStages)});
    model.resume(folder / "checkpoint-1_3");
  });
  for (const auto& error : thrown) {
    EXPECT_THAT(testing::message_of<CheckpointError>(error), HasSubstr("cannot load"));
  }
}

}  // namespace
}  // namespace trireme
