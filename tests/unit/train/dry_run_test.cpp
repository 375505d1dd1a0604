// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/thread_ranks.h"
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/learning_rate.h>
#include <trireme/train/stopping.h>
#include <trireme/train/trace_writer.h>
#include <trireme/train/writers.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <filesystem>

namespace trireme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::same_parameters;
using ::testing::SizeIs;
using testing::small_network;
using ::testing::ThrowsMessage;

data::DataLoader part(const data::DataLoader& points, const comm::Group& group = {}) {
  data::DataLoader data = points;
  data.shuffle(5).shard({.index = group.rank(), .count = group.size()}).batch(4);
  return data;
}

torch::nn::Sequential with_dropout() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8),
                               torch::nn::Dropout(0.5), torch::nn::Linear(8, 3));
}

bool same_buffers(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto left = a.buffers();
  const auto right = b.buffers();
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!left[i].equal(right[i])) return false;
  }
  return left.size() == right.size();
}

TEST(DryRun, DoesOneOfEverything) {
  const data::DataLoader data = part(testing::points(40));
  auto network = small_network();
  auto optimizer = testing::momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  std::vector<std::string> calls;
  LambdaCallback record(
      {.run_begin =
           [&](const RunContext& run) {
             EXPECT_TRUE(run.is_dry_run);
             EXPECT_EQ(run.steps_in_epoch, 1);
             calls.emplace_back("run");
           },
       .step_end =
           [&](const StepEndContext& step) {
             calls.push_back(join_message("step ", step.global_step));
           },
       .evaluation_end =
           [&](const EvaluationEndContext& evaluation) {
             EXPECT_EQ(evaluation.evaluation.samples, 4);
             calls.emplace_back("evaluation");
           },
       .epoch_end = [&](const EpochEndContext&) { calls.emplace_back("epoch"); }});
  const History history = model.dry_run(data, &data, {record});
  EXPECT_THAT(calls, ElementsAre("run", "step 1", "evaluation", "epoch"));
  ASSERT_THAT(history.epochs, SizeIs(1));
  EXPECT_TRUE(history.epochs[0].evaluation.has_value());
  EXPECT_EQ(model.progress().global_step, 0);
}

TEST(DryRun, ChangesNothing) {
  const data::DataLoader points = testing::points(40);
  const auto train = [&](bool tries) {
    auto network = with_dropout();
    auto optimizer = testing::momentum(*network);
    Model model(network, CrossEntropy(), optimizer);
    network[1]->eval();
    PlateauLearningRate plateau(optimizer, {{.factor = 0.5, .patience = 0}});
    EarlyStopping stopping;
    LearningRate rates(optimizer, LearningRateSchedule::linear(0.2, 0.1, 30));
    const Callbacks callbacks{rates, stopping, plateau};
    torch::manual_seed(7);
    if (tries) model.dry_run(part(points), nullptr, callbacks);
    EXPECT_FALSE(network[1]->is_training());
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1);
    model.train(1, part(points), callbacks);
    if (tries) model.dry_run(part(points), nullptr, callbacks);
    EXPECT_EQ(model.progress().epoch, 1);
    model.train(2, part(points), callbacks);
    EXPECT_EQ(model.progress().global_step, 30);
    return network;
  };
  const auto tried = train(true);
  const auto untried = train(false);
  EXPECT_TRUE(same_parameters(*tried, *untried));
  EXPECT_TRUE(same_buffers(*tried, *untried));
}

TEST(DryRun, ChangesNothingInTheMiddleOfAnEpoch) {
  const data::DataLoader points = testing::points(40);
  const auto train = [&](bool tries) {
    auto network = small_network();
    auto optimizer = testing::momentum(*network);
    Model model(network, CrossEntropy(), optimizer);
    TrainingLimit limit({.steps = 13});
    model.train(2, part(points), {limit});
    if (tries) model.dry_run(part(points));
    EXPECT_TRUE(model.is_stopped());
    EXPECT_EQ(model.progress().step, 3);
    model.train(1, part(points));
    return network;
  };
  EXPECT_TRUE(same_parameters(*train(true), *train(false)));
}

TEST(DryRun, ChangesNothingWhateverThePlanCuts) {
  const data::DataLoader points = testing::points(48);
  for (int zero_level = 0; zero_level <= 3; ++zero_level) {
    std::array<torch::nn::Sequential, 4> networks{small_network(), small_network(), small_network(),
                                                  small_network()};
    testing::run_ranks(2, [&](const comm::Group& group) {
      for (std::size_t tries = 0; tries < 2; ++tries) {
        auto& network = networks.at(2 * tries + static_cast<std::size_t>(group.rank()));
        auto optimizer = testing::momentum(*network);
        Model model(network, CrossEntropy(), optimizer,
                    {.group = group, .plan = {.zero_level = zero_level}, .clip_norm = 0.5});
        const data::DataLoader data = part(points, group);
        if (tries == 1) model.dry_run(data, &data);
        model.train(1, data);
        if (tries == 1) model.dry_run(data, &data);
        model.train(1, data);
      }
    });
    EXPECT_TRUE(same_parameters(*networks[0], *networks[2])) << "ZeRO level " << zero_level;
    EXPECT_TRUE(same_parameters(*networks[1], *networks[3])) << "ZeRO level " << zero_level;
  }
}

TEST(DryRun, TriesFilesAndLeavesNone) {
  const test::TemporaryFolder folder;
  const data::DataLoader data = part(testing::points(40));
  auto network = small_network();
  auto optimizer = testing::momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  Checkpoint checkpoint({.save = {.folder = folder / "checkpoints"}, .every_steps = 1});
  BestCheckpoint best({.save = {.folder = folder / "checkpoints", .prefix = "best"}});
  CsvWriter csv({.folder = folder / "run"});
  JsonlWriter jsonl({.folder = folder / "run"});
  TensorBoardWriter tensorboard({.folder = folder / "run"});
  TraceWriter trace({.folder = folder / "run"});
  int saved = 0;
  LambdaCallback count({.checkpoint_end = [&](const CheckpointEndContext& checkpoint_end) {
    saved += std::filesystem::exists(checkpoint_end.path) ? 1 : 0;
  }});
  model.dry_run(data, &data, {checkpoint, best, csv, jsonl, tensorboard, trace, count});
  EXPECT_EQ(saved, 2);
  EXPECT_TRUE(std::filesystem::is_empty(folder / "checkpoints"));
  EXPECT_TRUE(std::filesystem::is_empty(folder / "run"));

  CsvWriter nowhere({.folder = "/dev/null/x"});
  EXPECT_THAT([&] { model.dry_run(data, &data, {nowhere}); },
              ThrowsMessage<ConfigError>(HasSubstr("/dev/null/x")));
}

TEST(DryRun, PutsEverythingBackWhereItFails) {
  const data::DataLoader points = testing::points(40);
  auto network = small_network();
  auto optimizer = testing::momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  LambdaCallback thrower(
      {.epoch_end = [](const EpochEndContext&) { throw std::out_of_range("mine"); }});
  EXPECT_THROW(model.dry_run(part(points), nullptr, {thrower}), std::out_of_range);
  EXPECT_TRUE(same_parameters(*network, *small_network()));
  EXPECT_TRUE(same_buffers(*network, *small_network()));
  EXPECT_TRUE(optimizer.state().empty());
}

}  // namespace
}  // namespace trireme
