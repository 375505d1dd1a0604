// SPDX-License-Identifier: Apache-2.0
// Deadlocks found by the walk, against an executor that goes on in any order.
#include <trireme/schedule/walk.h>

#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/verifier/verify.h>

#include <gtest/gtest.h>
#include <tests/unit/schedule/executor.h>
#include <tests/unit/schedule/parts.h>

#include <algorithm>
#include <array>
#include <random>

namespace trireme::schedule {
namespace {

std::size_t drawn(std::mt19937_64& random, std::size_t count) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
}

// Moves sends later and receives earlier, within what their rank's order allows: complete and in
// order, but deadlocks are likely.
Schedule with_messages_anywhere(const Schedule& schedule, std::mt19937_64& random) {
  Schedule result = with_messages(schedule);
  for (int change = 0; change < 6; ++change) {
    auto& actions = result.ranks[drawn(random, result.ranks.size())];
    const std::size_t from = drawn(random, actions.size());
    const Action moved = actions[from];
    if (!is_message(moved.kind)) continue;
    const bool is_send = moved.kind == ActionKind::kSend;
    const std::size_t reach = is_send ? actions.size() - from : from + 1;
    const std::size_t by = drawn(random, std::min<std::size_t>(reach, 12));
    actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(from));
    const std::size_t to = is_send ? from + by : from - by;
    actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(to), moved);
  }
  return result;
}

TEST(Walk, FindsTheDeadlocksThatHappen) {
  const std::array<Messages, 5> engines = {
      Messages{}, Messages{.matching = Messages::Matching::kByTag}, Messages{.outstanding = 0},
      Messages{.outstanding = 1},
      Messages{.outstanding = 2, .matching = Messages::Matching::kByTag}};
  int num_deadlocks = 0;
  int num_completed = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    std::mt19937_64 random(seed);
    const int ranks = 2 + static_cast<int>(drawn(random, 3));
    const int micro_batches = 1 + static_cast<int>(drawn(random, 5));
    const Schedule schedule = with_messages_anywhere(
        generate(kKinds.at(drawn(random, kKinds.size())), ranks, micro_batches), random);
    for (const Messages& messages : engines) {
      const auto findings = find_errors(schedule, {.messages = messages});
      const Outcome outcome = Executor(schedule, messages, true, random()).run();
      ASSERT_NE(outcome, Outcome::kWrong) << to_text(schedule);
      ASSERT_EQ(findings.empty(), outcome == Outcome::kCompleted)
          << to_text(schedule) << (findings.empty() ? "" : findings.front().sentence);
      (findings.empty() ? num_completed : num_deadlocks) += 1;
    }
  }
  EXPECT_GT(num_deadlocks, 1000);
  EXPECT_GT(num_completed, 1000);
}

TEST(Walk, FindsDeadlocksOfOrdersWithoutMessages) {
  int num_deadlocks = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    std::mt19937_64 random(seed);
    const int ranks = 1 + static_cast<int>(drawn(random, 4));
    Schedule schedule = generate(kKinds.at(drawn(random, kKinds.size())), ranks,
                                 1 + static_cast<int>(drawn(random, 4)));
    for (int change = 0; change < 3; ++change) {
      auto& actions = schedule.ranks[drawn(random, schedule.ranks.size())];
      std::swap(actions[drawn(random, actions.size())], actions[drawn(random, actions.size())]);
    }
    const auto findings = find_errors(schedule, {.transfers = VerifyOptions::Transfers::kImplicit});
    const Outcome outcome = Executor(schedule, {}, false, random()).run();
    ASSERT_EQ(findings.empty(), outcome == Outcome::kCompleted) << to_text(schedule);
    const bool is_deadlock =
        !findings.empty() && findings.front().sentence.starts_with("deadlock: ");
    if (is_deadlock) {
      ASSERT_EQ(outcome, Outcome::kDeadlock) << to_text(schedule);
      ++num_deadlocks;
    }
  }
  EXPECT_GT(num_deadlocks, 20);
}

TEST(Walk, StopsWhereRanksWait) {
  const Schedule schedule = schedule_of({"F0.0 R0.0<1 S0.0>1 B0.0", "R1.0<0 F1.0 B1.0 S1.0>0"});
  const Walk walked = walk(schedule, {}, Times{});
  ASSERT_EQ(walked.blocked.size(), 2U);
  EXPECT_EQ(walked.ranks[0].size(), 1U);
  EXPECT_EQ(walked.ranks[1].size(), 0U);
  EXPECT_EQ(walked.blocked[0].position, 1U);
  EXPECT_EQ(walked.blocked[0].waits_for, 1);
  EXPECT_EQ(walked.blocked[0].reason, Blocked::Reason::kNotSent);
}

}  // namespace
}  // namespace trireme::schedule
