// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/report/recorded_output.h"
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/monitors.h>
#include <trireme/train/progress_bar_callback.h>

#include <gmock/gmock.h>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Contexts as the model makes them, without training.
class CallbacksTest : public ::testing::Test {
 protected:
  StepEndContext step(std::int64_t epoch, std::int64_t number, float loss) const {
    StepEndContext context{StepContext{.run = run_,
                                       .epoch = epoch,
                                       .step = number,
                                       .global_step = (epoch - 1) * run_.steps_in_epoch + number}};
    context.loss = loss;
    context.samples = 10;
    context.all_samples = 20;
    return context;
  }

  EpochEndContext epoch_end(double seconds) const {
    EpochEndContext context{EpochContext{.run = run_, .epoch = 1}};
    context.mean_loss = 0.5;
    context.seconds = seconds;
    return context;
  }

  torch::nn::Sequential network_ = testing::small_network();
  torch::optim::SGD optimizer_ = testing::momentum(*network_);
  Model model_{network_, CrossEntropy(), optimizer_};
  RunContext run_{.model = model_, .world_size = 2, .last_epoch = 2, .steps_in_epoch = 4};
};

TEST_F(CallbacksTest, LossMonitorPrintsEveryNthStepWithTheShortestDigits) {
  report::RecordedOutput output(0);
  report::Console console(output);
  LossMonitor monitor(1, console);
  monitor.on_step_end(step(1, 1, 1.4686084F));
  EXPECT_EQ(output.written(), "epoch: 1 step: 1, loss is 1.4686084\n");

  report::RecordedOutput thinned(0);
  report::Console thinned_console(thinned);
  LossMonitor every_third(3, thinned_console);
  for (int epoch = 1; epoch <= 2; ++epoch) {
    for (int number = 1; number <= 4; ++number) every_third.on_step_end(step(epoch, number, 0.25F));
  }
  EXPECT_EQ(thinned.written(), "epoch: 1 step: 3, loss is 0.25\nepoch: 2 step: 2, loss is 0.25\n");
}

TEST_F(CallbacksTest, LossMonitorRefusesAnIntervalBelowOne) {
  EXPECT_THAT([] { const LossMonitor monitor(0); }, ThrowsMessage<UsageError>(HasSubstr("n = 0")));
}

TEST_F(CallbacksTest, TimeMonitorPrintsEpochAndStepTime) {
  report::RecordedOutput output(0);
  report::Console console(output);
  TimeMonitor monitor(console);
  monitor.on_epoch_end(epoch_end(1.2345));
  EXPECT_EQ(output.written(), "epoch time: 1234.5 ms, per step time: 308.625 ms\n");
}

TEST_F(CallbacksTest, ProgressBarShowsAllRanksSamplesAndEndsWithTheEvaluation) {
  report::RecordedOutput output(100);
  report::Console console(output);
  double now = 0;
  ProgressBar bar("images", console, [&] { return now; });
  bar.on_epoch_begin({.run = run_, .epoch = 1});
  now = 1;
  bar.on_step_end(step(1, 1, 0.75F));
  EXPECT_THAT(output.screen(), ElementsAre(AllOf(HasSubstr("epoch 1/2"),
                                                 HasSubstr("1/4  loss 0.7500  20.0 images/s"))));
  auto end = epoch_end(1);
  end.evaluation = Evaluation{.loss = 0.25, .accuracy = 0.8812, .samples = 100};
  bar.on_epoch_end(end);
  EXPECT_THAT(output.screen(), ElementsAre("epoch 1/2  mean loss 0.5000  test loss 0.2500  test "
                                           "accuracy 88.12 %  20.0 images/s  1.0 s",
                                           ""));
}

TEST_F(CallbacksTest, ProgressBarIsSilentOnOtherRanksAndCleansUpAfterAFailure) {
  report::RecordedOutput output(80);
  report::Console console(output);
  ProgressBar bar("images", console);
  run_.rank = 1;
  bar.on_epoch_begin({.run = run_, .epoch = 1});
  bar.on_step_end(step(1, 1, 0.75F));
  bar.on_epoch_end(epoch_end(1));
  EXPECT_EQ(output.written(), "");
  run_.rank = 0;
  bar.on_epoch_begin({.run = run_, .epoch = 1});
  bar.on_step_end(step(1, 1, 0.75F));
  bar.on_failure({.run = run_, .message = "no"});
  EXPECT_THAT(output.screen(), ElementsAre(""));
}

// The bar of an epoch that was broken off used to stay, drawn again below every later line.
TEST_F(CallbacksTest, ProgressBarIsGoneAfterARunThatWasStoppedWithinAnEpoch) {
  report::RecordedOutput output(80);
  report::Console console(output);
  ProgressBar bar("images", console);
  bar.on_epoch_begin({.run = run_, .epoch = 1});
  bar.on_step_end(step(1, 1, 0.75F));
  bar.on_run_end(run_);
  console.line("later");
  EXPECT_THAT(output.screen(), ElementsAre("later", ""));
}

TEST_F(CallbacksTest, CheckpointRefusesToHaveNoInterval) {
  EXPECT_THAT([] { const Checkpoint callback({.save = {}, .every_steps = 0, .every_epochs = 0}); },
              ThrowsMessage<UsageError>(HasSubstr("every_steps is 0, every_epochs is 0")));
  EXPECT_THAT([] { const Checkpoint callback({.save = {}, .every_steps = -1, .every_epochs = 2}); },
              ThrowsMessage<UsageError>(HasSubstr("every_steps is -1")));
}

}  // namespace
}  // namespace trireme
