// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/redistribution/between_meshes.h>

#include <trireme/base/error.h>
#include <trireme/comm/engines/shm/communicator.h>

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <tests/ranks/tensor/redistribution/held_tensors.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/unit/tensor/every_layout.h>

namespace trireme::tensor {
namespace {

using test::every_layout;
using test::HeldTensor;
using test::Lengths;
using test::Placements;
using ::testing::HasSubstr;
using trireme::testing::message_of;
using trireme::testing::run_ranks;
using trireme::testing::run_ranks_catching;

// A mesh over some ranks of the world.
struct Place {
  std::vector<int> ranks;
  Lengths lengths;
};

struct Case {
  Lengths sizes;
  Placements from, to;
  at::ScalarType dtype = at::kFloat;
};

void check_cases(int world, const Place& source, const Place& target,
                 const std::vector<Case>& cases) {
  const DeviceMesh from_shape = DeviceMesh::unconnected(test::axes_of(source.lengths));
  const DeviceMesh to_shape = DeviceMesh::unconnected(test::axes_of(target.lengths));
  std::vector<HeldTensor> given;
  for (const Case& one : cases) {
    const Layout from(from_shape, one.from);
    const Layout to(to_shape, one.to);
    given.push_back(test::hold(one.sizes, one.dtype, from, test::op_of(to),
                               !from.has_partial() && !to.has_partial(),
                               static_cast<std::int64_t>(given.size())));
  }
  const auto num_ranks = static_cast<std::size_t>(world);
  std::vector<std::vector<at::Tensor>> results(cases.size(), std::vector<at::Tensor>(num_ranks));
  run_ranks(world, [&](const comm::Group& group) {
    const DeviceMesh from_mesh(group, source.ranks, test::axes_of(source.lengths));
    const DeviceMesh to_mesh(group, target.ranks, test::axes_of(target.lengths));
    for (std::size_t index = 0; index < cases.size(); ++index) {
      const Case& one = cases[index];
      at::Tensor local;
      if (from_mesh.contains_this_rank()) {
        local = given[index].locals[static_cast<std::size_t>(from_mesh.group().rank())];
      }
      results[index][static_cast<std::size_t>(group.rank())] = redistribute_between(
          local, one.sizes, one.dtype, Layout(from_mesh, one.from), Layout(to_mesh, one.to), group);
    }
  });
  for (std::size_t index = 0; index < cases.size(); ++index) {
    const Case& one = cases[index];
    std::vector<at::Tensor> locals;
    for (const int rank : target.ranks) {
      locals.push_back(results[index][static_cast<std::size_t>(rank)]);
    }
    const Layout to(to_shape, one.to);
    ASSERT_EQ(test::difference(given[index].whole, to, locals), "")
        << c10::IntArrayRef(one.sizes) << " from " << Layout(from_shape, one.from).to_string()
        << " to " << to.to_string();
    for (int rank = 0; rank < world; ++rank) {
      const bool is_target = std::ranges::find(target.ranks, rank) != target.ranks.end();
      ASSERT_EQ(results[index][static_cast<std::size_t>(rank)].defined(), is_target);
    }
  }
}

std::vector<Case> all_pairs(const Place& source, const Place& target,
                            const std::vector<Lengths>& all_sizes) {
  std::vector<Case> cases;
  for (const Lengths& sizes : all_sizes) {
    const auto num_dims = static_cast<int>(sizes.size());
    for (const auto& from : every_layout(source.lengths.size(), num_dims, PartialOp::kSum)) {
      for (const auto& to : every_layout(target.lengths.size(), num_dims, PartialOp::kSum)) {
        cases.push_back({.sizes = sizes, .from = from, .to = to});
      }
    }
  }
  return cases;
}

const std::vector<Lengths> kSizes = {{}, {0}, {1}, {5}, {4, 6}, {7, 3}, {2, 3, 5}};

TEST(RedistributeBetween, ReachesOtherRanks) {
  for (const auto& [source, target] :
       std::vector<std::pair<Place, Place>>{{{{0, 1}, {2}}, {{2, 3}, {2}}},
                                            {{{0, 1}, {2}}, {{4, 2, 3}, {3}}},
                                            {{{3}, {1}}, {{0, 1, 2}, {3}}},
                                            {{{0, 1, 4}, {3}}, {{2}, {1}}}}) {
    check_cases(5, source, target, all_pairs(source, target, kSizes));
  }
}

TEST(RedistributeBetween, ReachesRanksThatAreInBothMeshes) {
  for (const auto& [source, target] :
       std::vector<std::pair<Place, Place>>{{{{0, 1}, {2}}, {{1, 2}, {2}}},
                                            {{{0, 1, 2, 3}, {4}}, {{3, 2, 1, 0}, {4}}},
                                            {{{0, 1, 2}, {3}}, {{0, 1}, {2}}}}) {
    check_cases(4, source, target, all_pairs(source, target, kSizes));
  }
}

TEST(RedistributeBetween, ReachesMeshesOfAnotherShape) {
  const Place square = {{0, 1, 2, 3}, {2, 2}};
  const Place other_line = {{4, 1, 2}, {3}};
  check_cases(5, square, other_line, all_pairs(square, other_line, {{7, 3}, {4}}));
  check_cases(5, other_line, square, all_pairs(other_line, square, {{7, 3}, {4}}));
}

TEST(RedistributeBetween, KnowsFlatShardsOpsAndDtypes) {
  const Place source = {{0, 1, 2}, {3}};
  const Place target = {{2, 3}, {2}};
  const Placement flat_3 = FlatShard{{{8, 4}, {0, 1}, {1, 7}}};
  const Placement flat_2 = FlatShard{{{0, 5}, {5, 7}}};
  std::vector<Case> cases;
  for (const at::ScalarType dtype : {at::kFloat, at::kLong, at::kBFloat16, at::kByte}) {
    for (const Placement& from : Placements{flat_3, Replicate{}, Shard{0}, Shard{1}, Partial{},
                                            Partial{PartialOp::kMaximum}}) {
      for (const Placement& to : Placements{flat_2, Replicate{}, Shard{0}, Shard{1}}) {
        cases.push_back({.sizes = {3, 4}, .from = {from}, .to = {to}, .dtype = dtype});
      }
    }
    for (const PartialOp op :
         {PartialOp::kAverage, PartialOp::kMaximum, PartialOp::kMinimum, PartialOp::kProduct}) {
      cases.push_back({.sizes = {3, 4}, .from = {Shard{0}}, .to = {Partial{op}}, .dtype = dtype});
    }
  }
  for (const at::ScalarType dtype : {at::kBool, at::kComplexFloat, at::kFloat8_e5m2}) {
    cases.push_back({.sizes = {3, 4}, .from = {Shard{0}}, .to = {Shard{1}}, .dtype = dtype});
  }
  check_cases(4, source, target, cases);
}

TEST(RedistributeBetween, SendsOnlyWhatIsMissing) {
  run_ranks(3, [](const comm::Group& group) {
    const DeviceMesh from_mesh(group, {0, 1}, {{"a", 2}});
    const DeviceMesh to_mesh(group, {1, 2}, {{"a", 2}});
    const Layout from(from_mesh, {Shard{0}});
    const Layout to(to_mesh, {Shard{0}});
    const at::Tensor whole = test::bytes_of({4, 8}, at::kFloat, 5);
    at::Tensor local;
    if (from_mesh.contains_this_rank()) {
      local = test::slice_of(whole, from, from_mesh.coordinate());
    }
    redistribute_between(local, {4, 8}, at::kFloat, from, to, group);
    // Rank 0 sends rows 0 and 1 to rank 1, and rank 1 rows 2 and 3 to rank 2.
    std::uint64_t bytes = 0;
    for (const auto& record : group.shared_memory()->member().recorded(group.rank())) {
      if (record.operation.kind == shm::Kind::kSend) bytes += record.operation.count;
    }
    EXPECT_EQ(bytes, group.rank() == 2 ? 0U : 64U);
  });
}

TEST(RedistributeBetween, IsRedistributionWhereTheMeshIsTheSame) {
  run_ranks(3, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {0, 1}, {{"a", 2}});
    const at::Tensor whole = test::bytes_of({5}, at::kFloat, 5);
    const Layout cut(mesh, {Shard{0}});
    at::Tensor local;
    if (mesh.contains_this_rank()) local = test::slice_of(whole, cut, mesh.coordinate());
    const at::Tensor result =
        redistribute_between(local, {5}, at::kFloat, cut, Layout::replicated(mesh), group);
    EXPECT_EQ(result.defined(), group.rank() < 2);
    if (group.rank() < 2) {
      EXPECT_TRUE(test::same_bits(result, whole));
    }
  });
}

TEST(RedistributeBetween, GivesTheSameOverGloo) {
  trireme::testing::engine_of_ranks = "gloo";
  const Place source = {{0, 1}, {2}};
  const Place target = {{1, 2}, {2}};
  check_cases(3, source, target, all_pairs(source, target, {{5, 3}}));
  trireme::testing::engine_of_ranks = "shm";
}

TEST(RedistributeBetween, NamesMeshesThatDoNotFit) {
  const auto thrown = run_ranks_catching(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"a", 2}});
    const Layout from(mesh, {Shard{0}});
    const DeviceMesh paper = DeviceMesh::unconnected({{"a", 2}});
    if (group.rank() == 0) {
      redistribute_between(at::empty({2}), {4}, at::kFloat, from, Layout(paper, {Shard{0}}), group);
    }
    const comm::Group alone = comm::Group::self();
    redistribute_between(
        at::empty({2}), {4}, at::kFloat, from,
        Layout(DeviceMesh(group.subgroup(std::vector<int>{1}), {{"b", 1}}), {Shard{0}}), alone);
  });
  EXPECT_THAT(message_of<UsageError>(thrown[0]), HasSubstr("which no ranks stand behind"));
  EXPECT_THAT(message_of<UsageError>(thrown[1]),
              HasSubstr("of which mesh a=2 over ranks [0, 1] was not made"));
}

TEST(RedistributeBetween, NamesATensorThatIsNotWhatTheRankHolds) {
  const auto thrown = run_ranks_catching(2, [](const comm::Group& group) {
    const DeviceMesh from(group, {0}, {{"a", 1}});
    const DeviceMesh to(group, {1}, {{"a", 1}});
    // Rank 1 would wait for rank 0 in vain.
    if (group.rank() == 1) return;
    redistribute_between(at::empty({3}), {4}, at::kFloat, Layout::replicated(from),
                         Layout::replicated(to), group);
  });
  EXPECT_THAT(message_of<UsageError>(thrown[0]),
              HasSubstr("was given a local tensor of sizes [3] of Float, expected [4] of Float"));
}

}  // namespace
}  // namespace trireme::tensor
