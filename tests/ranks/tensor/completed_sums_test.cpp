// SPDX-License-Identifier: Apache-2.0
// A sum over ranks that an operator has completed stays complete, where nothing else has its
// memory.
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/dry_run/dry_run.h>

#include <gtest/gtest.h>
#include <tests/ranks/operators/operator_cases.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

namespace trireme {
namespace {

using test::sample;
using testing::run_ranks;

// A product over an index that is cut, plain and distributed.
struct Product {
  explicit Product(const comm::Group& group) : mesh(group, {{"tensor", group.size()}}) {
    left = sample({4, 6});
    right = sample({6, 5});
    plain = left.mm(right);
    distributed =
        distribute(left, Layout(mesh, {Shard{1}})).mm(distribute(right, Layout(mesh, {Shard{0}})));
  }

  bool is_complete() const { return !layout_of(distributed).has_partial(); }

  DeviceMesh mesh;
  torch::Tensor left, right, plain, distributed;
};

TEST(CompletedSums, StayComplete) {
  run_ranks(2, [](const comm::Group& group) {
    const Product product(group);
    ASSERT_FALSE(product.is_complete());
    const auto first = torch::relu(product.distributed);
    EXPECT_TRUE(product.is_complete());
    EXPECT_TRUE(torch::allclose(full(first), torch::relu(product.plain)));
    EXPECT_TRUE(torch::allclose(full(product.distributed), product.plain));
  });
}

TEST(CompletedSums, TakeNoSecondCollective) {
  run_ranks(2, [](const comm::Group& group) {
    const Product product(group);
    const tensor::DryRun dry_run(tensor::DryRun::Mode::kBeside);
    const auto first = torch::relu(product.distributed);
    const auto second = torch::tanh(product.distributed);
    ASSERT_EQ(dry_run.calls().size(), 2);
    EXPECT_FALSE(dry_run.calls()[0].inputs[0].exchanges.empty());
    EXPECT_TRUE(dry_run.calls()[1].inputs[0].exchanges.empty());
    EXPECT_TRUE(torch::allclose(full(second), torch::tanh(product.plain)));
  });
}

TEST(CompletedSums, ArePredicted) {
  run_ranks(2, [](const comm::Group& group) {
    const Product product(group);
    const tensor::DryRun dry_run;
    const auto again = distribute(product.left, Layout(product.mesh, {Shard{1}}))
                           .mm(distribute(product.right, Layout(product.mesh, {Shard{0}})));
    const auto first = torch::relu(again);
    const auto second = torch::tanh(again);
    const auto& calls = dry_run.calls();
    ASSERT_GE(calls.size(), 3);
    EXPECT_FALSE(calls[calls.size() - 2].inputs[0].exchanges.empty());
    EXPECT_TRUE(calls.back().inputs[0].exchanges.empty());
    EXPECT_EQ(calls.back().inputs[0].made_by, static_cast<int>(calls.size()) - 3);
  });
}

TEST(CompletedSums, StaySumsWhereAViewSharesTheirMemory) {
  run_ranks(2, [](const comm::Group& group) {
    const Product product(group);
    const auto view = product.distributed.t();
    EXPECT_TRUE(
        torch::allclose(full(torch::relu(product.distributed)), torch::relu(product.plain)));
    EXPECT_FALSE(product.is_complete());
    view.mul_(2);
    EXPECT_TRUE(torch::allclose(full(product.distributed), 2 * product.plain));
    EXPECT_TRUE(
        torch::allclose(full(torch::relu(product.distributed)), torch::relu(2 * product.plain)));
  });
}

TEST(CompletedSums, DoNotDependOnARankThatLooksAtItsPart) {
  run_ranks(2, [](const comm::Group& group) {
    const Product product(group);
    if (group.rank() == 0) static_cast<void>(to_local(product.distributed).mul_(3));
    static_cast<void>(torch::relu(product.distributed));
    EXPECT_TRUE(product.is_complete());
    EXPECT_TRUE(torch::allclose(full(product.distributed), product.plain));
  });
}

TEST(CompletedSums, AreNotKeptOfWhatIsWrittenTo) {
  run_ranks(2, [](const comm::Group& group) {
    const torch::NoGradGuard no_grad;
    for (const bool divides : {false, true}) {
      Product product(group);
      const auto change = [&](torch::Tensor& x) { divides ? x.div_(x) : x.mul_(x); };
      change(product.distributed);
      change(product.plain);
      EXPECT_TRUE(torch::allclose(full(product.distributed), product.plain)) << divides;
    }
  });
}

TEST(CompletedSums, AreTheSameInBackward) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto step = [&](const std::function<torch::Tensor(const torch::Tensor&, int)>& place) {
      std::vector<torch::Tensor> leaves = {place(sample({4, 6}), 1), place(sample({6, 5}), 0)};
      for (torch::Tensor& leaf : leaves) leaf = leaf.detach().requires_grad_();
      const auto x = leaves[0].mm(leaves[1]);
      (torch::relu(x) * torch::tanh(x) + x).sum().backward();
      return std::vector<torch::Tensor>{full(leaves[0].grad()), full(leaves[1].grad())};
    };
    const auto expected = step([](const torch::Tensor& tensor, int) { return tensor; });
    const auto got = step([&](const torch::Tensor& tensor, int dim) {
      return distribute(tensor, Layout(mesh, {Shard{dim}}));
    });
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(torch::allclose(got[i], expected[i])) << i;
    }
  });
}

}  // namespace
}  // namespace trireme
