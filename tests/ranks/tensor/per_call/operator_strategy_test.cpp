// SPDX-License-Identifier: Apache-2.0
// Strategies of operators give the values and gradients of one process, in the layouts they say.
#include <trireme/tensor/operator_strategy.h>

#include <trireme/tensor/distributed_tensor.h>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/tensor/per_call/strategy_checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace trireme::test {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;

torch::Tensor indices(torch::IntArrayRef sizes, std::int64_t below) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return (torch::arange(count) * 5 % below).reshape(sizes);
}

TEST(OperatorStrategy, CutsTwoProductsOnFourDevices) {
  run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const Tensors plain = {leaf(waves({8, 6})), leaf(waves({6, 12})), leaf(waves({12, 8}))};
    Tensors cut;
    for (const auto& tensor : plain) cut.push_back(whole_on(mesh, tensor));
    const auto y = with_strategy({{4, 1}, {1, 1}}, [&] { return torch::matmul(cut[0], cut[1]); });
    EXPECT_EQ(layout_of(y), layout_of_parts(mesh, {4, 1}));
    EXPECT_EQ(describe(y),
              "Double [8, 12] on devices0=2, devices1=2 as [devices0: Shard(0, level "
              "0), devices1: Shard(0, level 1)], here [2, 12]");
    const auto z = with_strategy({{1, 1}, {1, 4}}, [&] { return torch::matmul(y, cut[2]); });
    EXPECT_EQ(layout_of(z), layout_of_parts(mesh, {1, 4}));
    EXPECT_THAT(describe(z), HasSubstr("here [8, 2]"));
    const auto expected = torch::matmul(torch::matmul(plain[0], plain[1]), plain[2]);
    expect_close(z, expected, "the second product");
    expected.square().sum().backward();
    z.square().sum().backward();
    for (std::size_t i = 0; i < 3; ++i) expect_close(cut[i].grad(), plain[i].grad(), "gradient");
  });
}

TEST(OperatorStrategy, CutsAProductAlongItsSumAndThenRelu) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto plain_x = leaf(waves({16, 32}));
    const auto plain_w = leaf(waves({32, 16}));
    const auto x = whole_on(mesh, plain_x);
    const auto w = whole_on(mesh, plain_w);
    const auto y = with_strategy({{1, 2}, {2, 1}}, [&] { return torch::matmul(x, w); });
    EXPECT_EQ(layout_of(y), Layout(mesh, {Partial{}}));
    const auto z = with_strategy({{2, 1}}, [&] { return torch::relu(y); });
    EXPECT_EQ(layout_of(z), Layout(mesh, {Shard{0}}));
    EXPECT_EQ(describe(z), "Double [16, 16] on devices=2 as [devices: Shard(0)], here [8, 16]");
    const auto expected = torch::relu(torch::matmul(plain_x, plain_w));
    expect_close(z, expected, "relu");
    expected.square().mean().backward();
    z.square().mean().backward();
    expect_close(x.grad(), plain_x.grad(), "gradient of the input");
    expect_close(w.grad(), plain_w.grad(), "gradient of the weight");
  });
}

TEST(OperatorStrategy, CutsLayersOnFourDevices) {
  const auto linear = [](const Tensors& in) { return torch::linear(in[0], in[1], in[2]); };
  const Tensors of_linear = {waves({4, 3, 6}), waves({8, 6}, 1), waves({8}, 2)};
  const auto conv = [](const Tensors& in) {
    return torch::conv2d(in[0], in[1], in[2], /*stride=*/1, /*padding=*/1);
  };
  const Tensors of_conv = {waves({4, 2, 5, 5}), waves({4, 2, 3, 3}, 1), waves({4}, 2)};
  const auto embedding = [](const Tensors& in) { return torch::embedding(in[0], in[1]); };
  const Tensors of_embedding = {waves({10, 4}), indices({8, 3}, 10)};
  const auto layer_norm = [](const Tensors& in) {
    return torch::layer_norm(in[0], {8}, in[1], in[2]);
  };
  const Tensors of_norm = {waves({8, 8}), waves({8}, 1), waves({8}, 2)};
  check_on(4, {{"linear", linear, of_linear, {{4, 1, 1}, {1, 1}, {1}}, {4, 1, 1}},
               {"linear", linear, of_linear, {{2, 1, 1}, {2, 1}, {2}}, {2, 1, 2}},
               {"linear", linear, of_linear, {{1, 1, 1}, {4, 1}, {4}}, {1, 1, 4}},
               {"linear", linear, of_linear, {{1, 1, 2}, {1, 2}, {1}}},
               {"linear", linear, of_linear, {{1, 1, 1}, {1, 1}, {1}}, {1, 1, 1}},
               {"conv2d", conv, of_conv, {{4, 1, 1, 1}, {1, 1, 1, 1}, {1}}, {4, 1, 1, 1}},
               {"conv2d", conv, of_conv, {{2, 1, 1, 1}, {2, 1, 1, 1}, {2}}, {2, 2, 1, 1}},
               {"embedding", embedding, of_embedding, {{1, 1}, {4, 1}}, {4, 1, 1}},
               {"embedding", embedding, of_embedding, {{1, 2}, {2, 1}}, {2, 1, 2}},
               {"embedding", embedding, of_embedding, {{4, 1}, {1, 1}}},
               {"layer_norm", layer_norm, of_norm, {{4, 1}, {1}, {1}}, {4, 1}},
               {"layer_norm", layer_norm, of_norm, {{2, 2}, {2}, {2}}, {2, 2}}});
}

TEST(OperatorStrategy, CutsOtherOperatorsOnFourDevices) {
  check_on(
      4,
      {{"relu",
        [](const Tensors& in) { return torch::relu(in[0]); },
        {waves({8, 6})},
        {{2, 2}},
        {2, 2}},
       {"add",
        [](const Tensors& in) { return in[0] + in[1]; },
        {waves({8, 4}), waves({4})},
        {{2, 2}, {2}},
        {2, 2}},
       {"times a number",
        [](const Tensors& in) { return in[0] * 3; },
        {waves({8, 4})},
        {{4, 1}},
        {4, 1}},
       {"softmax",
        [](const Tensors& in) { return torch::softmax(in[0], 1); },
        {waves({8, 6})},
        {{2, 2}},
        {2, 2}},
       {"bmm",
        [](const Tensors& in) { return torch::bmm(in[0], in[1]); },
        {waves({4, 3, 6}), waves({4, 6, 5})},
        {{2, 1, 2}, {2, 2, 1}}},
       {"max_pool2d",
        [](const Tensors& in) { return torch::max_pool2d(in[0], 2); },
        {waves({4, 2, 4, 4})},
        {{2, 2, 1, 1}},
        {2, 2, 1, 1}},
       {"cat",
        [](const Tensors& in) { return torch::cat({in[0], in[1]}, 1); },
        {waves({8, 4}), waves({8, 2})},
        {{4, 1}, {4, 1}},
        {4, 1}},
       {"transpose",
        [](const Tensors& in) { return in[0].transpose(0, 1); },
        {waves({8, 4})},
        {{4, 1}},
        {1, 4}},
       {"mse_loss",
        [](const Tensors& in) { return torch::mse_loss(in[0], in[1]); },
        {waves({8, 4}), waves({8, 4}, 1)},
        {{2, 2}, {2, 2}}},
       {"attention",
        [](const Tensors& in) { return torch::scaled_dot_product_attention(in[0], in[1], in[2]); },
        {waves({4, 2, 6, 4}), waves({4, 2, 6, 4}, 1), waves({4, 2, 6, 4}, 2)},
        {{2, 2, 1, 1}, {2, 2, 1, 1}, {2, 2, 1, 1}},
        {2, 2, 1, 1}}});
}

TEST(OperatorStrategy, CutsOnSixDevicesEvenlyAndNot) {
  const auto product = [](const Tensors& in) { return torch::matmul(in[0], in[1]); };
  const Tensors even = {waves({12, 6}), waves({6, 12})};
  const Tensors uneven = {waves({7, 5}), waves({5, 4})};
  for (const Tensors& inputs : {even, uneven}) {
    check_on(6, {{"matmul", product, inputs, {{6, 1}, {1, 1}}, {6, 1}},
                 {"matmul", product, inputs, {{2, 1}, {1, 3}}, {2, 3}},
                 {"matmul", product, inputs, {{3, 1}, {1, 2}}, {3, 2}},
                 {"matmul", product, inputs, {{1, 6}, {6, 1}}},
                 {"matmul", product, inputs, {{3, 2}, {2, 1}}},
                 {"matmul", product, inputs, {{3, 1}, {1, 1}}, {3, 1}},
                 {"matmul", product, inputs, {{1, 1}, {1, 1}}, {1, 1}}});
  }
}

// Scores [8, 5] and what they are compared with, in each way of cutting it.
void check_cross_entropy(const DeviceMesh& mesh, const torch::Tensor& target,
                         const std::vector<OperatorStrategy>& strategies) {
  for (const OperatorStrategy& strategy : strategies) {
    for (const double smoothing : {0.0, 0.1}) {
      SCOPED_TRACE(to_string(strategy));
      const auto plain = leaf(waves({8, 5}));
      const auto scores = whole_on(mesh, plain);
      const auto labels = full_batch(target, mesh);
      const auto expected = torch::cross_entropy_loss(plain, target, {}, 1, -100, smoothing);
      const auto loss = with_strategy(strategy, [&] {
        return torch::cross_entropy_loss(scores, labels, {}, 1, -100, smoothing);
      });
      expect_close(loss, expected, "loss");
      expected.backward();
      loss.backward();
      expect_close(scores.grad(), plain.grad(), "gradient of the scores");
    }
  }
}

TEST(OperatorStrategy, CutsCrossEntropyOfClassNumbersOneHotAndSoftLabels) {
  const auto numbers = indices({8}, 5);
  const auto one_hot = torch::one_hot(numbers, 5).to(torch::kDouble);
  const auto soft = torch::softmax(waves({8, 5}, 3), 1);
  run_ranks(4, [&](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    check_cross_entropy(mesh, numbers, {{{4, 1}, {4}}, {{2, 2}, {2}}, {{1, 4}, {1}}});
    for (const auto& labels : {one_hot, soft}) {
      check_cross_entropy(mesh, labels, {{{4, 1}, {4, 1}}, {{2, 2}, {2, 2}}, {{1, 2}, {1, 2}}});
    }
  });
  run_ranks(6, [&](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    check_cross_entropy(mesh, numbers, {{{6, 1}, {6}}, {{2, 3}, {2}}});
    check_cross_entropy(mesh, soft, {{{6, 1}, {6, 1}}, {{3, 2}, {3, 2}}});
  });
}

TEST(OperatorStrategy, CutsWeightsOfClassesAndLossesOfEachElement) {
  const auto numbers = indices({8}, 6);
  const auto weighted = [&](const Tensors& in) {
    return torch::cross_entropy_loss(in[0], in[1], in[2]);
  };
  const auto each = [&](const Tensors& in) {
    return torch::cross_entropy_loss(in[0], in[1], {}, at::Reduction::None);
  };
  const auto weights = waves({6}, 1).abs();
  const auto soft = torch::softmax(waves({8, 6}, 3), 1);
  run_ranks(4, [&](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto plain = leaf(waves({8, 6}));
    for (const OperatorStrategy& strategy :
         {OperatorStrategy{{4, 1}, {4}, {1}}, OperatorStrategy{{2, 2}, {2}, {2}}}) {
      const auto scores = whole_on(mesh, plain);
      const auto labels = full_batch(numbers, mesh);
      const auto of_classes = full_batch(weights, mesh);
      const auto loss =
          with_strategy(strategy, [&] { return weighted({scores, labels, of_classes}); });
      expect_close(loss, weighted({plain, numbers, weights}), to_string(strategy));
    }
    const Tensors cut = {whole_on(mesh, plain), full_batch(soft, mesh)};
    const auto loss = with_strategy({{4, 1}, {4, 1}}, [&] { return each(cut); });
    EXPECT_EQ(layout_of(loss), layout_of_parts(mesh, {4}));
    expect_close(loss, each({plain, soft}), "a loss for each element");
  });
}

// What lies as the strategy says already stays, whichever axes cut it.
TEST(OperatorStrategy, TakesTheWayThatMovesLeast) {
  run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"rows", 2}, {"columns", 2}});
    const auto w = distribute(waves({6, 8}), Layout(mesh, {Shard{1}, Replicate{}}));
    const auto x = full_batch(waves({8, 6}), mesh);
    const auto y = with_strategy({{2, 1}, {1, 2}}, [&] { return torch::matmul(x, w); });
    EXPECT_EQ(layout_of(y), Layout(mesh, {Shard{1}, Shard{0}}));
    const auto z = with_strategy({{1, 1}, {1, 2}}, [&] { return torch::matmul(x, w); });
    EXPECT_EQ(layout_of(z), Layout(mesh, {Shard{1}, Replicate{}}));
    expect_close(y, torch::matmul(waves({8, 6}), waves({6, 8})), "product");
  });
}

TEST(OperatorStrategy, TrainsThroughSeveralOperators) {
  run_ranks(6, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto numbers = indices({12}, 4);
    const Tensors plain = {leaf(waves({6, 10})), leaf(waves({10, 4}, 1))};
    const Tensors cut = {whole_on(mesh, plain[0]), whole_on(mesh, plain[1])};
    torch::optim::SGD plain_optimizer(plain, 0.1);
    torch::optim::SGD optimizer(cut, 0.1);
    const auto x = full_batch(waves({12, 6}, 2), mesh);
    const auto labels = full_batch(numbers, mesh);
    for (int step = 0; step < 3; ++step) {
      const auto expected = torch::cross_entropy_loss(
          torch::matmul(torch::relu(torch::matmul(waves({12, 6}, 2), plain[0])), plain[1]),
          numbers);
      const auto h = with_strategy({{3, 1}, {1, 2}}, [&] { return torch::matmul(x, cut[0]); });
      const auto a = with_strategy({{6, 1}}, [&] { return torch::relu(h); });
      const auto scores = with_strategy({{2, 3}, {3, 1}}, [&] { return torch::matmul(a, cut[1]); });
      const auto loss =
          with_strategy({{3, 2}, {3}}, [&] { return torch::cross_entropy_loss(scores, labels); });
      expect_close(loss, expected, "loss");
      plain_optimizer.zero_grad();
      optimizer.zero_grad();
      expected.backward();
      loss.backward();
      plain_optimizer.step();
      optimizer.step();
    }
    for (std::size_t i = 0; i < 2; ++i) expect_close(cut[i], plain[i], "trained");
  });
}

TEST(OperatorStrategy, TakesABatchWholeOrInSlices) {
  run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto batch = waves({8, 6});
    const auto w = full_batch(waves({6, 4}), mesh);
    const auto whole = full_batch(batch, mesh);
    EXPECT_TRUE(layout_of(whole).is_replicated());
    const auto slice = batch.chunk(4)[static_cast<std::size_t>(group.rank())].clone();
    const auto sliced = batch_of_slices(slice, mesh);
    EXPECT_EQ(layout_of(sliced), layout_of_parts(mesh, {4, 1}));
    EXPECT_TRUE(torch::equal(full(sliced), batch));
    for (const auto& x : {whole, sliced}) {
      const auto y = with_strategy({{4, 1}, {1, 1}}, [&] { return torch::matmul(x, w); });
      expect_close(y, torch::matmul(batch, waves({6, 4})), "product");
    }
  });
}

}  // namespace
}  // namespace trireme::test
