// SPDX-License-Identifier: Apache-2.0
// Operators without a strategy are cut by data where DataParallelDefault says so.
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/operator_strategy.h>

#include <gtest/gtest.h>
#include <tests/ranks/tensor/per_call/strategy_checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

namespace trireme::test {
namespace {

using testing::run_ranks;

TEST(DataParallelDefault, CutsDataAndLeavesParametersWhole) {
  run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto by_rows = layout_of_parts(mesh, {4, 1});
    const auto x = full_batch(waves({8, 6}), mesh);
    const auto w = whole_on(mesh, waves({6, 4}));
    const auto bias = whole_on(mesh, waves({4}));
    {
      const DataParallelDefault by_data;
      const auto y = torch::matmul(x, w);
      EXPECT_EQ(layout_of(y), by_rows);
      EXPECT_EQ(layout_of(y + bias), by_rows);
      // What another strategy has cut otherwise comes back.
      const auto columns = with_strategy({{1, 1}, {1, 4}}, [&] { return torch::matmul(x, w); });
      EXPECT_EQ(layout_of(columns), layout_of_parts(mesh, {1, 4}));
      EXPECT_EQ(layout_of(torch::relu(columns)), by_rows);
      EXPECT_EQ(layout_of(torch::softmax(columns, 1)), by_rows);
      // Parameters alone, views, and what is written to follow their inputs.
      EXPECT_TRUE(layout_of(w * 2).is_replicated());
      EXPECT_TRUE(layout_of(w.t()).is_replicated());
      auto written = torch::zeros_like(x);
      written.add_(x);
      EXPECT_TRUE(layout_of(written).is_replicated());
      // Sums over the batch come out as they would.
      EXPECT_EQ(layout_of(torch::sum(y, 0)), Layout(mesh, {Partial{}, Partial{}}));
    }
    EXPECT_TRUE(layout_of(torch::matmul(x, w)).is_replicated());
  });
}

TEST(DataParallelDefault, FollowsInputsWhereTheBatchDoesNotDivide) {
  run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto x = full_batch(waves({6, 4}), mesh);
    const DataParallelDefault by_data;
    EXPECT_TRUE(layout_of(torch::relu(x)).is_replicated());
  });
}

TEST(DataParallelDefault, TrainsAsOneProcess) {
  const auto loss_of = [](const torch::Tensor& x, const torch::Tensor& target,
                          const Tensors& parameters) {
    const auto h = torch::gelu(torch::linear(x, parameters[0], parameters[1]));
    const auto scores = torch::linear(torch::layer_norm(h, {10}), parameters[2]);
    return torch::cross_entropy_loss(scores, target);
  };
  const auto numbers = torch::arange(12) * 5 % 4;
  for (const int ranks : {1, 2, 6}) {
    run_ranks(ranks, [&](const comm::Group& group) {
      const DeviceMesh mesh = devices_mesh(group);
      const Tensors plain = {leaf(waves({10, 6})), leaf(waves({10}, 1)), leaf(waves({4, 10}, 2))};
      Tensors cut;
      for (const auto& parameter : plain) cut.push_back(whole_on(mesh, parameter));
      const auto expected = loss_of(waves({12, 6}, 3), numbers, plain);
      expected.backward();
      const DataParallelDefault by_data;
      const auto loss = loss_of(full_batch(waves({12, 6}, 3), mesh), numbers, cut);
      expect_close(loss, expected, "loss");
      loss.backward();
      for (std::size_t i = 0; i < plain.size(); ++i) {
        expect_close(cut[i].grad(), plain[i].grad(), "gradient");
      }
    });
  }
}

TEST(DataParallelDefault, LeavesPlainTensorsAlone) {
  const DataParallelDefault by_data;
  const auto x = waves({4, 3});
  EXPECT_TRUE(torch::equal(torch::matmul(x, x.t()), x.mm(x.t())));
}

}  // namespace
}  // namespace trireme::test
