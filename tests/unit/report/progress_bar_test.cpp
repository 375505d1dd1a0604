// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/progress_bar.h>

#include "tests/unit/report/recorded_output.h"

#include <gmock/gmock.h>

namespace trireme::report {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::SizeIs;

/// A bar whose clock stands still until the test moves it.
class ProgressBarTest : public testing::Test {
 protected:
  ProgressBar bar(Console& console) {
    return {console, "images", [this] { return now_; }};
  }

  double now_ = 100;
};

TEST_F(ProgressBarTest, DrawsBarStepLossRateAndTimeLeftOnATerminal) {
  RecordedOutput output(100);
  Console console(output);
  auto progress = bar(console);
  progress.begin("epoch 1/2", 4);
  now_ += 2;
  progress.update(1, 0.5F, 64);
  EXPECT_THAT(output.screen(), ElementsAre("epoch 1/2  [=========>                            ]  "
                                           "1/4  loss 0.5000  32.0 images/s  0:06 left"));
  now_ += 2;
  progress.update(2, 0.25F, 64);
  EXPECT_THAT(output.screen(), ElementsAre("epoch 1/2  [===================>                  ]  "
                                           "2/4  loss 0.2500  32.0 images/s  0:04 left"));
}

TEST_F(ProgressBarTest, DrawsAtMostTenTimesASecondAndShowsTheMeanLossSince) {
  RecordedOutput output(60);
  Console console(output);
  auto progress = bar(console);
  progress.begin("epoch 1/1", 1000);
  progress.update(1, 3.0F, 1);
  const std::string first = output.written();
  now_ += 0.05;
  progress.update(2, 2.0F, 1);
  EXPECT_EQ(output.written(), first);
  now_ += 0.10;
  progress.update(3, 1.0F, 1);
  EXPECT_THAT(output.screen(),
              ElementsAre(testing::HasSubstr("3/1000  loss 1.5000  20.0 images/s")));
}

TEST_F(ProgressBarTest, NeverReachesTheLastColumn) {
  for (int columns = 1; columns < 120; ++columns) {
    RecordedOutput output(columns);
    Console console(output);
    auto progress = bar(console);
    progress.begin("epoch 10/20", 937);
    now_ += 1;
    progress.update(412, 0.5123F, 64);
    EXPECT_THAT(output.screen(), Each(SizeIs(testing::Lt(columns)))) << columns << " columns";
  }
}

TEST_F(ProgressBarTest, LeavesOutDetailsFromTheRightWhereTheTerminalIsNarrow) {
  RecordedOutput output(37);
  Console console(output);
  auto progress = bar(console);
  progress.begin("epoch 1/2", 4);
  now_ += 2;
  progress.update(1, 0.5F, 64);
  EXPECT_THAT(output.screen(), ElementsAre("epoch 1/2  1/4  loss 0.5000"));
}

TEST_F(ProgressBarTest, FinishPutsOneLineInThePlaceOfTheBar) {
  RecordedOutput output(80);
  Console console(output);
  auto progress = bar(console);
  progress.begin("epoch 1/1", 1);
  now_ += 2;
  progress.update(1, 0.5F, 4096);
  now_ += 5;  // an evaluation, which does not count
  progress.finish("loss 0.5000  accuracy 81.20 %");
  EXPECT_THAT(output.screen(),
              ElementsAre("epoch 1/1  loss 0.5000  accuracy 81.20 %  2,048 images/s  2.0 s", ""));
}

TEST_F(ProgressBarTest, PrintsTenPlainLinesWhereThereIsNoTerminal) {
  RecordedOutput output(0);
  Console console(output);
  auto progress = bar(console);
  progress.begin("epoch 1/1", 95);
  for (int step = 1; step <= 95; ++step) {
    now_ += 0.5;
    progress.update(step, 1.0F, 10);
  }
  progress.finish("loss 1.0000");
  const auto lines = output.screen();
  ASSERT_THAT(lines, SizeIs(12));  // ten, the end, and the empty line of the cursor
  EXPECT_EQ(lines[0], "epoch 1/1  step 10/95  loss 1.0000  20.0 images/s  0:43 left");
  EXPECT_EQ(lines[9], "epoch 1/1  step 95/95  loss 1.0000  20.0 images/s  0:00 left");
  EXPECT_EQ(lines[10], "epoch 1/1  loss 1.0000  20.0 images/s  47.5 s");
  EXPECT_EQ(output.written().find('\r'), std::string::npos);
}

TEST_F(ProgressBarTest, AResumedEpochCountsItsOwnStepsForTheTimeLeft) {
  RecordedOutput output(0);
  Console console(output);
  auto progress = bar(console);
  progress.begin("epoch 3/4", 100, 90);
  now_ += 1;
  for (int step = 91; step <= 95; ++step) progress.update(step, 1.0F, 2);
  EXPECT_EQ(output.written(), "");
  now_ += 9;
  for (int step = 96; step <= 100; ++step) progress.update(step, 1.0F, 2);
  EXPECT_EQ(output.written(), "epoch 3/4  step 100/100  loss 1.0000  2.0 images/s  0:00 left\n");
}

TEST_F(ProgressBarTest, AbandonLeavesACleanLineForTheError) {
  RecordedOutput output(80);
  Console console(output);
  auto progress = bar(console);
  progress.begin("epoch 1/1", 10);
  progress.update(1, 0.5F, 1);
  progress.abandon();
  EXPECT_THAT(output.screen(), ElementsAre(""));
}

}  // namespace
}  // namespace trireme::report
