// SPDX-License-Identifier: Apache-2.0
// `trireme run --cluster`: ranks have the links of the description, and are refused if they have
// not all the same.
#include <gmock/gmock.h>
#include <tests/processes/parallel/run_ranks.h>

namespace trireme {
namespace {

using test::Finished;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kClusterProgram = "CLUSTER_PROGRAM";

TEST(ClusterOfARun, GivesTheMeshItsLinks) {
  const Finished with = run_ranks(2, kClusterProgram, "", "--cluster a100-80");
  EXPECT_EQ(with.code, 0) << with.output;
  EXPECT_THAT(with.output,
              AllOf(HasSubstr("[rank 0] latency 6 us"), HasSubstr("[rank 1] latency 6 us")));
  const Finished without = run_ranks(2, kClusterProgram, "", "--env TRIREME_CLUSTER=");
  EXPECT_THAT(without.output, HasSubstr("[rank 0] latency 2 us"));  // the default
}

// Neither parallelize nor TrainingStep lets a rank wait for one that has thrown.
TEST(ClusterOfARun, MustBeTheSameOnAllRanks) {
  for (const bool is_missing : {false, true}) {
    const Finished finished = run_ranks(2, kClusterProgram, is_missing ? "missing" : "differ",
                                        "--cluster a100-80 --timeout 60");
    EXPECT_EQ(finished.code, 0) << finished.output;
    for (const char* rank : {"0", "1"}) {
      EXPECT_THAT(finished.output,
                  HasSubstr(std::string("rank ") + rank +
                            ": ranks differ in the plan: rank 0 has 'TRIREME_CLUSTER      8 A100 "
                            "with 80 GB per host, digest "));
    }
    EXPECT_THAT(finished.output, HasSubstr(is_missing ? "rank 1 has 'TRIREME_CLUSTER      not set'"
                                                      : "rank 1 has 'TRIREME_CLUSTER      8 H100"));
    EXPECT_THAT(finished.output,
                AllOf(HasSubstr("give every rank the same plan and the same TRIREME_CLUSTER"),
                      Not(HasSubstr("no error"))));
  }
}

}  // namespace
}  // namespace trireme
