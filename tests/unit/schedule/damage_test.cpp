// SPDX-License-Identifier: Apache-2.0
// Schedules damaged on purpose: the verifier refuses exactly those that cannot be executed.
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

class Damage {
 public:
  explicit Damage(std::uint64_t seed) : random_(seed) {}

  std::size_t draw(std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_);
  }

  Schedule make() {
    const int ranks = 1 + static_cast<int>(draw(4));
    const int micro_batches = 1 + static_cast<int>(draw(5));
    Schedule schedule = generate(kKinds.at(draw(kKinds.size())), ranks, micro_batches);
    if (draw(4) == 0 && schedule.num_stages() > 2) {
      schedule.edges.push_back({0, schedule.num_stages() - 1});
    }
    if (draw(3) == 0) schedule = with_recomputation(schedule, std::vector{0});
    if (draw(3) == 0) schedule = with_offloading(schedule);
    if (draw(3) == 0) {
      schedule = with_gathering(schedule, draw(2) == 0 ? GatherFor::kStep : GatherFor::kMicroBatch);
    }
    if (draw(3) == 0) {
      schedule =
          with_reduction(schedule, draw(2) == 0 ? ReduceAfter::kStage : ReduceAfter::kMicroBatch);
    }
    if (draw(3) == 0) schedule = with_steps(schedule);
    return with_messages(schedule);
  }

  void drop(Schedule& schedule) {
    auto& actions = some_rank(schedule);
    actions.erase(some_place(actions));
  }

  void repeat(Schedule& schedule) {
    auto& actions = some_rank(schedule);
    const Action again = *some_place(actions);
    actions.insert(some_place(actions), again);
  }

  void swap(Schedule& schedule) {
    auto& actions = some_rank(schedule);
    std::iter_swap(some_place(actions), some_place(actions));
  }

  void swap_neighbours(Schedule& schedule) {
    auto& actions = some_rank(schedule);
    if (actions.size() < 2) return;
    const auto place = actions.begin() + static_cast<std::ptrdiff_t>(draw(actions.size() - 1));
    std::iter_swap(place, place + 1);
  }

  void move(Schedule& schedule) {
    auto& actions = some_rank(schedule);
    const auto from = some_place(actions);
    const Action moved = *from;
    actions.erase(from);
    if (actions.empty()) {
      actions.push_back(moved);
    } else {
      actions.insert(some_place(actions), moved);
    }
  }

  void move_to_another_rank(Schedule& schedule) {
    auto& actions = some_rank(schedule);
    const auto from = some_place(actions);
    const Action moved = *from;
    actions.erase(from);
    auto& others = schedule.ranks[draw(schedule.ranks.size())];
    others.insert(others.begin(), moved);
  }

  void redirect(Schedule& schedule) {
    Action& changed = *some_place(some_rank(schedule));
    const std::size_t what = draw(4);
    if (what == 0) changed.stage += draw(2) == 0 ? 1 : -1;
    if (what == 1) changed.micro_batch += draw(2) == 0 ? 1 : -1;
    if (what == 2 && is_message(changed.kind)) changed.peer += draw(2) == 0 ? 1 : -1;
    if (what == 3) changed.kind = static_cast<ActionKind>(draw(kNumActionKinds));
    if (!is_message(changed.kind)) changed.peer = Action::kNone;
  }

  void damage(Schedule& schedule) {
    using Change = void (Damage::*)(Schedule&);
    constexpr std::array<Change, 7> kChanges = {&Damage::drop,
                                                &Damage::repeat,
                                                &Damage::swap,
                                                &Damage::move,
                                                &Damage::redirect,
                                                &Damage::swap_neighbours,
                                                &Damage::move_to_another_rank};
    if (some_rank(schedule).empty()) return;
    (this->*kChanges.at(draw(kChanges.size())))(schedule);
  }

 private:
  // Offloads everything in the first stage right after forward, and loads it right before backward.
  static Schedule with_offloading(Schedule schedule) {
    for (auto& actions : schedule.ranks) {
      std::vector<Action> written;
      for (const Action& listed : actions) {
        const bool is_first = listed.stage == 0;
        const bool uses = listed.kind == ActionKind::kRecompute ||
                          (gives_input_gradient(listed.kind) &&
                           (written.empty() || written.back().kind != ActionKind::kRecompute));
        if (is_first && uses) {
          written.push_back({ActionKind::kLoad, listed.stage, listed.micro_batch});
        }
        written.push_back(listed);
        if (is_first && listed.kind == ActionKind::kForward) {
          written.push_back({ActionKind::kOffload, listed.stage, listed.micro_batch});
        }
      }
      actions = written;
    }
    return schedule;
  }

  std::vector<Action>& some_rank(Schedule& schedule) {
    for (int attempt = 0; attempt < 20; ++attempt) {
      auto& actions = schedule.ranks[draw(schedule.ranks.size())];
      if (!actions.empty()) return actions;
    }
    return schedule.ranks.front();
  }

  std::vector<Action>::iterator some_place(std::vector<Action>& actions) {
    return actions.begin() + static_cast<std::ptrdiff_t>(draw(actions.size()));
  }

  std::mt19937_64 random_;
};

constexpr std::array<Messages, 4> kEngines = {
    Messages{}, Messages{.matching = Messages::Matching::kByTag}, Messages{.outstanding = 0},
    Messages{.outstanding = 2}};

TEST(Damage, IsFoundExactlyWhereItMatters) {
  int num_refused = 0;
  int num_harmless = 0;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    Damage damage(seed);
    const Schedule whole = damage.make();
    ASSERT_TRUE(find_errors(whole).empty()) << to_text(whole) << find_errors(whole)[0].sentence;
    Schedule schedule = whole;
    for (std::size_t change = 0; change <= seed % 3; ++change) damage.damage(schedule);
    const Messages& messages = kEngines.at(seed % kEngines.size());
    const auto findings = find_errors(schedule, {.messages = messages});
    const Outcome outcome = Executor(schedule, messages, true, seed).run();
    ASSERT_EQ(findings.empty(), outcome == Outcome::kCompleted)
        << to_text(schedule) << (findings.empty() ? "accepted" : findings.front().sentence);
    if (!findings.empty() && findings.front().sentence.starts_with("deadlock: ")) {
      ASSERT_EQ(outcome, Outcome::kDeadlock) << to_text(schedule);
    }
    (findings.empty() ? num_harmless : num_refused) += 1;
  }
  EXPECT_GT(num_refused, 2000);
  EXPECT_GT(num_harmless, 200);
}

TEST(Damage, IsNamedWithRankAndAction) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Damage damage(seed);
    Schedule schedule = damage.make();
    damage.damage(schedule);
    for (const Finding& finding : find_errors(schedule)) {
      ASSERT_TRUE(finding.rank.has_value()) << finding.sentence;
      EXPECT_NE(finding.sentence.find("rank " + std::to_string(*finding.rank)), std::string::npos);
      if (!finding.position) continue;
      ASSERT_LT(*finding.position, item(schedule.ranks, *finding.rank).size());
      EXPECT_NE(finding.sentence.find("action " + std::to_string(*finding.position)),
                std::string::npos);
      EXPECT_NE(
          finding.sentence.find(to_text(item(schedule.ranks, *finding.rank)[*finding.position])),
          std::string::npos);
    }
  }
}

}  // namespace
}  // namespace trireme::schedule
