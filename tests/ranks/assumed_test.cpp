// SPDX-License-Identifier: Apache-2.0
// The engine of worlds whose other ranks do not exist.
#include <trireme/comm/engines/assumed/assumed.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/engine.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>

namespace trireme::comm {
namespace {

constexpr int kAssumedRanks = 1000;

Group assumed_group() {
  EngineContext context = {
      .store = {}, .rank = 0, .size = kAssumedRanks, .timeout = std::chrono::seconds(1)};
  for (int rank = 0; rank < kAssumedRanks; ++rank) context.world_ranks.push_back(rank);
  return connect(assumed_engine(), context);
}

at::Tensor three_numbers() { return at::arange(3, at::kFloat); }

TEST(AssumedEngine, ReducesAsIfAllRanksGaveTheSame) {
  const Group group = assumed_group();
  const auto reduced = [&](ReduceOp op) {
    at::Tensor tensor = three_numbers();
    all_reduce(tensor, group, op);
    return tensor;
  };
  EXPECT_TRUE(at::equal(reduced(ReduceOp::kSum), three_numbers().mul(kAssumedRanks)));
  EXPECT_TRUE(at::equal(reduced(ReduceOp::kAverage), three_numbers()));
  EXPECT_TRUE(at::equal(reduced(ReduceOp::kMaximum), three_numbers()));
  EXPECT_TRUE(at::equal(reduced(ReduceOp::kMinimum), three_numbers()));
}

TEST(AssumedEngine, GathersAndBroadcastsWhatThisRankHas) {
  const Group group = assumed_group();
  at::Tensor all = at::zeros({3 * kAssumedRanks});
  all_gather(all, three_numbers(), group);
  EXPECT_TRUE(at::equal(all, three_numbers().repeat({kAssumedRanks})));
  const at::Tensor own = three_numbers();
  broadcast(own, kAssumedRanks - 1, group);
  EXPECT_TRUE(at::equal(own, three_numbers()));
  at::Tensor part = at::zeros({3});
  reduce_scatter(part, three_numbers().repeat({kAssumedRanks}), group);
  EXPECT_TRUE(at::equal(part, three_numbers().mul(kAssumedRanks)));
  EXPECT_EQ(all_gather_text("text", group), std::vector<std::string>(kAssumedRanks, "text"));
  barrier(group);
}

TEST(AssumedEngine, MakesGroupsOfSomeRanks) {
  const Group group = assumed_group();
  const Group some = group.subgroup(std::array{0, 7, 9});
  EXPECT_EQ(some.size(), 3);
  at::Tensor count = at::full({}, 1);
  all_reduce(count, some);
  EXPECT_EQ(count.item<int>(), 3);
}

TEST(AssumedEngine, ReceivesNoMessages) {
  const Group group = assumed_group();
  const at::Tensor tensor = three_numbers();
  send(tensor, 1, group);
  EXPECT_THROW(receive(tensor, 1, group), UsageError);
}

}  // namespace
}  // namespace trireme::comm
