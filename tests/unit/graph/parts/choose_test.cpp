// SPDX-License-Identifier: Apache-2.0
// Choices of what to run again, beside all there are.
#include <trireme/graph/parts/choose.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace trireme::graph {
namespace {

// Units in a row, tensors between any of them, numbers of few digits so that many choices are
// alike.
class RandomLine {
 public:
  explicit RandomLine(unsigned seed) : random_(seed) {}

  Line make(int num_units) {
    Line line;
    for (int i = 0; i < num_units; ++i) {
      Unit unit;
      unit.cost = {.flops = static_cast<double>(one_of(5)),
                   .bytes = static_cast<double>(one_of(3))};
      unit.keeps = one_of(4) > 0;
      if (unit.keeps && one_of(2) > 0) unit.cost_to_last = unit.cost;
      if (unit.keeps) unit.own_bytes = one_of(6);
      unit.rebuilt_bytes = one_of(5) == 0 ? 1 : 0;
      unit.run_again_bytes = one_of(5) == 0 ? 1 : 0;
      line.units.push_back(unit);
    }
    for (int made_by = 0; made_by < num_units; ++made_by) {
      for (int count = one_of(3); count > 0; --count) add_tensor(line, made_by);
    }
    return line;
  }

 private:
  int one_of(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }

  void add_tensor(Line& line, int made_by) {
    SharedTensor tensor = {
        .bytes = 1 + one_of(8), .made_by = made_by, .readers = {}, .keepers = {}};
    const auto num_units = static_cast<int>(line.units.size());
    if (line.units[static_cast<std::size_t>(made_by)].keeps && one_of(2) == 0) {
      tensor.keepers.push_back(made_by);
    }
    for (int reader = made_by + 1; reader < num_units; ++reader) {
      if (one_of(reader - made_by) > 0) continue;  // the next, and some far away
      tensor.readers.push_back(reader);
      const bool keeps = line.units[static_cast<std::size_t>(reader)].keeps;
      if (keeps && one_of(2) == 0) tensor.keepers.push_back(reader);
    }
    line.tensors.push_back(std::move(tensor));
  }

  std::mt19937 random_;
};

// Every way to choose ranges from `begin` on.
void add_all(const Line& line, int begin, std::vector<UnitRange>& ranges,
             std::vector<Choice>& choices) {
  const auto num_units = static_cast<int>(line.units.size());
  choices.push_back(evaluate(line, ranges));
  for (int first = begin; first < num_units; ++first) {
    for (int end = first + 1; end <= num_units; ++end) {
      ranges.push_back({first, end});
      add_all(line, end, ranges, choices);
      ranges.pop_back();
    }
  }
}

std::vector<Choice> all_choices(const Line& line) {
  std::vector<Choice> choices;
  std::vector<UnitRange> ranges;
  add_all(line, 0, ranges, choices);
  return choices;
}

bool is_no_worse(const Choice& a, const Choice& b) { return a.cost <= b.cost && a.kept <= b.kept; }

template <typename Choices>
bool has_no_worse(const Choices& some, const Choice& than) {
  return std::ranges::any_of(some, [&](const Choice& choice) { return is_no_worse(choice, than); });
}

TEST(BestChoices, AreWhatTheySayAndNoOtherIsBetter) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Line line = RandomLine(seed).make(2 + static_cast<int>(seed % 6));
    const std::vector<Choice> all = all_choices(line);
    const std::int64_t most = std::ranges::max(all, {}, &Choice::peak).peak;
    for (const std::int64_t peak : {most, most / 2, most / 3}) {
      const Choices found = best_choices(line, {.peak = peak});
      ASSERT_TRUE(found.is_exact);
      for (const Choice& choice : found.best) {
        const Choice again = evaluate(line, choice.ranges);
        EXPECT_EQ(again.kept, choice.kept) << seed;
        EXPECT_EQ(again.peak, choice.peak) << seed;
        EXPECT_EQ(again.cost, choice.cost) << seed;
        EXPECT_LE(choice.peak, peak);
      }
      for (const Choice& other : all) {
        if (other.peak > peak) continue;
        ASSERT_TRUE(has_no_worse(found.best, other)) << "seed " << seed << ": " << other.kept << " "
                                                     << other.peak << " " << other.cost.flops;
      }
    }
  }
}

TEST(BestChoices, WithoutRoomForAllSayHowMuchBetterAnotherMayBe) {
  int num_left_out = 0;
  for (unsigned seed = 400; seed < 500; ++seed) {
    const Line line = RandomLine(seed).make(7);
    const std::vector<Choice> all = all_choices(line);
    for (const std::size_t room : {1U, 2U, 4U}) {
      const Choices found = best_choices(line, {}, room);
      num_left_out += found.is_exact ? 0 : 1;
      ASSERT_FALSE(found.best.empty());
      for (const Choice& choice : found.best) {
        EXPECT_EQ(evaluate(line, choice.ranges).cost, choice.cost);
      }
      for (const Choice& other : all) {
        ASSERT_TRUE(has_no_worse(found.bounds, other)) << "seed " << seed << ", room " << room;
      }
    }
  }
  EXPECT_GT(num_left_out, 100);
}

TEST(CheapestChoice, IsTheCheapestOfAllThatFit) {
  for (unsigned seed = 300; seed < 400; ++seed) {
    const Line line = RandomLine(seed).make(6);
    const std::vector<Choice> all = all_choices(line);
    const std::int64_t most = evaluate(line, {}).kept;
    for (const std::int64_t times : {0, 1, 3}) {
      for (std::int64_t limit = 0; limit <= (times + 1) * most; limit += 1 + most / 4) {
        const std::vector<MemoryConstraint> constraints = {
            {.times = times + 1, .limit = limit},
            {.times = times, .has_peak = true, .limit = limit}};
        const auto fits = [&](const Choice& choice) {
          return constraints[0].allows(choice) && constraints[1].allows(choice);
        };
        RecomputeCost least = {.flops = std::numeric_limits<double>::infinity(), .bytes = 0};
        for (const Choice& choice : all) {
          if (fits(choice)) least = std::min(least, choice.cost);
        }
        const CheapestChoice found = cheapest_choice(line, constraints);
        EXPECT_EQ(found.at_least, least) << "seed " << seed << ", limit " << limit;
        ASSERT_EQ(found.choice.has_value(), least.flops < 1e9);
        if (!found.choice) continue;
        EXPECT_EQ(found.choice->cost, least);
        EXPECT_TRUE(fits(evaluate(line, found.choice->ranges)));
        for (const std::size_t room : {1U, 3U}) {
          const CheapestChoice near = cheapest_choice(line, constraints, room);
          EXPECT_LE(near.at_least, least);
          EXPECT_TRUE(!near.choice || fits(*near.choice));
        }
      }
    }
  }
}

TEST(SmallestChoices, AreThoseThanWhichNoOtherIsSmaller) {
  for (unsigned seed = 500; seed < 600; ++seed) {
    const Line line = RandomLine(seed).make(2 + static_cast<int>(seed % 6));
    const std::vector<Choice> found = smallest_choices(line);
    ASSERT_FALSE(found.empty());
    for (std::size_t i = 1; i < found.size(); ++i) {
      EXPECT_LE(found[i - 1].kept, found[i].kept);
      EXPECT_GT(found[i - 1].peak, found[i].peak);
    }
    for (const Choice& other : all_choices(line)) {
      EXPECT_TRUE(std::ranges::any_of(found, [&](const Choice& choice) {
        return choice.kept <= other.kept && choice.peak <= other.peak;
      })) << seed;
    }
  }
}

// A chain in which every unit keeps its input and its result: runs of it keep their inputs alone.
TEST(BestChoices, OfAChainWithTheLeastMemoryKeepAboutItsRootTwice) {
  constexpr int kUnits = 16;
  Line line;
  for (int i = 0; i < kUnits; ++i) {
    Unit unit;
    unit.cost = unit.cost_to_last = {.flops = 1, .bytes = 0};
    unit.keeps = true;
    line.units.push_back(unit);
    SharedTensor result = {.bytes = 1, .made_by = i, .readers = {}, .keepers = {i}};
    if (i + 1 < kUnits) result.readers = {i + 1};
    if (i + 1 < kUnits) result.keepers = {i, i + 1};
    line.tensors.push_back(result);
  }
  const std::int64_t least = smallest_choices(line).back().peak;
  EXPECT_EQ(evaluate(line, {}).peak, kUnits);
  EXPECT_LE(least, 6);
}

TEST(BestChoices, OfNothingIsNothing) {
  const Choices found = best_choices({}, {});
  ASSERT_EQ(found.best.size(), 1);
  EXPECT_TRUE(found.best[0].ranges.empty());
}

TEST(BestChoices, ThatNothingFitsAreNone) {
  Line line;
  line.units.push_back({.cost = {}, .cost_to_last = {}, .keeps = true, .own_bytes = 5});
  const Choices found = best_choices(line, {.peak = 4});
  EXPECT_TRUE(found.best.empty());
  EXPECT_TRUE(found.bounds.empty());
}

}  // namespace
}  // namespace trireme::graph
