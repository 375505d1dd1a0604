// SPDX-License-Identifier: Apache-2.0
// When checkpoints are saved, and which are kept.
#include <trireme/train/checkpoints.h>

#include "tests/ranks/thread_ranks.h"
#include "tests/unit/train/saved_training.h"
#include <trireme/base/error.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/learning_rate.h>
#include <trireme/train/stopping.h>

#include <gmock/gmock.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

class Checkpoints : public testing::SavedTraining {
 protected:
  checkpoint::SaveOptions save_options() const { return {.folder = folder_.path(), .keep = 0}; }

  // A score for every evaluation.
  static std::function<double(const EvaluationEndContext&)> scores(std::vector<double> all) {
    return [all = std::move(all)](const EvaluationEndContext& evaluation) {
      return all.at(static_cast<std::size_t>(evaluation.epoch - 1));
    };
  }
};

TEST_F(Checkpoints, AreSavedWhenATimeHasPassed) {
  Trained run;
  Checkpoint checkpoint({.save = save_options(),
                         .every_steps = 0,
                         .every_epochs = 0,
                         .every = std::chrono::nanoseconds(1)});
  run.model.train(1, batches(), {checkpoint});
  EXPECT_THAT(saved(),
              ElementsAre("checkpoint-1_1", "checkpoint-1_2", "checkpoint-1_3", "checkpoint-1_4"));
  Checkpoint seldom({.save = {.folder = folder_.path(), .prefix = "seldom"},
                     .every_steps = 0,
                     .every_epochs = 0,
                     .every = std::chrono::hours(1)});
  run.model.train(1, batches(), {seldom});
  EXPECT_THAT(saved("seldom"), SizeIs(0));
}

TEST_F(Checkpoints, AreSavedAgainWhereAResumedModelComesToTheSameStep) {
  Trained run;
  Checkpoint checkpoint({.save = save_options()});
  Checkpoint middle({.save = {.folder = folder_.path(), .prefix = "middle"},
                     .every_steps = 2,
                     .every_epochs = 0});
  run.model.train(1, batches(), {checkpoint, middle});
  EXPECT_THAT(saved(), ElementsAre("checkpoint-1_4"));
  checkpoint::remove_checkpoint(folder_ / "checkpoint-1_4");
  run.model.resume(folder_ / "middle-1_2");
  run.model.train(1, batches(), {checkpoint});
  EXPECT_THAT(saved(), ElementsAre("checkpoint-1_4", "checkpoint-2_4"));
}

TEST_F(Checkpoints, AreSavedOnRequestOfAnyRankByAllThatTakePart) {
  for (int zero_level = 0; zero_level <= 2; ++zero_level) {
    std::array<torch::nn::Sequential, 2> networks{testing::small_network(),
                                                  testing::small_network()};
    testing::run_ranks(2, [&](const comm::Group& group) {
      auto& network = networks.at(static_cast<std::size_t>(group.rank()));
      auto optimizer = testing::momentum(*network);
      Model model(network, CrossEntropy(), optimizer,
                  {.group = group, .plan = {.zero_level = zero_level}});
      Checkpoint checkpoint({.save = {.folder = folder_ / std::to_string(zero_level)},
                             .every_steps = 0,
                             .every_epochs = 100});
      LambdaCallback ask({.step_begin = [&](const StepContext& step) {
        if (group.rank() == 1 && step.global_step == 3) model.request_save();
      }});
      model.train(2, batches(group), {ask, checkpoint});
    });
    EXPECT_THAT(checkpoint::list_checkpoints(folder_ / std::to_string(zero_level), "checkpoint"),
                ElementsAre(folder_.path() / std::to_string(zero_level) / "checkpoint-2_1"));
  }
}

TEST_F(Checkpoints, AFolderThatCannotBeWrittenToIsFoundBeforeTraining) {
  Trained run;
  Checkpoint checkpoint({.save = {.folder = "/dev/null/x"}});
  BestCheckpoint best({.save = {.folder = "/dev/null/x", .prefix = "best"}});
  int steps = 0;
  LambdaCallback count({.step_end = [&](const StepEndContext&) { ++steps; }});
  for (Callback* callback : {static_cast<Callback*>(&checkpoint), static_cast<Callback*>(&best)}) {
    EXPECT_THAT([&] { run.model.train(1, batches(), {*callback, count}); },
                ThrowsMessage<CheckpointError>(HasSubstr("/dev/null/x")));
  }
  EXPECT_EQ(steps, 0);
}

TEST_F(Checkpoints, TheBestOnesAreKept) {
  Trained run;
  BestCheckpoint best({.save = {.folder = folder_.path(), .prefix = "best"},
                       .keep = 2,
                       .score = scores({5, 4, 6, std::nan(""), 3, 4, 3})});
  const data::DataLoader data = batches();
  std::vector<std::vector<std::string>> after;
  LambdaCallback look(
      {.epoch_end = [&](const EpochEndContext&) { after.push_back(saved("best")); }});
  run.model.fit(data, data, {.epochs = 7, .callbacks = {best, look}});
  EXPECT_THAT(after[0], ElementsAre("best-1_4"));
  EXPECT_THAT(after[1], ElementsAre("best-1_4", "best-2_4"));
  EXPECT_THAT(after[3], ElementsAre("best-1_4", "best-2_4"));
  EXPECT_THAT(after[4], UnorderedElementsAre("best-2_4", "best-5_4"));
  EXPECT_THAT(after[5], UnorderedElementsAre("best-2_4", "best-5_4"));  // as good is not better
  EXPECT_THAT(after[6], UnorderedElementsAre("best-5_4", "best-7_4"));
  ASSERT_THAT(best.best(), SizeIs(2));
  EXPECT_EQ(best.best()[0].epoch, 5);
  EXPECT_EQ(best.best()[0].path, folder_.path() / "best-5_4");
  EXPECT_EQ(best.best()[1].score, 3);
}

// A disk on which one checkpoint cannot be removed.
class FilesThatKeep final : public checkpoint::FileLayer {
 public:
  explicit FilesThatKeep(std::string name) : name_(std::move(name)) {}
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    if (from.filename() != name_) return FileLayer::rename(from, to);
    errno = EACCES;
    return -1;
  }

 private:
  std::string name_;
};

// It used to end training.
TEST_F(Checkpoints, AnOldOneThatCannotBeRemovedIsAWarning) {
  Trained run;
  FilesThatKeep files("best-1_4");
  BestCheckpoint best({.save = {.folder = folder_.path(), .prefix = "best", .files = &files},
                       .keep = 1,
                       .score = scores({5, 4, 3})});
  const data::DataLoader data = batches();
  ::testing::internal::CaptureStderr();
  const History history = run.model.fit(data, data, {.epochs = 3, .callbacks = {best}});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("no longer among the best stays"), HasSubstr("best-1_4")));
  EXPECT_THAT(history.epochs, SizeIs(3));
  EXPECT_THAT(saved("best"), UnorderedElementsAre("best-1_4", "best-3_4"));
}

TEST_F(Checkpoints, TheBestIsJudgedByTheLossAndGoesOnInAResumedRun) {
  const data::DataLoader data = batches();
  const auto make = [&] {
    return BestCheckpoint({.save = {.folder = folder_.path(), .prefix = "best"}});
  };
  Trained first;
  BestCheckpoint best = make();
  first.model.fit(data, data, {.epochs = 2, .callbacks = {best}});
  ASSERT_THAT(best.best(), SizeIs(1));
  EXPECT_EQ(best.best()[0].score, first.model.evaluate(data).loss);

  Trained second;
  second.model.resume(best.best()[0].path);
  BestCheckpoint resumed = make();
  std::vector<double> least;
  LambdaCallback look(
      {.epoch_begin = [&](const EpochContext&) { least.push_back(resumed.best().at(0).score); }});
  second.model.fit(data, data, {.epochs = 3, .callbacks = {resumed, look}});
  EXPECT_EQ(least.at(0), best.best()[0].score);
}

// It could be written, and not read back: no later checkpoint could be resumed.
TEST_F(Checkpoints, TheBestMayHaveAnInfiniteScore) {
  const double infinite = std::numeric_limits<double>::infinity();
  BestCheckpoint best({.save = {.folder = folder_.path(), .prefix = "best"},
                       .keep = 2,
                       .score = scores({infinite, -infinite, 3})});
  const data::DataLoader data = batches();
  Trained run;
  run.model.fit(data, data, {.epochs = 2, .callbacks = {best}});
  ASSERT_THAT(best.best(), SizeIs(2));
  EXPECT_EQ(best.best()[1].score, infinite);

  BestCheckpoint resumed({.save = {.folder = folder_.path(), .prefix = "best"}, .keep = 2});
  resumed.restore(best.state());
  ASSERT_THAT(resumed.best(), SizeIs(2));
  EXPECT_EQ(resumed.best()[0].score, -infinite);
  EXPECT_EQ(resumed.best()[1].score, infinite);
  EXPECT_EQ(resumed.best()[1].path, best.best()[1].path);
  EXPECT_THROW(resumed.restore("one 1 4 \"best-1_4\"\n"), CheckpointError);

  Trained other;
  other.model.resume(folder_ / "best-2_4");
  other.model.fit(data, data, {.epochs = 3, .callbacks = {resumed}});
}

TEST_F(Checkpoints, TheBestNeedSomethingToBeJudgedBy) {
  Trained run;
  BestCheckpoint best({.save = {.folder = folder_.path(), .prefix = "best"}});
  EXPECT_THAT([&] { run.model.train(1, batches(), {best}); },
              ThrowsMessage<UsageError>(HasSubstr("nothing was evaluated")));
  EXPECT_THROW(BestCheckpoint({.keep = 0}), UsageError);
}

TEST_F(Checkpoints, CallbacksGoOnFromTheStateTheyWereSavedWith) {
  const data::DataLoader data = batches();
  const auto train = [&](Trained& run, std::int64_t epochs, std::int64_t last_step) {
    PlateauLearningRate plateau(
        run.optimizer, {{.factor = 0.5, .patience = 1},
                        [](const EpochEndContext& epoch) { return epoch.epoch == 2 ? 0.5 : 1.0; }});
    EarlyStopping stopping({.patience = 5, .score = [](const EpochEndContext&) { return 1; }});
    TrainingLimit limit({.steps = last_step});
    Checkpoint checkpoint({.save = save_options()});
    run.model.train(epochs, data, {plateau, stopping, limit, checkpoint});
    return std::pair(run.optimizer.param_groups()[0].options().get_lr(),
                     run.model.progress().epoch);
  };
  Trained straight;
  const auto expected = train(straight, 10, 0);
  EXPECT_EQ(expected.second, 6);  // stopped: the first epoch was the best
  EXPECT_EQ(expected.first, 0.025);

  Trained first;
  train(first, 3, 12);
  Trained second;
  second.model.resume(folder_ / "checkpoint-3_4");
  EXPECT_EQ(train(second, 10, 0), expected);
  EXPECT_TRUE(testing::same_parameters(*second.network, *straight.network));

  EarlyStopping stopping;
  EXPECT_THAT([&] { stopping.restore("nonsense"); },
              ThrowsMessage<CheckpointError>(HasSubstr("'nonsense'")));
  PlateauLearningRate plateau(second.optimizer);
  EXPECT_THROW(plateau.restore("nonsense"), CheckpointError);
  BestCheckpoint best({.save = save_options()});
  EXPECT_THROW(best.restore("nonsense"), CheckpointError);
}

TEST_F(Checkpoints, RefusesIntervalsThatCannotBe) {
  EXPECT_THAT([&] { Checkpoint({.save = save_options(), .every = std::chrono::seconds(-1)}); },
              ThrowsMessage<UsageError>(HasSubstr("every is -1 s")));
}

}  // namespace
}  // namespace trireme
