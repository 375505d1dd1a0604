// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/roster.h>

#include <trireme/version.h>

#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::launch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Hello worker_on(const std::string& host, const std::string& node_id = "", int ranks = 1) {
  static int process = 100;
  return {.version = TRIREME_VERSION,
          .host = host,
          .machine = "machine of " + host,
          .process = ++process,
          .node_id = node_id,
          .ranks = ranks,
          .workers = std::nullopt,
          .program = {.path = "/bin/train", .bytes = 10, .checksum = "aa"}};
}

// Adds workers in this order, and returns their first ranks in the same order.
std::vector<int> ranks_of(Roster& roster, const std::vector<Hello>& workers) {
  std::uint64_t key = 0;
  for (const Hello& worker : workers) {
    EXPECT_EQ(roster.objection(worker, "10.0.0.1"), std::nullopt);
    roster.add(key++, worker, "10.0.0.1");
  }
  EXPECT_TRUE(roster.is_complete());
  std::vector<int> ranks;
  for (const auto& [number, place] : roster.assign(4711, "run")) ranks.push_back(place.first_rank);
  return ranks;
}

TEST(Roster, OrdersRanksByHostAndArrival) {
  Roster roster(5);
  EXPECT_THAT(ranks_of(roster, {worker_on("b"), worker_on("a"), worker_on("b"), worker_on("a"),
                                worker_on("b")}),
              ElementsAre(0, 3, 1, 4, 2));
}

TEST(Roster, OrdersRanksByNodeIdInWhichDigitsAreNumbers) {
  Roster roster(4);
  EXPECT_THAT(ranks_of(roster, {worker_on("a", "worker_10"), worker_on("b", "worker_9"),
                                worker_on("a", "worker_09"), worker_on("b", "wood")}),
              ElementsAre(3, 2, 1, 0));
}

TEST(Roster, PutsWorkersWithoutNodeIdLast) {
  Roster roster(3);
  EXPECT_THAT(ranks_of(roster, {worker_on("a"), worker_on("b", "1"), worker_on("a", "0")}),
              ElementsAre(2, 1, 0));
}

TEST(Roster, CountsLocalRanksOnHostsOfDifferentSizes) {
  Roster roster(6);
  EXPECT_THAT(
      ranks_of(roster, {worker_on("a", "", 1), worker_on("b", "", 3), worker_on("a", "", 2)}),
      ElementsAre(0, 3, 1));
  const auto places = roster.assign(4711, "run");
  const Assignment& last_of_a = places.at(2);
  EXPECT_EQ(last_of_a.first_local_rank, 1);
  EXPECT_EQ(last_of_a.local_world_size, 3);
  EXPECT_EQ(last_of_a.node_rank, 0);
  EXPECT_EQ(last_of_a.nodes, 2);
  EXPECT_EQ(last_of_a.world_size, 6);
  EXPECT_EQ(last_of_a.store_port, 4711);
  EXPECT_EQ(last_of_a.run_id, "run");
  EXPECT_EQ(places.at(1).first_local_rank, 0);
  EXPECT_EQ(places.at(1).local_world_size, 3);
  EXPECT_EQ(places.at(1).node_rank, 1);
}

// Returns what is said to a worker after one on host a has come to a world of two.
std::string objection_to(const Hello& worker, const std::string& first_id = "") {
  Roster roster(2);
  roster.add(0, worker_on("a", first_id), "10.0.0.1");
  const auto refusal = roster.objection(worker, "10.0.0.2");
  return refusal ? refusal->reason + "\nhint: " + refusal->hint : "none";
}

TEST(Roster, RefusesAnotherVersion) {
  Hello worker = worker_on("b");
  worker.version = "9.9.9";
  EXPECT_THAT(objection_to(worker), AllOf(HasSubstr("on b (10.0.0.2) has version 9.9.9 of Trireme"),
                                          HasSubstr("expected " TRIREME_VERSION)));
  worker = worker_on("b");
  worker.protocol = 99;
  EXPECT_THAT(objection_to(worker), HasSubstr("with protocol 99, expected"));
}

TEST(Roster, RefusesAnotherProgramAndNamesBoth) {
  Hello worker = worker_on("b");
  worker.program = {.path = "/bin/test", .bytes = 11, .checksum = "bb"};
  EXPECT_THAT(objection_to(worker),
              AllOf(HasSubstr("runs another program, /bin/test (11 bytes, checksum bb), than"),
                    HasSubstr("on a (10.0.0.1), which runs /bin/train (10 bytes, checksum aa)")));
}

TEST(Roster, TakesTheSameProgramAtAnotherPath) {
  Hello worker = worker_on("b");
  worker.program.path = "/home/train";
  EXPECT_EQ(objection_to(worker), "none");
}

TEST(Roster, RefusesAnotherNumberOfWorkers) {
  Hello worker = worker_on("b");
  worker.workers = 8;
  EXPECT_THAT(objection_to(worker), HasSubstr("expects 8 workers, the scheduler has 2"));
}

TEST(Roster, RefusesANodeIdThatAnotherWorkerHas) {
  EXPECT_THAT(objection_to(worker_on("b", "1"), "1"),
              AllOf(HasSubstr("has the node id '1', which is already that of process"),
                    HasSubstr("on a (10.0.0.1, node id 1)")));
}

TEST(Roster, RefusesMoreRanksThanThereArePlacesAndListsWhoCame) {
  EXPECT_THAT(objection_to(worker_on("b", "", 2)),
              AllOf(HasSubstr("came when 1 of 2 ranks were there already, and it brings 2"),
                    HasSubstr("\n  process "), HasSubstr("on a (10.0.0.1)")));
}

TEST(Roster, GivesThePlaceOfAWorkerThatHasGoneToAnother) {
  Roster roster(1);
  roster.add(0, worker_on("a", "1"), "10.0.0.1");
  roster.remove(0);
  EXPECT_EQ(roster.ranks(), 0);
  EXPECT_EQ(roster.objection(worker_on("b", "1"), "10.0.0.2"), std::nullopt);
  EXPECT_EQ(roster.describe_all(), "  none");
}

}  // namespace
}  // namespace trireme::launch
