// SPDX-License-Identifier: Apache-2.0
// Means of gradients in fp16 and bf16 that are so large that their sum over ranks is not finite.
#include <trireme/parallel/parallelize.h>

#include <gtest/gtest.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdint>

namespace trireme {
namespace {

using comm::Group;
using testing::run_ranks;

class HalfPrecisionGradients : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ZeroLevels, HalfPrecisionGradients, ::testing::Values(0, 1, 2, 3));

// Gives the gradient `value` at every element of a weight of the type.
struct SteepImpl : torch::nn::Module {
  explicit SteepImpl(torch::ScalarType type)
      : weight(register_parameter("weight", torch::zeros({2048}, type))) {}
  torch::Tensor loss(double value) { return (weight * torch::full_like(weight, value)).sum(); }
  torch::Tensor weight;
};
TORCH_MODULE(Steep);

void expect_mean_of_large_gradients(const Group& group, const Plan& plan) {
  constexpr double kLarge = 65504.0 / 2;
  for (const auto type : {torch::kHalf, torch::kBFloat16}) {
    Steep net(type);
    torch::optim::SGD optimizer(net->parameters(), 1.0);
    Parallelized parallelized = parallelize(*net, plan, group);
    if (plan.zero_level > 0) parallelized.shard(optimizer);
    for (std::int64_t pass = 0; pass < plan.micro_batches; ++pass) {
      net->loss(kLarge / static_cast<double>(plan.micro_batches)).backward();
    }
    optimizer.step();
    parallelized.gather_parameters();
    const double mean = kLarge / static_cast<double>(plan.micro_batches);
    EXPECT_TRUE(torch::equal(net->weight, torch::full_like(net->weight, -mean)))
        << type << " over " << group.size() << " ranks, " << net->weight[0].item<double>();
  }
}

// The sum of the ranks was rounded to half precision, and so to infinity, before it was divided.
TEST_P(HalfPrecisionGradients, AreAveragedWhereTheirSumWouldOverflow) {
  for (const char* engine : {"shm", "threads"}) {
    testing::engine_of_ranks = engine;
    run_ranks(4, [](const Group& group) {
      expect_mean_of_large_gradients(group, {.zero_level = GetParam()});
      expect_mean_of_large_gradients(group, {.micro_batches = 2, .zero_level = GetParam()});
      expect_mean_of_large_gradients(group,
                                     {.zero_level = GetParam(), .divide_by_active_ranks = true});
      if (GetParam() == 0) return;
      expect_mean_of_large_gradients(group, {.zero_level = GetParam(), .shard_ranks = 2});
    });
  }
  testing::engine_of_ranks = "shm";
}

TEST(SparseHalfPrecisionGradients, AreAveragedWhereTheirSumWouldOverflow) {
  run_ranks(4, [](const Group& group) {
    torch::nn::Embedding words(torch::nn::EmbeddingOptions(8, 4).sparse(true));
    words->to(torch::kHalf);
    const Parallelized parallelized = parallelize(words, {}, group);
    const torch::Tensor rows = words->forward(torch::tensor({3}));
    rows.backward(torch::full_like(rows, 65504.0 / 2));
    const torch::Tensor gradient = words->weight.grad().to_dense();
    EXPECT_TRUE(torch::equal(gradient[3], torch::full({4}, 65504.0 / 2, torch::kHalf))) << gradient;
  });
}

}  // namespace
}  // namespace trireme
