// SPDX-License-Identifier: Apache-2.0
// Modules that are larger than the memory are recorded.
#include <trireme/parallel/deferred.h>

#include <trireme/graph/cut.h>

#include <tests/unit/graph/replays.h>

#include <chrono>
#include <iostream>

namespace trireme::test {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kHidden = 12288;
constexpr std::int64_t kLayers = 100;

// 181 billion parameters: 725 GB.
nn::TransformerEncoder huge() {
  const auto layer = nn::TransformerEncoderLayerOptions(kHidden, 96).dim_feedforward(4 * kHidden);
  return nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, kLayers));
}

TEST(CaptureDeferred, RecordsWhatHasNoMemory) {
  auto net = deferred([] { return huge(); });
  const Subject subject = {
      net.ptr(),
      [net](const Tensors& x) mutable -> Tensors { return {net->forward(x[0]).square().mean()}; },
      {torch::empty({2048, 8, kHidden}, at::kMeta)}};
  const auto start = std::chrono::steady_clock::now();
  const graph::Graph graph = captured(subject);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::cout << "recorded " << graph.num_nodes() << " operators of " << kLayers << " layers in "
            << took.count() << " s\n";
  EXPECT_GT(graph.num_nodes(), kLayers * 20);
  EXPECT_EQ(static_cast<std::int64_t>(graph.parameters.size()), kLayers * 12);
  double flops = 0;
  for (const graph::Node& node : graph.nodes) flops += node.flops;
  const double weights = 12.0 * kHidden * kHidden * kLayers;
  EXPECT_GT(flops, 2 * weights * 2048 * 8);
  EXPECT_LT(flops, 2.5 * weights * 2048 * 8);

  const std::vector<int> boundaries = graph::balance(graph, 10);
  for (std::size_t stage = 1; stage < 10; ++stage) {
    EXPECT_NEAR(boundaries[stage], graph.num_nodes() * static_cast<double>(stage) / 10,
                graph.num_nodes() / 25.0);
  }
}

TEST(CaptureDeferred, RunsOnceTheModuleHasItsValues) {
  torch::manual_seed(2);
  nn::Linear net = deferred([] { return nn::Linear(4, 3); });
  const Subject subject = {
      net.ptr(),
      [net](const Tensors& x) mutable -> Tensors { return {net->forward(x[0]).tanh().sum()}; },
      {torch::randn({2, 4}).requires_grad_()}};
  const auto graph = std::make_shared<const graph::Graph>(captured(subject));
  materialize(*net);
  expect_same(eager(subject), replayed(subject, graph, {0, graph->num_nodes()}));
}

}  // namespace
}  // namespace trireme::test
