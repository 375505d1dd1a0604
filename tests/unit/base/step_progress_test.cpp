// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/step_progress.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

namespace trireme {
namespace {

TEST(StepProgress, CountsWhatIsReported) {
  report_step({.step = 11, .of_steps = 20, .epoch = 2, .samples = 8, .own_seconds = 0.5});
  report_step(
      {.step = 12, .of_steps = 20, .epoch = 2, .samples = 6, .tokens = 100, .own_seconds = 0.25});
  report_step({.step = 13, .of_steps = 20, .epoch = 2, .own_seconds = -1});
  const auto progress = own_progress();
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->process, ::getpid());
  EXPECT_EQ(progress->step, 13);
  EXPECT_EQ(progress->of_steps, 20);
  EXPECT_EQ(progress->epoch, 2);
  EXPECT_EQ(progress->reports, 3);
  EXPECT_EQ(progress->samples, 14);
  EXPECT_EQ(progress->tokens, 100);
  EXPECT_EQ(progress->own_nanoseconds, 750'000'000);
  EXPECT_GT(progress->reported_at, 0);
}

TEST(StepProgress, KeepsTheReportOfAFailureOverFurtherSteps) {
  const auto reported = [] { return reported_failure(own_progress().value_or(StepProgress())); };
  const FailureReport faulty{.faulty_rank = 4711};
  report_failure(faulty);
  report_step({.step = 14});
  EXPECT_EQ(reported(), faulty);
  const FailureReport others{.is_of_unknown_rank = true, .is_final = true};
  report_failure(others);
  EXPECT_EQ(reported(), others);
  report_failure({.faulty_rank = 0});
  EXPECT_EQ(reported().faulty_rank, 0);
  report_failure({});
  EXPECT_EQ(reported(), FailureReport());
  // Another process may write anything there.
  EXPECT_EQ(reported_failure({.failure = -7}), FailureReport());
  EXPECT_EQ(reported_failure({.failure = std::int64_t{1} << 60}), FailureReport());
}

TEST(ProgressPlace, GivesNothingBeforeTheFirstWrite) {
  const ProgressPlace place;
  EXPECT_FALSE(place.read());
}

TEST(ProgressPlace, IsNeverReadTorn) {
  ProgressPlace place;
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    for (std::int64_t i = 1; !is_over; ++i)
      place.write({.process = i, .step = i, .epoch = i, .samples = i, .reported_at = i});
  });
  for (int i = 0; i < 100'000; ++i) {
    const auto read = place.read();
    if (!read) continue;
    ASSERT_EQ(read->step, read->process);
    ASSERT_EQ(read->samples, read->process);
    ASSERT_EQ(read->reported_at, read->process);
  }
  is_over = true;
  writer.join();
}

}  // namespace
}  // namespace trireme
