// SPDX-License-Identifier: Apache-2.0
// A hierarchy over processes on two hosts gives what Gloo over all ranks gives.
#include <gmock/gmock.h>
#include <tests/processes/hierarchy/two_hosts.h>

#include <iostream>

namespace trireme {
namespace {

TEST(HierarchyOverTwoHosts, GivesWhatOneEngineOverAllRanksGives) {
  const testing::TwoHosts hosts(500);
  if (!hosts.why_not().empty()) {
    GTEST_SKIP() << "no network namespaces here (they need root and iproute2): " << hosts.why_not();
  }
  const testing::Finished finished = hosts.run(testing::hierarchy_program() + " 65536 3");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, ::testing::HasSubstr("2 hosts, 65536 bytes: gloo "));
  std::cout << finished.output;
}

}  // namespace
}  // namespace trireme
