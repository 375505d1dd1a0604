// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are written beside the training.
#include "tests/ranks/thread_ranks.h"
#include "tests/unit/checkpoint/gated_files.h"
#include "tests/unit/train/saved_training.h"
#include <trireme/base/error.h>
#include <trireme/checkpoint/inspect.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/stopping.h>

#include <gmock/gmock.h>

#include <array>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace trireme {
namespace {

using test::GatedFiles;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

struct Interruption : std::exception {};

class CheckpointsBesideTraining : public testing::SavedTraining {
 protected:
  CheckpointOptions options(std::int64_t every_steps, std::int64_t keep = 0) {
    return {.save = {.folder = folder_.path(), .prefix = "test", .keep = keep, .files = &files_},
            .every_steps = every_steps,
            .every_epochs = 0,
            .asynchronous = true};
  }

  std::vector<std::string> saved() const { return testing::SavedTraining::saved("test"); }

  // Holds training before that step until a failure is known.
  static LambdaCallback wait_for_failure(std::int64_t global_step) {
    return LambdaCallback({.step_begin = [global_step](const StepContext& step) {
      for (bool is_known = step.global_step != global_step; !is_known;) {
        try {
          step.run.model.check_save();
          std::this_thread::yield();
        } catch (const CheckpointError&) {
          is_known = true;
        }
      }
    }});
  }

  GatedFiles files_;
};

TEST_F(CheckpointsBesideTraining, HaveTheBitsOfTheirStepWhateverHappensNext) {
  Trained first;
  Checkpoint before({.save = {.folder = folder_.path(), .prefix = "before"}, .every_steps = 2});
  torch::manual_seed(5);
  first.model.train(1, batches(), {before});

  Trained second;
  Checkpoint beside(options(2));
  LambdaCallback look({.step_end = [&](const StepEndContext& step) {
    if (step.global_step != 3) return;
    files_.wait_until_it_waits();
    EXPECT_THAT(saved(), IsEmpty()) << "what is not whole was published";
    files_.open();
  }});
  torch::manual_seed(5);
  second.model.train(1, batches(), {beside, look});
  EXPECT_THAT(saved(), ElementsAre("test-1_2", "test-1_4"));
  for (const std::string step : {"-1_2", "-1_4"}) {
    EXPECT_THAT(checkpoint::differences(folder_ / ("before" + step), folder_ / ("test" + step)),
                IsEmpty());
  }
}

TEST_F(CheckpointsBesideTraining, AnInterruptedRunGoesOnFromThemWithTheSameBits) {
  Trained straight;
  straight.model.train(3, batches());
  files_.open();
  for (const std::int64_t last : {1, 4, 7}) {
    std::filesystem::remove_all(folder_.path());
    Trained first;
    Checkpoint checkpoint(options(1, 2));
    LambdaCallback interrupt({.step_end = [&](const StepEndContext& step) {
      if (step.global_step == last) throw Interruption();
    }});
    EXPECT_THROW(first.model.train(3, batches(), {checkpoint, interrupt}), Interruption);

    Trained second;
    second.model.resume(checkpoint::latest(folder_.path(), "test").value());
    EXPECT_EQ(second.model.progress().global_step, last) << "what was under way is finished";
    second.model.train(3, batches());
    EXPECT_TRUE(testing::same_parameters(*second.network, *straight.network)) << last;
  }
}

TEST_F(CheckpointsBesideTraining, OfRanksThatCutEverythingGoOnWithTheSameBits) {
  files_.open();
  std::array<torch::nn::Sequential, 4> networks{testing::small_network(), testing::small_network(),
                                                testing::small_network(), testing::small_network()};
  testing::run_ranks(2, [&](const comm::Group& group) {
    const auto train = [&](torch::nn::Sequential& network, const Callbacks& callbacks,
                           bool is_resumed) {
      auto optimizer = testing::momentum(*network);
      Model model(network, CrossEntropy(), optimizer, {.group = group, .plan = {.zero_level = 3}});
      if (is_resumed) model.resume(folder_ / "test-2_1");
      model.train(2, batches(group), callbacks);
    };
    auto& straight = networks.at(static_cast<std::size_t>(group.rank()));
    auto& stopped = networks.at(2 + static_cast<std::size_t>(group.rank()));
    train(straight, {}, false);
    Checkpoint checkpoint(options(1));
    TrainingLimit limit({.steps = 3});
    train(stopped, {limit, checkpoint}, false);
    stopped = testing::small_network();
    train(stopped, {}, true);
  });
  EXPECT_TRUE(testing::same_parameters(*networks[2], *networks[0]));
  EXPECT_TRUE(testing::same_parameters(*networks[3], *networks[1]));
}

TEST_F(CheckpointsBesideTraining, OfTensorParallelRanksGoOnWithTheSameBits) {
  files_.open();
  std::vector<torch::nn::Sequential> networks;
  for (int i = 0; i < 6; ++i) networks.push_back(testing::small_network());
  testing::run_ranks(2, [&](const comm::Group& group) {
    Plan plan;
    plan.mesh = {{"tensor", 2}};
    plan.layouts = {{"0.*", {{"tensor", Shard{0}}}}, {"3.weight", {{"tensor", Shard{1}}}}};
    const auto train = [&](std::size_t which, const Callbacks& callbacks,
                           const std::string& resumed, const std::string& saved_as) {
      auto& network = networks.at(2 * which + static_cast<std::size_t>(group.rank()));
      auto optimizer = testing::momentum(*network);
      Model model(network, CrossEntropy(), optimizer, {.group = group, .plan = plan});
      if (!resumed.empty()) model.resume(folder_ / resumed);
      model.train(2, batches(), callbacks);
      if (!saved_as.empty()) model.save({.folder = folder_.path(), .prefix = saved_as});
    };
    train(0, {}, "", "straight");
    Checkpoint checkpoint(options(1));
    TrainingLimit limit({.steps = 3});
    train(1, {limit, checkpoint}, "", "");
    train(2, {}, "test-1_3", "resumed");
  });
  EXPECT_THAT(checkpoint::differences(folder_ / "straight-2_4", folder_ / "resumed-2_4"),
              IsEmpty());
}

// Nothing is written between a save and the end of the next step.
TEST_F(CheckpointsBesideTraining, HaveTheBitsOfTheirStepWithAnyPlan) {
  std::vector<Plan> plans;
  for (const int level : {0, 1, 2, 3}) plans.push_back({.zero_level = level});
  plans.push_back({.mesh = {{"pipe", 2}}, .micro_batches = 2});
  for (std::size_t number = 0; number < plans.size(); ++number) {
    const Plan& plan = plans[number];
    std::vector<torch::nn::Sequential> networks;
    for (int i = 0; i < 4; ++i) networks.push_back(testing::small_network());
    testing::run_ranks(2, [&](const comm::Group& group) {
      test::GatedWrites gate(1);
      LambdaCallback swing({.step_end =
                                [&](const StepEndContext& step) {
                                  if (step.global_step % 2 != 0) return gate.open();
                                  step.run.model.wait_for_save();
                                  gate.close();
                                },
                            .epoch_end = [&](const EpochEndContext&) { gate.open(); }});
      const auto train = [&](const std::string& prefix, bool is_asynchronous) {
        auto& network = networks.at(static_cast<std::size_t>(2 * group.rank() + is_asynchronous));
        torch::optim::Adam optimizer(network->parameters(), 0.01);
        Model model(network, CrossEntropy(), optimizer, {.group = group, .plan = plan});
        Checkpoint checkpoint({.save = {.folder = folder_.path(),
                                        .prefix = join_message(prefix, number),
                                        .keep = 0,
                                        .files = is_asynchronous ? &gate : nullptr},
                               .every_steps = 2,
                               .every_epochs = 0,
                               .asynchronous = is_asynchronous,
                               .copying = checkpoint::Copying::kBeforeChange});
        model.train(2, plan.mesh.empty() ? batches(group) : batches(), {swing, checkpoint});
      };
      train("before", false);
      train("beside", true);
    });
    const auto before = SavedTraining::saved(join_message("before", number));
    const auto beside = SavedTraining::saved(join_message("beside", number));
    ASSERT_EQ(before.size(), 2U);
    ASSERT_EQ(beside.size(), 2U);
    for (std::size_t i = 0; i < before.size(); ++i) {
      // The ranks are threads, and have one generator.
      EXPECT_THAT(checkpoint::differences(folder_ / before[i], folder_ / beside[i]),
                  Each(HasSubstr("random.cpu differs")))
          << "plan " << number;
    }
  }
}

// A callback changes a parameter after the one that saves.
TEST_F(CheckpointsBesideTraining, HoldNoLaterChangesOfCallbacks) {
  at::Tensor weight;  // before the change
  test::GatedWrites gate(1);
  LambdaCallback note({.step_end = [&](const StepEndContext& step) {
    if (step.global_step == 1) weight = step.run.model.module().parameters()[0].detach().clone();
  }});
  LambdaCallback change({.step_end = [&](const StepEndContext& step) {
    const torch::NoGradGuard no_grad;
    step.run.model.module().parameters()[0].mul_(0.5);
    gate.open();
  }});
  CheckpointOptions own = options(1);
  own.save.files = &gate;
  Trained run;
  Checkpoint at_once(own);
  run.model.train(1, batches(), {note, at_once, change});
  checkpoint::Reader reader(folder_ / "test-1_1");
  EXPECT_TRUE(reader.read("model", "0.weight").equal(weight));

  gate.close();
  own.copying = checkpoint::Copying::kBeforeChange;
  Trained failing;
  Checkpoint late(own);
  EXPECT_THAT([&] { failing.model.train(1, batches(), {late, change}); },
              ThrowsMessage<UsageError>(
                  HasSubstr("tensor '0.weight' was changed while a checkpoint was being written")));
}

// Others change parameters right after the save: the optimizer, and the program after the training.
TEST_F(CheckpointsBesideTraining, BeginAtAnyCallback) {
  for (const bool at_end : {false, true}) {
    at::Tensor weight;
    test::GatedWrites gate(1);
    checkpoint::SaveOptions save = options(1).save;
    save.prefix = at_end ? "end" : "backward";
    save.files = &gate;
    const auto begin = [&](Model& model) {
      weight = model.module().parameters()[0].detach().clone();
      model.save_async(save, checkpoint::Copying::kBeforeChange);
    };
    LambdaCallback saving({.backward_end =
                               [&](const StepContext& step) {
                                 if (!at_end && step.global_step == 2) begin(step.run.model);
                               },
                           .step_end = [&](const StepEndContext&) { gate.open(); },
                           .run_end =
                               [&](const RunContext& context) {
                                 gate.close();
                                 if (at_end) begin(context.model);
                               }});
    Trained run;
    run.model.train(1, batches(), {saving});
    const torch::NoGradGuard no_grad;
    run.model.module().parameters()[0].zero_();
    gate.open();
    const auto path = run.model.wait_for_save();
    checkpoint::Reader reader(*path);
    EXPECT_TRUE(reader.read("model", "0.weight").equal(weight)) << save.prefix;
  }
}

TEST_F(CheckpointsBesideTraining, TellCallbacksOfTheirEndWhenTheyAreOnTheDisk) {
  files_.open();
  Trained run;
  Checkpoint checkpoint(options(2));
  std::vector<std::string> calls;
  LambdaCallback note({.checkpoint_begin =
                           [&](const CheckpointContext& begin) {
                             EXPECT_TRUE(begin.is_asynchronous);
                             calls.push_back(join_message("begin ", begin.global_step));
                           },
                       .checkpoint_end =
                           [&](const CheckpointEndContext& end) {
                             EXPECT_TRUE(end.is_asynchronous);
                             EXPECT_TRUE(std::filesystem::exists(end.path));
                             EXPECT_GT(end.seconds, 0);
                             calls.push_back(join_message("end ", end.global_step, " ",
                                                          end.path.filename().string()));
                           },
                       .run_end = [&](const RunContext&) { calls.emplace_back("run end"); }});
  run.model.train(1, batches(), {checkpoint, note});
  EXPECT_THAT(calls,
              ElementsAre("begin 2", "end 2 test-1_2", "begin 4", "end 4 test-1_4", "run end"));
}

TEST_F(CheckpointsBesideTraining, AFailureEndsTrainingAtTheFirstStepThatKnows) {
  Trained run;
  Checkpoint checkpoint(options(1));
  LambdaCallback wait = wait_for_failure(2);
  files_.open(ENOSPC);
  EXPECT_THAT([&] { run.model.train(1, batches(), {wait, checkpoint}); },
              ThrowsMessage<CheckpointError>(HasSubstr("No space left on device")));
  EXPECT_EQ(run.model.progress().global_step, 1);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_EQ(run.model.wait_for_save(), std::nullopt) << "a failure is thrown once";
  files_.open();
  run.model.train(1, batches(), {checkpoint});
  EXPECT_THAT(saved(), ElementsAre("test-1_2", "test-1_3", "test-1_4"));
}

TEST_F(CheckpointsBesideTraining, AFailureOfTheLastOneIsThrownByTrain) {
  Trained run;
  files_.open(EIO);
  Checkpoint checkpoint(options(4));
  EXPECT_THAT([&] { run.model.train(1, batches(), {checkpoint}); },
              ThrowsMessage<CheckpointError>(HasSubstr("Input/output error")));
  EXPECT_EQ(run.model.progress().global_step, 4);
}

TEST_F(CheckpointsBesideTraining, AFailureOfOneRankEndsTrainingOnAll) {
  for (const std::int64_t every : {1, 2}) {  // known before the last step, and after it
    std::array<torch::nn::Sequential, 2> networks{testing::small_network(),
                                                  testing::small_network()};
    files_.open(ENOSPC);
    const auto thrown = testing::run_ranks_catching(2, [&](const comm::Group& group) {
      auto& network = networks.at(static_cast<std::size_t>(group.rank()));
      auto optimizer = testing::momentum(*network);
      Model model(network, CrossEntropy(), optimizer, {.group = group, .plan = {.zero_level = 1}});
      CheckpointOptions own = options(every);
      if (group.rank() == 0) own.save.files = nullptr;
      Checkpoint checkpoint(own);
      LambdaCallback wait = wait_for_failure(group.rank() == 0 && every == 1 ? 2 : 0);
      model.train(1, batches(group), {wait, checkpoint});
    });
    for (const auto& exception : thrown) {
      EXPECT_THAT(testing::message_of<Error>(exception),
                  HasSubstr("rank 1 cannot save: cannot flush"));
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
}

TEST_F(CheckpointsBesideTraining, AnotherExceptionDoesNotHideAFailure) {
  Trained run;
  Checkpoint checkpoint(options(1));
  LambdaCallback interrupt({.step_end = [&](const StepEndContext&) {
    files_.open(EIO);
    throw Interruption();
  }});
  ::testing::internal::CaptureStderr();
  EXPECT_THROW(run.model.train(1, batches(), {checkpoint, interrupt}), Interruption);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("warning: saving a checkpoint failed: cannot flush"));
  EXPECT_EQ(run.model.wait_for_save(), std::nullopt);
}

TEST_F(CheckpointsBesideTraining, OlderOnesGoWhenANewOneIsThere) {
  files_.open();
  Trained run;
  Checkpoint checkpoint(options(1, 1));
  run.model.train(1, batches(), {checkpoint});
  EXPECT_THAT(saved(), ElementsAre("test-1_4"));
  files_.open(ENOSPC);
  EXPECT_THROW(run.model.train(1, batches(), {checkpoint}), CheckpointError);
  EXPECT_THAT(saved(), ElementsAre("test-1_4"));
}

TEST_F(CheckpointsBesideTraining, OtherSavesWaitForTheOneUnderWay) {
  Trained run;
  const checkpoint::SaveOptions save = options(1).save;
  EXPECT_EQ(run.model.wait_for_save(), std::nullopt);
  EXPECT_NO_THROW(run.model.check_save());
  run.model.save_async(save);
  files_.wait_until_it_waits();
  EXPECT_THAT(saved(), IsEmpty());
  files_.open();
  EXPECT_EQ(run.model.save({.folder = folder_.path(), .prefix = "other"}), folder_ / "other-0_0");
  EXPECT_THAT(saved(), ElementsAre("test-0_0"));
  EXPECT_EQ(run.model.wait_for_save(), folder_ / "test-0_0");
  run.model.train(1, batches());
  run.model.save_async(save);
  run.model.resume(folder_ / "test-0_0");
  EXPECT_THAT(saved(), ElementsAre("test-0_0", "test-1_4"));
  EXPECT_EQ(run.model.progress().global_step, 0);
  files_.open(EIO);
  run.model.save_async(save);
  EXPECT_THROW(run.model.wait_for_save(), CheckpointError);
  EXPECT_THAT(saved(), ElementsAre("test-0_0", "test-1_4"));
}

TEST_F(CheckpointsBesideTraining, ADryRunTriesThemAndLeavesNone) {
  files_.open();
  Trained run;
  Checkpoint checkpoint(options(1));
  run.model.dry_run(batches(), nullptr, {checkpoint});
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  files_.open(EIO);
  EXPECT_THROW(run.model.dry_run(batches(), nullptr, {checkpoint}), CheckpointError);
}

}  // namespace
}  // namespace trireme
