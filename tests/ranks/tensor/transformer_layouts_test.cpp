// SPDX-License-Identifier: Apache-2.0
// Transformers with the layouts that are found in their structure train like one process.
#include <trireme/plan/transformer_layouts.h>

#include <trireme/parallel/parallelize.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gtest/gtest.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/small_transformers.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme {
namespace {

using testing::run_ranks;

constexpr int kRanks = 2;
constexpr int kSteps = 3;

struct Network {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor()> loss;
};

torch::Tensor tokens() { return torch::arange(16).reshape({2, 8}) % 7; }

torch::Tensor loss_of_tokens(const torch::Tensor& logits) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), (tokens() + 1).flatten());
}

Network make(const std::string& family) {
  if (family == "gpt") {
    models::GPT net(
        models::GPTOptions{.vocabulary = 50, .sequence = 8, .hidden = 16, .layers = 2, .heads = 4});
    return {net.ptr(), [net]() mutable { return loss_of_tokens(net(tokens())); }};
  }
  if (family == "llama") {
    models::LLaMA net(test::small_llama());
    return {net.ptr(), [net]() mutable { return loss_of_tokens(net(tokens())); }};
  }
  if (family == "bert") {
    models::BERT net(test::small_bert());
    return {net.ptr(), [net]() mutable { return loss_of_tokens(net(tokens())); }};
  }
  models::ViT net(test::small_vit());
  return {net.ptr(), [net]() mutable {
            // Two images of three channels.
            const auto images = torch::linspace(-1, 1, 384, torch::kDouble);
            return torch::cross_entropy_loss(net(images.reshape({2, 3, 8, 8})),
                                             torch::tensor({1, 3}));
          }};
}

// Returns a loss for each step.
std::vector<double> train(Network& network) {
  torch::optim::SGD optimizer(network.module->parameters(), torch::optim::SGDOptions(0.1));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto loss = network.loss();
    losses.push_back(full(loss).item<double>());
    loss.backward();
    optimizer.step();
  }
  return losses;
}

class LayoutsOfATransformer : public ::testing::TestWithParam<std::string> {};

TEST_P(LayoutsOfATransformer, TrainLikeOneProcess) {
  Network plain = make(GetParam());
  plain.module->to(torch::kDouble);
  // One copy for each rank, made before ranks begin.
  std::vector<Network> copies;
  for (int rank = 0; rank < kRanks; ++rank) {
    Network& copy = copies.emplace_back(make(GetParam()));
    copy.module->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    const auto values = plain.module->named_parameters();
    for (auto& entry : copy.module->named_parameters()) entry.value().copy_(values[entry.key()]);
  }
  const std::vector<double> expected = train(plain);
  run_ranks(kRanks, [&](const comm::Group& group) {
    Network& network = copies[static_cast<std::size_t>(group.rank())];
    Plan plan;
    plan.mesh = {{"tensor", kRanks}};
    plan.layouts = transformer_layouts(*network.module);
    const Parallelized parallelized = parallelize(*network.module, plan, group);
    // Two layers for attention and two for the MLP at least, of both blocks.
    const auto is_sharded = [](const torch::Tensor& parameter) {
      return has_layout(parameter) && to_local(parameter.detach()).numel() < parameter.numel();
    };
    EXPECT_GE(std::ranges::count_if(network.module->parameters(), is_sharded), 8);
    const std::vector<double> losses = train(network);
    for (std::size_t step = 0; step < expected.size(); ++step) {
      EXPECT_NEAR(losses[step], expected[step], 1e-12) << "step " << step;
    }
    const auto values = plain.module->named_parameters();
    for (const auto& entry : network.module->named_parameters()) {
      EXPECT_TRUE(torch::allclose(full(entry.value().detach()), values[entry.key()], 0, 1e-12))
          << entry.key();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Families, LayoutsOfATransformer,
                         ::testing::Values("gpt", "llama", "bert", "vit"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace trireme
