// SPDX-License-Identifier: Apache-2.0
// What the launcher learns from its store, which a program without LibTorch does not have.
#include <gmock/gmock.h>
#include <tests/processes/launch/launched.h>

namespace trireme::launch {
namespace {

using test::Launched;
using test::run_script;
using testing::HasSubstr;

TEST(Run, WarnsWhereTheRanksNeverMet) {
  Launched alone(run_script({"-n", "2"}, "true"));
  EXPECT_EQ(alone.wait(), 0);
  EXPECT_THAT(alone.error, HasSubstr("warning: the ranks ended without meeting: 2 processes"));
  Launched one(run_script({"-n", "1"}, "true"));
  EXPECT_EQ(one.wait(), 0);
  EXPECT_THAT(one.error, testing::Not(HasSubstr("without meeting")));
}

}  // namespace
}  // namespace trireme::launch
