// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/slurm_lists.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::launch {
namespace {

using test::message_of;
using testing::ElementsAre;

TEST(NodeList, ExpandsToHosts) {
  EXPECT_THAT(expand_node_list("host", "V"), ElementsAre("host"));
  EXPECT_THAT(expand_node_list("node[01-03,07],x", "V"),
              ElementsAre("node01", "node02", "node03", "node07", "x"));
  EXPECT_THAT(expand_node_list("n[9-11]", "V"), ElementsAre("n9", "n10", "n11"));
  EXPECT_THAT(expand_node_list("n[1,3]-ib", "V"), ElementsAre("n1-ib", "n3-ib"));
  EXPECT_THAT(expand_node_list("r[1-2]n[08-09]", "V"),
              ElementsAre("r1n08", "r1n09", "r2n08", "r2n09"));
}

TEST(NodeList, RefusesOtherText) {
  for (const char* text : {"", ",", "a,", "n[1-2", "n1-2]", "n[]", "n[2-1]", "n[a-b]", "n[1-]",
                           "n[-1]", "n[0-99999999]"}) {
    EXPECT_THAT(
        message_of<ConfigError>([&] { expand_node_list(text, "SLURM_STEP_NODELIST"); }),
        testing::StartsWith("environment variable SLURM_STEP_NODELIST is '" + std::string(text) +
                            "', expected a list of hosts such as node[01-04,07],login"))
        << text;
  }
}

TEST(TasksPerNode, ExpandToOneNumberForEachNode) {
  EXPECT_THAT(expand_tasks_per_node("4", "V"), ElementsAre(4));
  EXPECT_THAT(expand_tasks_per_node("4(x2),3", "V"), ElementsAre(4, 4, 3));
}

TEST(TasksPerNode, RefuseOtherText) {
  for (const char* text : {"", "x", "4(x", "4(x)", "4(y2)", "4,,3", "-1", "1(x99999999)"}) {
    EXPECT_THROW(expand_tasks_per_node(text, "V"), ConfigError) << text;
  }
}

}  // namespace
}  // namespace trireme::launch
