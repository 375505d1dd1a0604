// SPDX-License-Identifier: Apache-2.0
// Stretches of a dim that is cut: they stay cut, and only what lies elsewhere is sent.
#include <trireme/tensor/dispatch/decision.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

namespace trireme {
namespace {

using test::usage_error;
using ::testing::HasSubstr;
using testing::run_ranks;

class Recut : public ::testing::TestWithParam<int> {};

TEST_P(Recut, KeepsChunksCutForwardAndBackward) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", group.size()}});
    const Layout cut(mesh, {{"tensor", Shard{1}}});
    for (const std::int64_t size : {3L * group.size(), 17L, 12L}) {
      const auto values = torch::arange(2 * size * 3, torch::kDouble).reshape({2, size, 3});
      auto plain = values.clone().requires_grad_();
      auto x = distribute(values, cut).detach().requires_grad_();
      const auto expected = plain.chunk(3, 1);
      const auto chunks = x.chunk(3, 1);
      ASSERT_EQ(chunks.size(), expected.size());
      for (std::size_t i = 0; i < chunks.size(); ++i) {
        const bool can_be_cut = expected[2].size(1) >= group.size();
        EXPECT_EQ(layout_of(chunks[i]) == cut, can_be_cut) << size << " over " << group.size();
        EXPECT_TRUE(torch::equal(full(chunks[i].detach()), expected[i]));
      }
      (expected[0].sin() + expected[1].cos()).sum().backward();
      (chunks[0].sin() + chunks[1].cos()).sum().backward();
      EXPECT_TRUE(torch::equal(full(x.grad()), plain.grad()));
    }
  });
}

TEST_P(Recut, KeepsSlicesAndWhatIsPutTogetherCut) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", group.size()}});
    const Layout cut(mesh, {{"tensor", Shard{0}}});
    const auto values = torch::arange(24, torch::kDouble).reshape({12, 2});
    auto plain = values.clone().requires_grad_();
    auto x = distribute(values, cut).detach().requires_grad_();
    const auto shifted = x.narrow(0, 0, 11) * x.narrow(0, 1, 11);
    const auto expected = plain.narrow(0, 0, 11) * plain.narrow(0, 1, 11);
    EXPECT_EQ(layout_of(shifted), cut);
    EXPECT_TRUE(torch::equal(full(shifted.detach()), expected));
    const auto together = torch::cat({shifted, x, distribute(values, Layout::replicated(mesh))});
    EXPECT_EQ(layout_of(together), cut);
    const auto all = torch::cat({expected, plain, values});
    EXPECT_TRUE(torch::equal(full(together.detach()), all));
    all.square().sum().backward();
    together.square().sum().backward();
    EXPECT_EQ(layout_of(x.grad()), cut);
    EXPECT_TRUE(torch::equal(full(x.grad()), plain.grad()));
    EXPECT_TRUE(torch::equal(full(x.detach().slice(0, -9, -1)), values.slice(0, -9, -1)));
    EXPECT_TRUE(torch::equal(full(x.detach().slice(0, 1, 12, 3)), values.slice(0, 1, 12, 3)));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Recut, ::testing::Values(2, 3, 4));

TEST(Recut, LeavesMixedTypesToTheOperator) {
  run_ranks(2, [](const comm::Group& group) {
    const Layout cut(DeviceMesh(group, {{"tensor", 2}}), {{"tensor", Shard{0}}});
    const auto small = torch::arange(6, torch::kInt);
    const auto exact = torch::arange(6, torch::kDouble) / 3;
    const auto together = torch::cat({distribute(small, cut), distribute(exact, cut)});
    EXPECT_TRUE(torch::equal(full(together), torch::cat({small, exact})));
  });
}

TEST(Recut, LeavesOtherAxesAsTheyAre) {
  run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"a", 2}, {"b", 2}});
    const Layout both(mesh, {{"a", Shard{1}}, {"b", Shard{0}}});
    const auto values = torch::arange(60).reshape({5, 12});
    const auto chunks = distribute(values, both).chunk(2, 1);
    EXPECT_EQ(layout_of(chunks[1]), both);
    EXPECT_TRUE(torch::equal(full(chunks[1]), values.chunk(2, 1)[1]));
    // Where two axes cut the dim, it is gathered.
    const Layout twice(mesh, {{"a", Shard{1}}, {"b", Shard{1}}});
    EXPECT_TRUE(
        torch::equal(full(distribute(values, twice).chunk(3, 1)[2]), values.chunk(3, 1)[2]));
  });
}

TEST(Recut, GivesCopiesWhereViewsAreAskedFor) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto x = distribute(torch::arange(8.0), Layout(mesh, {{"tensor", Shard{0}}}));
    auto half = x.narrow(0, 0, 4);
    EXPECT_THAT(usage_error([&] { half.add_(1); }), HasSubstr("it is a copy"));
    tensor::allow_gather_in_views(false);
    EXPECT_THAT(usage_error([&] { x.narrow(0, 1, 4); }), HasSubstr("without communication"));
    tensor::allow_gather_in_views(true);
  });
}

}  // namespace
}  // namespace trireme
