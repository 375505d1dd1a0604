// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/run_tracker.h>

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace trireme::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::DoubleNear;
using testing::HasSubstr;
using testing::Optional;

// Four ranks on two hosts, whose steps a test tells.
class Tracker : public testing::Test {
 public:
  Tracker() {
    tracker.begin({{.host = "b", .process = 20, .first_rank = 2, .ranks = 2},
                   {.host = "a", .process = 10, .first_rank = 0, .ranks = 2}});
  }

  // Each rank makes `steps` steps in the next second, of 8 samples each; `own` is the time of one.
  void next_second(std::int64_t steps, const std::vector<double>& own) {
    now += seconds(1);
    done += steps;
    for (int rank = 0; rank < 4; ++rank) {
      worked.at(static_cast<std::size_t>(rank)) +=
          static_cast<std::int64_t>(1e6 * own.at(static_cast<std::size_t>(rank))) * steps;
      tracker.take({.rank = rank,
                    .process = 100 + rank,
                    .step = 50 + done,
                    .of_steps = 250,
                    .epoch = 2,
                    .reports = done,
                    .samples = 8 * done,
                    .own_microseconds = worked.at(static_cast<std::size_t>(rank)),
                    .age_ms = 0,
                    .memory_bytes = 1000},
                   now);
    }
  }

  RunStatus status() const { return tracker.status(now, 5000); }

  RunTracker tracker;
  RunTracker::Clock::time_point now{};
  std::int64_t done = 0;
  std::vector<std::int64_t> worked = std::vector<std::int64_t>(4);
  const std::vector<double> even = std::vector<double>(4, 0.01);
};

TEST_F(Tracker, KnowsTheHostsOfRanks) {
  const RunStatus begun = status();
  ASSERT_EQ(begun.ranks.size(), 4);
  EXPECT_EQ(begun.world_size, 4);
  EXPECT_EQ(begun.ranks[1].host, "a");
  EXPECT_EQ(begun.ranks[2].host, "b");
  EXPECT_EQ(begun.ranks[0].process, 0);
  EXPECT_EQ(begun.step, 0);
  EXPECT_FALSE(begun.steps_per_second);
  EXPECT_FALSE(begun.expected_end);
}

TEST_F(Tracker, ComputesRatesAndTheEnd) {
  for (int i = 0; i < 5; ++i) next_second(10, even);
  const RunStatus running = status();
  EXPECT_EQ(running.step, 100);
  EXPECT_EQ(running.of_steps, 250);
  EXPECT_EQ(running.epoch, 2);
  EXPECT_EQ(running.memory_bytes, 4000);
  EXPECT_THAT(running.steps_per_second, Optional(DoubleNear(10, 1e-6)));
  EXPECT_THAT(running.samples_per_second, Optional(DoubleNear(80, 1e-6)));
  EXPECT_FALSE(running.tokens_per_second);
  EXPECT_THAT(running.expected_end, Optional(DoubleNear(5015, 1e-6)));
  EXPECT_THAT(running.ranks[3].own_seconds_per_step, Optional(DoubleNear(0.01, 1e-6)));
  EXPECT_EQ(running.ranks[3].process, 103);
}

TEST_F(Tracker, NamesARankThatIsSlowInLongSteps) {
  constexpr int kSecondsOfAStep = 20;
  std::vector<SlowRank> found;
  for (int second = 0; second < 10 * kSecondsOfAStep; ++second) {
    next_second(second % kSecondsOfAStep == 0 ? 1 : 0, {9, 9, 9, 19});
    for (const SlowRank& one : tracker.find_slow(2)) found.push_back(one);
  }
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].rank, 3);
}

TEST_F(Tracker, ForgetsWhatIsLongAgo) {
  for (int i = 0; i < 40; ++i) next_second(100, even);
  for (int i = 0; i < 20; ++i) next_second(1, even);
  EXPECT_THAT(status().steps_per_second, Optional(DoubleNear(1, 0.01)));
}

TEST_F(Tracker, SeesThatStepsStop) {
  for (int i = 0; i < 5; ++i) next_second(10, even);
  now += seconds(36);
  EXPECT_THAT(status().steps_per_second, Optional(DoubleNear(1, 1e-6)));
  EXPECT_THAT(status().ranks[0].seconds_since_step, Optional(DoubleNear(36, 1e-6)));
}

TEST_F(Tracker, CountsTheStepsOfAnotherProcessAnew) {
  for (int i = 0; i < 5; ++i) next_second(10, even);
  done = 0;
  next_second(3, even);
  EXPECT_FALSE(status().steps_per_second);
  next_second(3, even);
  EXPECT_THAT(status().steps_per_second, Optional(DoubleNear(3, 1e-6)));
}

TEST_F(Tracker, NamesASlowRankOnceUntilItIsSlowNoMore) {
  const std::vector<double> uneven{0.01, 0.01, 0.01, 0.021};
  std::vector<SlowRank> found;
  for (int i = 0; i < 20; ++i) {
    next_second(10, uneven);
    for (const SlowRank& one : tracker.find_slow(2)) found.push_back(one);
  }
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].rank, 3);
  EXPECT_TRUE(found[0].is_slow);
  EXPECT_EQ(describe(found[0]),
            "rank 3 (process 103 on b) is slow: 0.021 s of its own in a step, the median of the "
            "others is 0.01 s");
  EXPECT_TRUE(status().ranks[3].is_slow);
  found.clear();
  for (int i = 0; i < 40; ++i) {
    next_second(10, even);
    for (const SlowRank& one : tracker.find_slow(2)) found.push_back(one);
  }
  ASSERT_EQ(found.size(), 1);
  EXPECT_FALSE(found[0].is_slow);
  EXPECT_THAT(describe(found[0]), HasSubstr("is slow no more"));
}

TEST_F(Tracker, CallsNobodySlowWithoutSteps) {
  const std::vector<double> uneven{0.01, 0.01, 0.01, 1};
  next_second(1, uneven);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(tracker.find_slow(2).empty());
  next_second(1, uneven);
  // The same steps are not looked at twice.
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(tracker.find_slow(2).empty());
}

TEST_F(Tracker, KeepsTheLastFailuresAndCountsAll) {
  for (int i = 0; i < 30; ++i)
    tracker.add_failure({.rank = i, .host = i % 3 == 0 ? "a" : "b", .cause = "x"});
  const RunStatus failed = status();
  EXPECT_EQ(failed.failure_count, 30);
  ASSERT_EQ(failed.failures.size(), RunTracker::kMostFailures);
  EXPECT_EQ(failed.failures.back().rank, 29);
  EXPECT_EQ(failed.host_failures.at("a"), 10);
  EXPECT_EQ(failed.host_failures.at("b"), 20);
}

TEST_F(Tracker, BearsAnyNumbers) {
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  for (std::int64_t i = 1; i < 1000; ++i) {
    tracker.take({.rank = 0,
                  .process = kMost,
                  .step = kMost,
                  .of_steps = kMost,
                  .reports = i,
                  .samples = kMost * (i % 2),
                  .own_microseconds = kMost,
                  .age_ms = kMost},
                 now);
    tracker.take({.rank = 1,
                  .process = 1,
                  .step = i,
                  .of_steps = 1,
                  .reports = kMost - i,
                  .own_microseconds = i % 3 * kMost,
                  .age_ms = i % 5 * kMost / 4},
                 now);
    tracker.find_slow(2);
  }
  const RunStatus odd = status();
  EXPECT_NE(status_page(odd) + status_json(odd) + status_metrics(odd) + status_table(odd), "");
}

TEST_F(Tracker, IgnoresRanksThatTheRunDoesNotHave) {
  tracker.take({.rank = 4, .process = 1, .reports = 1}, now);
  tracker.rank_ended(7, "exited");
  tracker.rank_ended(1, "exited with code 0");
  EXPECT_EQ(status().ranks.size(), 4);
  EXPECT_EQ(status().ranks[1].state, "exited with code 0");
}

}  // namespace
}  // namespace trireme::launch
