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

constexpr int kRanks = 1000;

Group assumed_group() {
  EngineContext context = {
      .store = {}, .rank = 0, .size = kRanks, .timeout = std::chrono::seconds(1)};
  for (int rank = 0; rank < kRanks; ++rank) context.world_ranks.push_back(rank);
  return connect(assumed_engine(), context);
}

at::Tensor numbers() { return at::arange(3, at::kFloat); }

TEST(AssumedEngine, ReducesAsIfAllRanksGaveTheSame) {
  const Group group = assumed_group();
  const auto reduced = [&](ReduceOp op) {
    at::Tensor tensor = numbers();
    all_reduce(tensor, group, op);
    return tensor;
  };
  EXPECT_TRUE(at::equal(reduced(ReduceOp::kSum), numbers() * kRanks));
  EXPECT_TRUE(at::equal(reduced(ReduceOp::kAverage), numbers()));
  EXPECT_TRUE(at::equal(reduced(ReduceOp::kMaximum), numbers()));
  EXPECT_TRUE(at::equal(reduced(ReduceOp::kMinimum), numbers()));
}

TEST(AssumedEngine, GathersAndBroadcastsWhatThisRankHas) {
  const Group group = assumed_group();
  at::Tensor all = at::zeros({3 * kRanks});
  all_gather(all, numbers(), group);
  EXPECT_TRUE(at::equal(all, numbers().repeat({kRanks})));
  const at::Tensor own = numbers();
  broadcast(own, kRanks - 1, group);
  EXPECT_TRUE(at::equal(own, numbers()));
  at::Tensor part = at::zeros({3});
  reduce_scatter(part, numbers().repeat({kRanks}), group);
  EXPECT_TRUE(at::equal(part, numbers() * kRanks));
  EXPECT_EQ(all_gather_text("text", group), std::vector<std::string>(kRanks, "text"));
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
  const at::Tensor tensor = numbers();
  send(tensor, 1, group);
  EXPECT_THROW(receive(tensor, 1, group), UsageError);
}

}  // namespace
}  // namespace trireme::comm
