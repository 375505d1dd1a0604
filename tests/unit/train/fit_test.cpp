// SPDX-License-Identifier: Apache-2.0
// fit: validation in between, what it returns, and when which hook is called.
#include "tests/ranks/thread_ranks.h"
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/lambda_callback.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

struct Fitted {
  torch::nn::Sequential network = testing::small_network();
  torch::optim::SGD optimizer = testing::momentum(*network);
  Model model;
  data::DataLoader data = testing::points(32);  // 4 steps

  explicit Fitted(ModelOptions options = {})
      : model(network, CrossEntropy(), optimizer, std::move(options)) {
    data.batch(8);
  }
};

TEST(Fit, ReturnsLossesAndValidations) {
  Fitted run;
  std::vector<double> losses;
  LambdaCallback record(
      {.epoch_end = [&](const EpochEndContext& epoch) { losses.push_back(epoch.mean_loss); }});
  const History history = run.model.fit(run.data, run.data, {.epochs = 3, .callbacks = {record}});
  ASSERT_THAT(history.epochs, SizeIs(3));
  EXPECT_FALSE(history.is_stopped);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(history.epochs[i].epoch, static_cast<std::int64_t>(i) + 1);
    EXPECT_EQ(history.epochs[i].loss, losses[i]);
    EXPECT_EQ(history.epochs[i].samples, 32);
    EXPECT_GT(history.epochs[i].seconds, 0);
  }
  ASSERT_THAT(history.validations, SizeIs(3));
  EXPECT_EQ(history.validations[2].global_step, 12);
  EXPECT_EQ(history.validations[2].evaluation.loss, run.model.evaluate(run.data).loss);
  EXPECT_EQ(history.epochs[2].evaluation->loss, history.validations[2].evaluation.loss);
  EXPECT_LT(history.epochs[2].loss, history.epochs[0].loss);
}

TEST(Fit, ValidatesAsOftenAsItIsToldAndOnceAtAnEpochsEnd) {
  const auto validated_at = [](FitOptions options) {
    Fitted run;
    options.epochs = 4;
    std::vector<std::int64_t> steps;
    for (const auto& validation : run.model.fit(run.data, run.data, options).validations) {
      steps.push_back(validation.global_step);
    }
    return steps;
  };
  EXPECT_THAT(validated_at({.validate_every_epochs = 2}), ElementsAre(8, 16));
  EXPECT_THAT(validated_at({.validate_every_epochs = 0, .validate_every_steps = 6}),
              ElementsAre(6, 12));
  EXPECT_THAT(validated_at({.validate_every_epochs = 2, .validate_every_steps = 4}),
              ElementsAre(4, 8, 12, 16));
  EXPECT_THAT(validated_at({.validate_every_epochs = 0}), ElementsAre());
}

TEST(Fit, ValidationLeavesTheTrainingAlone) {
  Fitted with;
  Fitted without;
  with.model.fit(with.data, with.data, {.epochs = 2, .validate_every_steps = 1});
  without.model.train(2, without.data);
  EXPECT_TRUE(testing::same_parameters(*with.network, *without.network));
}

TEST(Fit, CallsEveryHookInOrder) {
  const test::TemporaryFolder folder;
  Fitted run;
  std::vector<std::string> calls;
  const auto note = [&](std::string name) { calls.push_back(std::move(name)); };
  LambdaCallback record(
      {.run_begin = [&](const RunContext&) { note("run begin"); },
       .epoch_begin = [&](const EpochContext&) { note("epoch begin"); },
       .step_begin = [&](const StepContext&) { note("step begin"); },
       .backward_end =
           [&](const StepContext&) {
             note(run.network->parameters()[0].grad().defined() ? "gradients" : "none");
           },
       .step_end = [&](const StepEndContext&) { note("step end"); },
       .evaluation_begin = [&](const EvaluationContext&) { note("evaluation begin"); },
       .evaluation_end = [&](const EvaluationEndContext&) { note("evaluation end"); },
       .epoch_end = [&](const EpochEndContext&) { note("epoch end"); },
       .checkpoint_begin = [&](const CheckpointContext&) { note("checkpoint begin"); },
       .checkpoint_end =
           [&](const CheckpointEndContext& checkpoint) {
             note("checkpoint " + checkpoint.path.filename().string());
           },
       .run_end = [&](const RunContext&) { note("run end"); }});
  Checkpoint checkpoint({.save = {.folder = folder.path(), .prefix = "x"}});
  run.data.batch(32);
  run.model.fit(run.data, run.data, {.callbacks = {checkpoint, record}});
  EXPECT_THAT(calls, ElementsAre("run begin", "epoch begin", "step begin", "gradients", "step end",
                                 "evaluation begin", "evaluation end", "checkpoint begin",
                                 "checkpoint x-1_1", "epoch end", "run end"));
}

TEST(Fit, CallbacksGiveEachOtherNumbersUntilTheNextStep) {
  Fitted run;
  LambdaCallback logs({.step_end = [](const StepEndContext& step) {
    if (step.global_step == 1) step.run.log("first", 1);
    step.run.log("loss", static_cast<double>(step.loss));
  }});
  std::vector<std::size_t> counts;
  LambdaCallback reads(
      {.step_end =
           [&](const StepEndContext& step) {
             counts.push_back(step.run.scalars->size());
             EXPECT_EQ(step.run.scalars->at("loss"), static_cast<double>(step.loss));
           },
       .epoch_end =
           [&](const EpochEndContext& epoch) { counts.push_back(epoch.run.scalars->size()); }});
  run.model.train(1, run.data, {logs, reads});
  EXPECT_THAT(counts, ElementsAre(2, 1, 1, 1, 0));
}

TEST(Fit, StepsTellWhereTheirTimeWent) {
  Fitted run({.clip_norm = 1});
  LambdaCallback check({.step_end = [&](const StepEndContext& step) {
    for (const double seconds :
         {step.seconds.data, step.seconds.forward, step.seconds.backward, step.seconds.optimizer}) {
      EXPECT_GT(seconds, 0);
    }
    EXPECT_EQ(step.seconds.communication, 0);
    ASSERT_FALSE(step.spans.empty());
    EXPECT_EQ(step.spans.front().phase, Phase::kCallbacks);
    EXPECT_EQ(step.spans.back().phase, Phase::kOptimizer);
    for (std::size_t i = 1; i < step.spans.size(); ++i) {
      EXPECT_GE(step.spans[i].begin, step.spans[i - 1].end);
    }
  }});
  run.model.train(1, run.data, {check});
}

TEST(Fit, SeveralRanksKnowHowLongTheyExchanged) {
  std::array<torch::nn::Sequential, 2> networks{testing::small_network(), testing::small_network()};
  const data::DataLoader points = testing::points(32);
  testing::run_ranks(2, [&](const comm::Group& group) {
    const auto& network = networks.at(static_cast<std::size_t>(group.rank()));
    auto optimizer = testing::momentum(*network);
    Model model(network, CrossEntropy(), optimizer, {.group = group});
    LambdaCallback check({.step_end = [&](const StepEndContext& step) {
      EXPECT_GT(step.seconds.communication, 0);
      EXPECT_GE(step.seconds.backward, 0);
    }});
    data::DataLoader data = points;
    data.shard({.index = group.rank(), .count = 2}).batch(4);
    model.train(1, data, {check});
  });
}

TEST(Fit, RefusesWhatCannotBe) {
  Fitted run;
  EXPECT_THAT([&] { run.model.fit(run.data, run.data, {.epochs = -1}); },
              ThrowsMessage<UsageError>(HasSubstr("-1 epochs")));
  EXPECT_THAT([&] { run.model.fit(run.data, run.data, {.validate_every_steps = -2}); },
              ThrowsMessage<UsageError>(HasSubstr("every -2 steps")));
}

TEST(StepTimer, SplitsWhatWasMeasuredLast) {
  detail::StepTimer timer;
  timer.split_last(Phase::kCommunication, 1);  // nothing to split
  timer.measure(Phase::kBackward, [] {});
  timer.split_last(Phase::kCommunication, 100);  // at most all of it
  const auto spans = timer.end_step();
  ASSERT_THAT(spans, SizeIs(2));
  EXPECT_EQ(spans[0].seconds(), 0);
  EXPECT_EQ(spans[0].end, spans[1].begin);
  EXPECT_EQ(spans[1].phase, Phase::kCommunication);
  EXPECT_EQ(sum_of(spans).communication, spans[1].seconds());
  EXPECT_TRUE(timer.end_step().empty());
}

}  // namespace
}  // namespace trireme
