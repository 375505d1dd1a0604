// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/stopping.h>

#include "tests/ranks/thread_ranks.h"
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>
#include <trireme/train/lambda_callback.h>

#include <gmock/gmock.h>
#include <tests/other_locale.h>

#include <cmath>
#include <limits>
#include <vector>

namespace trireme {
namespace {

using testing::momentum;
using testing::same_parameters;
using testing::small_network;

data::DataLoader part(const comm::Group& group = {}) {
  data::DataLoader data = testing::points(40);
  data.shuffle(5).shard({.index = group.rank(), .count = group.size()}).batch(4);
  return data;
}

struct Trained {
  torch::nn::Sequential network = small_network();
  torch::optim::SGD optimizer = momentum(*network);
  Model model;
  std::int64_t last_step = 0;
  LambdaCallback record{
      {.step_end = [this](const StepEndContext& step) { last_step = step.global_step; }}};

  explicit Trained(const comm::Group& group = {})
      : model(network, CrossEntropy(), optimizer, {.group = group}) {}
};

TEST(RequestStop, EndsAllRanksAtTheStepThatOneAsksIn) {
  testing::run_ranks(3, [](const comm::Group& group) {
    Trained run(group);
    LambdaCallback ask({.step_begin = [&](const StepContext& step) {
      if (group.rank() == 1 && step.global_step == 6) run.model.request_stop();
    }});
    run.model.train(5, part(group), {ask, run.record});
    EXPECT_EQ(run.last_step, 6);
    EXPECT_TRUE(run.model.is_stopped());
  });
}

TEST(RequestStop, AtAnEpochsEndTakesNoFurtherStep) {
  testing::run_ranks(2, [](const comm::Group& group) {
    Trained run(group);
    LambdaCallback ask({.epoch_end = [&](const EpochEndContext& epoch) {
      if (group.rank() == 1 && epoch.epoch == 2) run.model.request_stop();
    }});
    run.model.train(5, part(group), {run.record, ask});
    EXPECT_EQ(run.last_step, 10);
  });
}

TEST(RequestStop, OfALastStepIsSeenAtTheEpochsEnd) {
  Trained run;
  LambdaCallback ask({.step_end = [&](const StepEndContext& step) {
    if (step.global_step == 10) run.model.request_stop();
  }});
  run.model.train(5, part(), {run.record, ask});
  EXPECT_EQ(run.last_step, 10);
}

TEST(RequestStop, LeavesATrainingThatGoesOnToTheSameBits) {
  for (const std::int64_t last : {3, 10, 17}) {
    Trained straight;
    straight.model.train(2, part());

    Trained broken;
    TrainingLimit limit({.steps = last});
    broken.model.train(2, part(), {limit, broken.record});
    EXPECT_EQ(broken.last_step, last);
    EXPECT_TRUE(broken.model.is_stopped());
    broken.model.train(last == 17 ? 1 : 2 - last / 10, part(), {broken.record});
    EXPECT_FALSE(broken.model.is_stopped());
    EXPECT_EQ(broken.last_step, 20);
    EXPECT_TRUE(same_parameters(*straight.network, *broken.network)) << last;
  }
}

TEST(TrainingLimit, TakesNoStepBehindTheLastOne) {
  Trained run;
  TrainingLimit limit({.steps = 20});
  run.model.train(2, part(), {limit, run.record});
  EXPECT_EQ(run.last_step, 20);
  const History history = run.model.train(1, part(), {limit, run.record});
  EXPECT_EQ(run.last_step, 20);
  EXPECT_TRUE(history.is_stopped);
  EXPECT_TRUE(history.epochs.empty());
  run.model.train(1, part(), {run.record});
  EXPECT_EQ(run.last_step, 30);
}

TEST(TrainingLimit, EndsAfterATime) {
  Trained run;
  TrainingLimit limit({.time = std::chrono::nanoseconds(1)});
  run.model.train(5, part(), {limit, run.record});
  EXPECT_EQ(run.last_step, 1);
}

// What EarlyStopping makes of scores; the epoch after which training ended.
std::int64_t last_epoch(EarlyStopping& stopping, std::int64_t epochs) {
  Trained run;
  run.model.train(epochs, part(), {stopping, run.record});
  return run.last_step / 10;
}

TEST(EarlyStopping, WaitsForAnImprovement) {
  const std::vector<double> scores = {5, 4, 4.5, 3.95, 3.93, std::nan(""), 3.5, 3.4, 9, 9, 9};
  const auto score = [&](const EpochEndContext& epoch) {
    return scores[static_cast<std::size_t>(epoch.epoch - 1)];
  };
  EarlyStopping two({.patience = 2, .score = score});
  EXPECT_EQ(last_epoch(two, 11), 10);
  EXPECT_EQ(two.best_epoch(), 8);
  EXPECT_EQ(two.best_score(), 3.4);
  EarlyStopping more({.patience = 3, .min_delta = 0.1, .score = score});
  EXPECT_EQ(last_epoch(more, 11), 5);  // 3.95 and 3.93 are no improvements of 4
  EXPECT_EQ(more.best_epoch(), 2);
  EXPECT_EQ(last_epoch(more, 4), 4);  // anew
}

TEST(EarlyStopping, LooksAtTheLossByItself) {
  EarlyStopping stopping({.patience = 1});
  Trained run;
  const data::DataLoader data = part();
  double evaluated = 0;
  LambdaCallback record({.epoch_end = [&](const EpochEndContext& epoch) {
    evaluated = epoch.evaluation.value().loss;
  }});
  run.model.train(1, data, {stopping, record}, &data);
  EXPECT_EQ(stopping.best_score(), evaluated);
}

TEST(EarlyStopping, HasTheSameStateInEveryLocaleAlsoWhereAScoreIsInfinite) {
  const test::CommaLocale locale;
  for (const char* state : {"0.5 1500 2", "-inf 1 0"}) {
    EarlyStopping stopping;
    stopping.restore(state);
    EXPECT_EQ(stopping.state(), state);
  }
  EarlyStopping stopping;
  for (const char* state : {"", "0.5", "0.5 1", "0.5 1 x", "x 1 1", "0.5 0 1", "0.5 1 1 1"}) {
    EXPECT_THROW(stopping.restore(state), CheckpointError) << state;
  }
}

TEST(Stopping, RefusesWhatCannotBe) {
  EXPECT_THROW(EarlyStopping({.patience = 0}), UsageError);
  EXPECT_THROW(EarlyStopping({.min_delta = std::nan("")}), UsageError);
  EXPECT_THROW(TrainingLimit({.steps = -1}), UsageError);
  EXPECT_THROW(TrainingLimit({.time = std::chrono::seconds(-1)}), UsageError);
}

}  // namespace
}  // namespace trireme
