// SPDX-License-Identifier: Apache-2.0
// Those that Python torch has are compared with it in tests/parity/optim.
#include <trireme/optim/learning_rate_schedule.h>

#include <trireme/base/error.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme {
namespace {

TEST(LearningRateSchedule, WarmsUpWithoutAStepAtNothing) {
  const LearningRateSchedule schedule = LearningRateSchedule::steps(0.8, 2, 0.5).after_warm_up(4);
  EXPECT_DOUBLE_EQ(schedule(1), 0.2);
  EXPECT_DOUBLE_EQ(schedule(3), 0.6);
  EXPECT_DOUBLE_EQ(schedule(4), 0.8);
  EXPECT_DOUBLE_EQ(schedule(5), 0.8);  // its own first step
  EXPECT_DOUBLE_EQ(schedule(6), 0.8);
  EXPECT_DOUBLE_EQ(schedule(7), 0.4);
}

// Goyal et al.: eight ranks, from the rate of one to eight times that.
TEST(LearningRateSchedule, WarmsUpFromTheRateOfOneRank) {
  const LearningRateSchedule schedule =
      LearningRateSchedule::constant(8 * 0.1).after_warm_up(7, 1.0 / 8);
  for (std::int64_t step = 1; step <= 7; ++step) {
    EXPECT_DOUBLE_EQ(schedule(step), 0.1 + 0.1 * static_cast<double>(step));
  }
  EXPECT_DOUBLE_EQ(schedule(100), 0.8);
}

TEST(LearningRateSchedule, FallsWithTheInverseSquareRoot) {
  const LearningRateSchedule schedule = LearningRateSchedule::inverse_square_root(0.6, 100);
  EXPECT_DOUBLE_EQ(schedule(50), 0.3);
  EXPECT_DOUBLE_EQ(schedule(100), 0.6);
  EXPECT_DOUBLE_EQ(schedule(400), 0.3);
}

TEST(LearningRateSchedule, StaysAtItsEnd) {
  EXPECT_DOUBLE_EQ(LearningRateSchedule::cosine(0.5, 10, 0.1)(11), 0.1);
  EXPECT_DOUBLE_EQ(LearningRateSchedule::cosine(0.5, 10, 0.1)(15), 0.1);
  EXPECT_DOUBLE_EQ(LearningRateSchedule::linear(0.5, 0.2, 10)(99), 0.2);
  EXPECT_DOUBLE_EQ(LearningRateSchedule::polynomial(0.5, 10, 3, 0.2)(99), 0.2);
  EXPECT_DOUBLE_EQ(LearningRateSchedule::one_cycle(0.5, 10)(10),
                   LearningRateSchedule::one_cycle(0.5, 10)(99));
}

TEST(LearningRateSchedule, IsMultiplied) {
  EXPECT_DOUBLE_EQ(LearningRateSchedule::constant(0.5).times(0.1)(3), 0.05);
}

// The rule of Goyal et al.: 4 times the rate, from the plain one on, and no milestone moves.
TEST(LearningRateSchedule, IsScaledForALargerBatchWithAWarmUp) {
  const LearningRateSchedule plain = LearningRateSchedule::milestones(0.1, {6, 12});
  const LearningRateSchedule scaled = plain.scaled(4, 8);
  EXPECT_DOUBLE_EQ(scaled(1), 0.1 * (1 + 3.0 / 8));
  EXPECT_DOUBLE_EQ(scaled(4), 0.1 * 2.5);
  EXPECT_DOUBLE_EQ(scaled(7), 0.01 * (1 + 3 * 7.0 / 8));  // after the first milestone
  EXPECT_DOUBLE_EQ(scaled(8), 0.04);
  EXPECT_DOUBLE_EQ(scaled(13), 0.004);
  EXPECT_DOUBLE_EQ(plain.scaled(4, 0)(1), 0.4);
  EXPECT_DOUBLE_EQ(plain.scaled(1, 8)(3), 0.1);
}

TEST(LearningRateSchedule, RefusesWhatCannotBe) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THROW(LearningRateSchedule::constant(-1), UsageError);
  EXPECT_THROW(LearningRateSchedule::constant(infinity), UsageError);
  EXPECT_THROW(LearningRateSchedule::constant(std::nan("")), UsageError);
  EXPECT_THROW(LearningRateSchedule::constant(1)(0), UsageError);
  EXPECT_THROW(LearningRateSchedule::constant(1).after_warm_up(0), UsageError);
  EXPECT_THROW(LearningRateSchedule::constant(1).after_warm_up(3, 1.5), UsageError);
  EXPECT_THROW(LearningRateSchedule::constant(1).then(0, LearningRateSchedule::constant(1)),
               UsageError);
  EXPECT_THROW(LearningRateSchedule::constant(1).times(-1), UsageError);
  EXPECT_THROW(LearningRateSchedule::constant(1).scaled(0.5, 3), UsageError);
  EXPECT_THROW(LearningRateSchedule::constant(1).scaled(2, -1), UsageError);
  EXPECT_THROW(LearningRateSchedule::linear(1, -1, 3), UsageError);
  EXPECT_THROW(LearningRateSchedule::steps(1, 0), UsageError);
  EXPECT_THROW(LearningRateSchedule::milestones(1, {5, 3}), UsageError);
  EXPECT_THROW(LearningRateSchedule::milestones(1, {0}), UsageError);
  EXPECT_THROW(LearningRateSchedule::exponential(1, -2), UsageError);
  EXPECT_THROW(LearningRateSchedule::polynomial(1, 0), UsageError);
  EXPECT_THROW(LearningRateSchedule::cosine(1, 0), UsageError);
  EXPECT_THROW(LearningRateSchedule::one_cycle(1, 1), UsageError);
  EXPECT_THROW(LearningRateSchedule::one_cycle(1, 10, {.up = 2}), UsageError);
  EXPECT_THROW(LearningRateSchedule::inverse_square_root(1, 0), UsageError);
}

}  // namespace
}  // namespace trireme
