// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/byte_pairs.h>

#include <trireme/data/text/detail/word_cache.h>

#include <gmock/gmock.h>

#include <map>
#include <optional>
#include <random>
#include <thread>

namespace trireme::data::detail {
namespace {

using ::testing::ElementsAre;
using Tokens = std::vector<std::int32_t>;
using Rules =
    std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::int32_t, std::int32_t>>;

// The definition: the pair of lowest rank, of equal ones the leftmost, as long as there is one.
Tokens merged_by_definition(const Rules& rules, Tokens tokens) {
  for (;;) {
    std::optional<std::pair<std::int32_t, std::size_t>> best;
    for (std::size_t place = 0; place + 1 < tokens.size(); ++place) {
      const auto rule = rules.find({tokens[place], tokens[place + 1]});
      if (rule == rules.end() || (best && best->first <= rule->second.first)) continue;
      best = {rule->second.first, place};
    }
    if (!best) return tokens;
    const auto at = tokens.begin() + static_cast<std::ptrdiff_t>(best->second);
    *at = rules.at({*at, *(at + 1)}).second;
    tokens.erase(at + 1);
  }
}

TEST(BytePairs, MergesTheLowestRankFirst) {
  BytePairs pairs;
  pairs.add(0, 1, 1, 10);
  pairs.add(1, 2, 0, 11);
  pairs.add(0, 11, 2, 12);
  Tokens tokens = {0, 1, 2};
  pairs.merge(tokens);
  EXPECT_THAT(tokens, ElementsAre(12));
  tokens = {0, 1, 0, 1, 2};
  pairs.merge(tokens);
  EXPECT_THAT(tokens, ElementsAre(10, 12));
}

TEST(BytePairs, MergesEqualPairsFromTheLeft) {
  BytePairs pairs;
  pairs.add(0, 0, 0, 5);
  Tokens tokens = {0, 0, 0};
  pairs.merge(tokens);
  EXPECT_THAT(tokens, ElementsAre(5, 0));
}

TEST(BytePairs, LeavesOneTokenAndNone) {
  const BytePairs pairs;
  Tokens tokens = {3};
  pairs.merge(tokens);
  EXPECT_THAT(tokens, ElementsAre(3));
  tokens.clear();
  pairs.merge(tokens);
  EXPECT_TRUE(tokens.empty());
}

TEST(BytePairs, TakesTheLastOfEqualRules) {
  BytePairs pairs;
  pairs.add(0, 1, 0, 5);
  pairs.add(0, 1, 1, 6);
  Tokens tokens = {0, 1};
  pairs.merge(tokens);
  EXPECT_THAT(tokens, ElementsAre(6));
}

TEST(BytePairs, IsWhatTheDefinitionSays) {
  std::mt19937 random(std::random_device{}());
  const auto below = [&](int bound) {
    return std::uniform_int_distribution<std::int32_t>(0, bound - 1)(random);
  };
  for (int attempt = 0; attempt < 300; ++attempt) {
    BytePairs pairs;
    Rules rules;
    std::int32_t next = 4;  // tokens 0 to 3 are the bytes
    for (int rule = 0; rule < 30; ++rule) {
      const std::int32_t left = below(next);
      const std::int32_t right = below(next);
      if (!rules.try_emplace({left, right}, rule, next).second) continue;
      pairs.add(left, right, rule, next++);
    }
    Tokens word(static_cast<std::size_t>(below(60)));
    for (std::int32_t& token : word) token = below(4);
    Tokens merged = word;
    pairs.merge(merged);
    ASSERT_EQ(merged, merged_by_definition(rules, word)) << ::testing::PrintToString(word);
  }
}

TEST(WordCache, GivesBackWhatItKept) {
  WordCache cache;
  std::vector<std::int64_t> tokens = {1};
  EXPECT_FALSE(cache.append("word", tokens));
  cache.keep("word", {2, 3});
  EXPECT_TRUE(cache.append("word", tokens));
  EXPECT_THAT(tokens, ElementsAre(1, 2, 3));
}

TEST(WordCache, LeavesLongWordsOut) {
  WordCache cache;
  std::vector<std::int64_t> tokens;
  const std::string word(65, 'x');
  cache.keep(word, {1});
  EXPECT_FALSE(cache.append(word, tokens));
}

TEST(WordCache, ServesManyThreadsAndManyWords) {
  WordCache cache;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&cache] {
      for (std::int32_t number = 0; number < 200000; ++number) {
        const std::string word = std::to_string(number % 90000);
        std::vector<std::int64_t> tokens;
        if (cache.append(word, tokens)) {
          ASSERT_THAT(tokens, ElementsAre(number % 90000));
        } else {
          cache.keep(word, {number % 90000});
        }
      }
    });
  }
}

}  // namespace
}  // namespace trireme::data::detail
