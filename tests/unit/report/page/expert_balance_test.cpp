// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/expert_balance.h>

#include <gmock/gmock.h>
#include <tests/unit/report/page/run_files.h>

namespace trireme::report {
namespace {

using test::step_record;
using testing::IsEmpty;
using testing::SizeIs;

// Two mixtures of three experts on two ranks, whose counts are the same. Steps 1 to 50 are the
// first epoch.
RunLog run_with_counts(std::int64_t steps) {
  RunLog run;
  for (int rank = 0; rank < 2; ++rank) {
    RankLog log{.rank = rank};
    for (std::int64_t step = 1; step <= steps; ++step) {
      StepRecord record = step_record(rank, step);
      const double most = step > 50 ? 20 : 40;
      record.scalars = {{"blocks.1.mixture.tokens_taken/0", most},
                        {"blocks.1.mixture.tokens_taken/1", 10},
                        {"blocks.1.mixture.tokens_taken/2", 0},
                        {"blocks.1.mixture.tokens_dropped/0", 10},
                        {"blocks.1.mixture.tokens_dropped/1", 0},
                        {"blocks.1.mixture.tokens_dropped/2", 0},
                        {"tokens_taken/0", 5},
                        {"tokens_taken/1", 5},
                        {"tokens_taken/2", 5},
                        {"entropy", 0.5},
                        {"other_tokens_taken/0", 1}};
      log.steps.push_back(record);
    }
    run.ranks.push_back(log);
  }
  return run;
}

TEST(ExpertBalance, IsTheShareOfTheBusiestExpertAndOfDroppedChoices) {
  const auto mixtures = expert_balance_of(run_with_counts(51));
  ASSERT_THAT(mixtures, SizeIs(2));
  EXPECT_EQ(mixtures[0].mixture, "blocks.1.mixture");
  ASSERT_THAT(mixtures[0].busiest, SizeIs(51));
  EXPECT_DOUBLE_EQ(mixtures[0].busiest[0].value, 40.0 / (50.0 / 3));
  EXPECT_DOUBLE_EQ(mixtures[0].busiest[50].value, 20.0 / (30.0 / 3));
  EXPECT_EQ(mixtures[0].busiest[50].x, 51);
  EXPECT_DOUBLE_EQ(mixtures[0].dropped[0].value, 10.0 / 60);
  // One that is the whole model, and counts nothing that was dropped.
  EXPECT_EQ(mixtures[1].mixture, "mixture");
  EXPECT_EQ(mixtures[1].busiest[0].value, 1);
  EXPECT_THAT(mixtures[1].dropped, IsEmpty());
}

TEST(ExpertBalance, HasAMeanOfTheLastEpoch) {
  const auto balance = last_balance_of(run_with_counts(60));
  ASSERT_TRUE(balance);
  EXPECT_DOUBLE_EQ(balance->busiest, (2.0 + 1.0) / 2);
  EXPECT_DOUBLE_EQ(balance->dropped.value(), 10.0 / 40);
}

TEST(ExpertBalance, IsAbsentWithoutCounts) {
  EXPECT_THAT(expert_balance_of(RunLog{}), IsEmpty());
  EXPECT_FALSE(last_balance_of(RunLog{}));
  RunLog run = run_with_counts(2);
  for (RankLog& rank : run.ranks) {
    for (StepRecord& step : rank.steps) {
      for (auto& [name, value] : step.scalars) value = 0;  // no token in these steps
    }
  }
  EXPECT_FALSE(last_balance_of(run));
  for (RankLog& rank : run.ranks) {
    for (StepRecord& step : rank.steps) step.scalars = {{"tokens_taken/x", 1}, {"entropy", 2}};
  }
  EXPECT_THAT(expert_balance_of(run), IsEmpty());
}

}  // namespace
}  // namespace trireme::report
