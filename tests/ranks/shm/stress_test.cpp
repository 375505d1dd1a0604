// SPDX-License-Identifier: Apache-2.0
// Random collectives over random sub-groups, with random types, lengths, reductions and roots,
// against the plain reference. TRIREME_STRESS_SECONDS says for how long (2 unless given),
// TRIREME_STRESS_SEED repeats a run that failed.
#include <trireme/base/environment.h>

#include <gtest/gtest.h>
#include <tests/ranks/shm/checked_operation.h>
#include <tests/ranks/shm/thread_ranks.h>

#include <chrono>
#include <iostream>
#include <optional>
#include <random>
#include <set>

namespace trireme::shm {
namespace {

using test::Plan;
using test::Random;
using Clock = std::chrono::steady_clock;

// What all ranks of a round do: each walks through `operations`, and takes part in those of the
// groups that it is in.
struct Round {
  int size = 1;
  bool yields = false;
  std::vector<std::vector<int>> groups;
  std::vector<std::pair<std::size_t, Plan>> operations;  // index of the group
};

Round random_round(Random& random) {
  Round round;
  round.size = static_cast<int>(1 + random.below(random.below(4) == 0 ? 8 : 4));
  round.yields = random.below(2) == 0;
  const std::size_t num_groups = 1 + random.below(4);
  for (std::size_t group = 0; group < num_groups; ++group) {
    std::vector<int> members;
    for (int rank = 0; rank < round.size; ++rank) {
      if (group == 0 || random.below(2) == 0) members.push_back(rank);
    }
    // Not always in ascending order: a group numbers its ranks as it likes.
    if (random.below(2) == 0) std::reverse(members.begin(), members.end());
    if (!members.empty()) round.groups.push_back(members);
  }
  for (std::size_t operation = 0; operation < 60; ++operation) {
    const std::size_t group = random.below(round.groups.size());
    const auto size = static_cast<int>(round.groups[group].size());
    round.operations.emplace_back(group, test::random_plan(random, size, 200'000));
  }
  return round;
}

void run_rank(const Round& round, int rank, std::vector<test::ThreadRendezvousStore>& meetings) {
  std::vector<std::shared_ptr<Communicator>> groups;
  for (std::size_t group = 0; group < round.groups.size(); ++group) {
    const std::vector<int>& members = round.groups[group];
    const auto self = std::find(members.begin(), members.end(), rank);
    groups.push_back(self == members.end()
                         ? nullptr
                         : Communicator::connect(
                               static_cast<int>(self - members.begin()),
                               static_cast<int>(members.size()), meetings[group],
                               test::options_with(round.yields, join_message("group ", group))));
  }
  for (const auto& [group, plan] : round.operations) {
    if (!groups[group]) continue;
    const std::string wrong = test::run_checked(*groups[group], plan);
    if (!wrong.empty()) throw std::runtime_error(join_message("group ", group, ", ", wrong));
  }
}

TEST(Stress, RandomCollectivesOverRandomGroupsGiveTheBitsOfTheReference) {
  const Environment environment = Environment::of_process();
  const std::int64_t limit =
      environment.find_integer("TRIREME_STRESS_SECONDS", 1, 1'000'000).value_or(2);
  const std::optional<std::int64_t> given =
      environment.find_integer("TRIREME_STRESS_SEED", 0, INT64_MAX);
  auto seed = static_cast<std::uint64_t>(given.value_or(std::random_device()()));
  const auto end = Clock::now() + std::chrono::seconds(limit);
  std::size_t num_operations = 0;
  do {
    SCOPED_TRACE(join_message("repeat with TRIREME_STRESS_SEED=", seed));
    Random random(seed);
    const Round round = random_round(random);
    std::vector<test::ThreadRendezvousStore> meetings(round.groups.size());
    const auto thrown =
        test::run_threads(round.size, [&](int rank) { run_rank(round, rank, meetings); });
    for (const std::exception_ptr& exception : thrown) {
      try {
        if (exception) std::rethrow_exception(exception);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
    num_operations += round.operations.size();
    ++seed;
  } while (Clock::now() < end && !HasFailure());
  std::cout << num_operations << " operations, the last seed was " << seed - 1 << "\n";
}

}  // namespace
}  // namespace trireme::shm
