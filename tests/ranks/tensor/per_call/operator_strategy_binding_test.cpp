// SPDX-License-Identifier: Apache-2.0
// Which operator a strategy is for.
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/dry_run/dry_run.h>
#include <trireme/tensor/operator_strategy.h>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/tensor/per_call/strategy_checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <mutex>
#include <string>
#include <vector>

namespace trireme::test {
namespace {

using ::testing::ElementsAre;
using testing::run_ranks;

TEST(OperatorStrategyBinding, IsForTheFirstOperatorAndTheInnermostScope) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto x = full_batch(waves({4, 4}), mesh);
    const auto scale = full_batch(torch::ones({}, torch::kDouble), mesh);
    torch::Tensor inner, zeros;
    const auto outer = with_strategy({{1, 2}}, [&] {
      inner = with_strategy({{2, 1}}, [&] {
        const auto number = scale * 2;  // without dims: passed over
        zeros = torch::zeros_like(x);   // a factory: passed over
        return torch::relu(x);
      });
      return torch::tanh(x);
    });
    EXPECT_TRUE(layout_of(zeros).is_replicated());
    EXPECT_EQ(layout_of(inner), layout_of_parts(mesh, {2, 1}));
    EXPECT_EQ(layout_of(outer), layout_of_parts(mesh, {1, 2}));
    EXPECT_TRUE(layout_of(torch::relu(x)).is_replicated());
    torch::Tensor kept;
    with_strategy({{2, 1}}, [&] { kept = torch::relu(x); });
    EXPECT_EQ(layout_of(kept), layout_of_parts(mesh, {2, 1}));
  });
}

TEST(OperatorStrategyBinding, PassesOverViewsUnlessItHasOneTuple) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto x = full_batch(waves({8, 6}), mesh);
    const auto w = full_batch(waves({4, 6}), mesh);
    const auto y = with_strategy({{1, 1}, {1, 2}}, [&] { return torch::matmul(x, w.t()); });
    EXPECT_EQ(layout_of(y), layout_of_parts(mesh, {1, 2}));
    const auto z = with_strategy({{2, 1}}, [&] { return torch::relu(w.t()); });
    EXPECT_EQ(layout_of(z), layout_of_parts(mesh, {1, 2}));
    expect_close(y, torch::matmul(waves({8, 6}), waves({4, 6}).t()), "product");
  });
}

// torch::nn::Linear is addmm(bias, input, weight.t()) on a matrix.
TEST(OperatorStrategyBinding, IsForModulesToo) {
  run_ranks(2, [](const comm::Group& group) {
    static std::mutex mutex;
    const DeviceMesh mesh = devices_mesh(group);
    std::unique_lock lock(mutex);  // ranks are threads, and share the generator
    torch::manual_seed(1);
    torch::nn::Linear layer(6, 4);
    lock.unlock();
    layer->to(torch::kDouble);
    const torch::NoGradGuard no_gradients;
    const auto expected = layer(waves({8, 6}));
    for (auto& parameter : layer->parameters()) {
      distribute_in_place(parameter, Layout::replicated(mesh));
    }
    const auto x = full_batch(waves({8, 6}), mesh);
    const auto y = with_strategy({{2}, {1, 1}, {1, 2}}, [&] { return layer(x); });
    EXPECT_EQ(layout_of(y), layout_of_parts(mesh, {1, 2}));
    expect_close(y, expected, "linear");
  });
}

TEST(OperatorStrategyBinding, WorksUnderAutocast) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto x = full_batch(waves({8, 6}).to(torch::kFloat), mesh);
    const auto w = full_batch(waves({6, 6}).to(torch::kFloat), mesh);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const auto h = torch::matmul(x, w);
    const auto y = with_strategy({{2, 1}, {1, 1}}, [&] { return torch::matmul(h, w); });
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(layout_of(y), layout_of_parts(mesh, {2, 1}));
  });
}

TEST(OperatorStrategyBinding, RunsAloneAndOnPlainTensors) {
  const auto x = waves({8, 6});
  const auto w = waves({6, 4});
  const auto y = with_strategy({{4, 1}, {1, 1}}, [&] { return torch::matmul(x, w); });
  EXPECT_TRUE(torch::equal(y, torch::matmul(x, w)));
  run_ranks(1, [&](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    EXPECT_TRUE(layout_of_parts(mesh, {4, 1}).is_replicated());
    const auto alone = with_strategy(
        {{4, 1}, {1, 1}}, [&] { return torch::matmul(full_batch(x, mesh), full_batch(w, mesh)); });
    EXPECT_TRUE(torch::equal(full(alone), torch::matmul(x, w)));
  });
}

TEST(OperatorStrategyBinding, TakesDropoutAndBatchNormWhole) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto x = full_batch(waves({8, 4}), mesh);
    const auto dropped =
        with_strategy({{1, 2}}, [&] { return torch::dropout(x, 0.5, /*train=*/true); });
    EXPECT_EQ(layout_of(dropped), layout_of_parts(mesh, {1, 2}));
    const auto kept = full(dropped) != 0;
    EXPECT_TRUE(torch::allclose(full(dropped), waves({8, 4}) * 2 * kept));

    const auto of_channels = [](double value) { return torch::full({4}, value, torch::kDouble); };
    const Tensors plain = {waves({8, 4, 3, 3}), of_channels(2), of_channels(1), of_channels(0),
                           of_channels(1)};
    Tensors cut;
    for (const auto& tensor : plain) cut.push_back(full_batch(tensor, mesh));
    const auto normalised = [](const Tensors& in) {
      return torch::batch_norm(in[0], in[1], in[2], in[3], in[4], /*training=*/true, 0.1, 1e-5,
                               /*cudnn_enabled=*/false);
    };
    const auto y =
        with_strategy({{2, 1, 1, 1}, {1}, {1}, {1}, {1}}, [&] { return normalised(cut); });
    EXPECT_EQ(layout_of(y), layout_of_parts(mesh, {2, 1, 1, 1}));
    expect_close(y, normalised(plain), "batch_norm");
    expect_close(cut[3], plain[3], "running mean");
  });
}

// On a mesh that no ranks stand behind.
TEST(OperatorStrategyBinding, IsFollowedByADryRun) {
  const auto mesh = DeviceMesh::unconnected({{"devices0", 2}, {"devices1", 2}});
  const tensor::DryRun dry_run;
  const auto x = full_batch(waves({8, 6}), mesh);
  const auto w = full_batch(waves({6, 8}), mesh);
  const auto y = with_strategy({{4, 1}, {1, 1}}, [&] { return torch::matmul(x, w); });
  const auto z = with_strategy({{1, 1}, {1, 4}}, [&] { return torch::matmul(w, y); });
  EXPECT_EQ(layout_of(y), layout_of_parts(mesh, {4, 1}));
  EXPECT_EQ(layout_of(z), layout_of_parts(mesh, {1, 4}));
  std::vector<std::string> names;
  for (const auto& call : dry_run.calls()) names.push_back(call.name);
  EXPECT_THAT(names, ElementsAre("redistribute", "aten::matmul", "redistribute", "aten::matmul"));
}

}  // namespace
}  // namespace trireme::test
