// SPDX-License-Identifier: Apache-2.0
// Two stages, each on two ranks along `data` that cut what they have: every bit as one process.
#include <trireme/comm/world.h>

#include <gtest/gtest.h>
#include <tests/ranks/pipeline/loops.h>

#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::Arranged;
using test::NetworkCase;
using test::Outcome;

class ZeroOnProcesses : public ::testing::TestWithParam<NetworkCase> {};

TEST_P(ZeroOnProcesses, HasTheBitsOfAPlainLoop) {
  const comm::Group group = init().group;
  ASSERT_EQ(group.size(), 4);
  Arranged arranged{
      .pipe = 2, .data = 2, .micro_batches = 3, .optimizer = "adamw", .rows = 5, .steps = 2};
  const Outcome expected = test::alone(GetParam(), arranged);
  const std::vector<std::pair<int, std::string>> kinds = {
      {1, "1f1b"}, {2, "zb-h1"}, {3, "zb-h1"}, {3, "gpipe"}};
  for (const auto& [zero_level, schedule] : kinds) {
    arranged.zero_level = zero_level;
    arranged.schedule = schedule;
    SCOPED_TRACE(::testing::PrintToString(arranged));
    test::expect_same_bits(test::train(GetParam().make(), arranged, group), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, ZeroOnProcesses, ::testing::ValuesIn(test::network_cases()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace trireme
