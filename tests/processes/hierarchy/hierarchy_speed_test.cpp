// SPDX-License-Identifier: Apache-2.0
// Where the network is what takes time, a hierarchy is faster than a ring over all ranks.
#include <gtest/gtest.h>
#include <tests/processes/hierarchy/two_hosts.h>

#include <iostream>

namespace trireme {
namespace {

TEST(HierarchyOverTwoHosts, IsFasterThanOneEngineOverAllRanksWhereTheNetworkIsSlow) {
  const testing::TwoHosts hosts(500);
  if (!hosts.why_not().empty()) {
    GTEST_SKIP() << "no network namespaces here (they need root and iproute2): " << hosts.why_not();
  }
  if (!hosts.is_limited()) GTEST_SKIP() << "the kernel has no token bucket filter (tc qdisc tbf)";
  for (const char* bytes : {"1048576", "16777216"}) {
    const testing::Finished finished = hosts.run(testing::hierarchy_program() + " " + bytes + " 9");
    ASSERT_EQ(finished.code, 0) << finished.output;
    std::cout << finished.output;
    const std::size_t place = finished.output.rfind("ratio ");
    ASSERT_NE(place, std::string::npos) << finished.output;
    // A ring over 2 + 2 ranks sends 1.5 times the message each way over the link, a hierarchy once.
    EXPECT_LT(std::stod(finished.output.substr(place + 6)), 0.85) << finished.output;
  }
}

}  // namespace
}  // namespace trireme
