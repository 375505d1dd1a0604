// SPDX-License-Identifier: Apache-2.0
// All ranks agree, or all of them fail with the same error.
#include <trireme/comm/consensus.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/ranks/thread_ranks.h>

#include <stdexcept>

namespace trireme::comm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using trireme::testing::message_of;
using trireme::testing::run_ranks;
using trireme::testing::run_ranks_catching;

TEST(Consensus, FindsTheFirstLineThatDiffers) {
  run_ranks(3, [](const Group& group) {
    EXPECT_FALSE(find_difference("a\nb\n", group));
    const auto difference = find_difference(group.rank() == 2 ? "a\nc\n" : "a\nb\n", group);
    ASSERT_TRUE(difference);
    EXPECT_EQ(difference->rank, 2);
    EXPECT_EQ(difference->line_of_first, "b");
    EXPECT_EQ(difference->line_of_rank, "c");
    const auto shorter = find_difference(group.rank() == 1 ? "a" : "a\nb", group);
    ASSERT_TRUE(shorter);
    EXPECT_EQ(shorter->line_of_rank, "nothing more");
  });
}

TEST(Consensus, NamesTheRanksThatGaveEachText) {
  const auto thrown = run_ranks_catching(3, [](const Group& group) {
    check_same_text("plan", "same", group);
    check_same_text("plan", group.rank() == 1 ? "two" : "one", group);
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(message_of<UsageError>(exception),
                HasSubstr("differ in the plan: ranks 0, 2 gave one; rank 1 gave two"));
  }
}

TEST(Consensus, TellsEveryRankHowWorkWentOnAll) {
  run_ranks(3, [](const Group& group) {
    const Outcomes outcomes = run_on_all(group, [&]() -> std::string {
      if (group.rank() == 1) throw std::runtime_error("no space");
      return "rank " + std::to_string(group.rank());
    });
    EXPECT_THAT(outcomes.texts, ElementsAre("rank 0", "no space", "rank 2"));
    EXPECT_THAT(outcomes.has_failed, ElementsAre(false, true, false));
    EXPECT_EQ(outcomes.first_failed(), 1);
    EXPECT_EQ(outcomes.own != nullptr, group.rank() == 1);
  });
}

TEST(Consensus, SucceedsOnAllRanksOrFailsOnAll) {
  const auto thrown = run_ranks_catching(3, [](const Group& group) {
    succeed_together("begin", group, [] {});
    succeed_together("cut the module", group, [&] {
      if (group.rank() == 2) throw ConfigError("7 rows for 2 ranks", "give an even number");
    });
  });
  EXPECT_THAT(message_of<ConfigError>(thrown[2]), HasSubstr("7 rows for 2 ranks"));
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_THAT(message_of<UsageError>(thrown[rank]),
                AllOf(HasSubstr("rank 2 could not cut the module and failed: 7 rows"),
                      HasSubstr("this one only follows it")));
  }
}

}  // namespace
}  // namespace trireme::comm
