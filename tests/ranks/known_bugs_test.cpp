// SPDX-License-Identifier: Apache-2.0
// Mistakes that data parallel training elsewhere has had, each under its name: what it must not be
// here, at every ZeRO level. Of the same list, sharded_test.cpp has the overflow that one rank
// alone sees, and tests/unit/train/metrics_test.cpp the mean of means of what is reported.
#include <trireme/optim/gradients.h>
#include <trireme/parallel/parallelize.h>

#include <gtest/gtest.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/zero_levels.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace trireme {
namespace {

using comm::Group;
using testing::run_ranks;

class KnownBug : public ::testing::TestWithParam<int> {
 protected:
  // Every parameter in a bucket of its own, cut for all ranks.
  static Plan plan(std::int64_t micro_batches = 1) {
    return {.micro_batches = micro_batches,
            .bucket_bytes = 1,
            .first_bucket_bytes = 1,
            .zero_level = GetParam()};
  }
};
INSTANTIATE_TEST_SUITE_P(ZeroLevels, KnownBug, ::testing::Range(0, test::kHighestZeroLevel + 1));

constexpr std::int64_t kElements = 256;

// The gradient is whatever the forward's input is.
struct VectorImpl : torch::nn::Module {
  torch::Tensor weight = register_parameter("weight", torch::zeros({kElements}));
  torch::Tensor forward(const torch::Tensor& gradient) { return (weight * gradient).sum(); }
};
TORCH_MODULE(Vector);

TEST_P(KnownBug, NormCountsReplicatedParametersOncePerRank) {
  run_ranks(3, [](const Group& group) {
    Vector net;
    const torch::Tensor replicated = torch::zeros({4}).set_requires_grad(true);
    torch::optim::SGD optimizer({net->weight, replicated}, 0.1);
    Parallelized parallelized = parallelize(*net, plan(), group);
    parallelized.shard(optimizer);
    net->forward(torch::full({kElements}, 2.0F)).backward();
    replicated.mutable_grad() = torch::full({4}, 3.0F);
    EXPECT_EQ(global_norm(optimizer, parallelized.sharing()), std::sqrt(4.0 * kElements + 4 * 9));
    EXPECT_EQ(clip_by_global_norm(optimizer, 1, parallelized.sharing()).item<double>(),
              std::sqrt(4.0 * kElements + 4 * 9));
    EXPECT_NEAR(global_norm(optimizer, parallelized.sharing()), 1, 1e-6);
  });
}

TEST_P(KnownBug, InfinityNormIsASumOverRanks) {
  run_ranks(3, [](const Group& group) {
    Vector net;
    const torch::Tensor replicated = torch::zeros({4}).set_requires_grad(true);
    torch::optim::SGD optimizer({net->weight, replicated}, 0.1);
    Parallelized parallelized = parallelize(*net, plan(), group);
    parallelized.shard(optimizer);
    // The largest is in the last rank's part, and negative.
    net->forward(-torch::arange(kElements)).backward();
    EXPECT_EQ(global_maximum(optimizer, parallelized.sharing()), kElements - 1);
    replicated.mutable_grad() = torch::full({4}, 1000.0F);
    EXPECT_EQ(global_maximum(optimizer, parallelized.sharing()), 1000);
  });
}

TEST_P(KnownBug, GradientsAreDoubledInAGroupOfOne) {
  for (const bool set_to_none : {true, false}) {
    Vector net;
    torch::optim::SGD optimizer(net->parameters(), 1);
    Parallelized parallelized = parallelize(*net, plan(), Group::self());
    parallelized.shard(optimizer);
    for (int step = 1; step <= 3; ++step) {
      optimizer.zero_grad(set_to_none);
      net->forward(torch::ones({kElements})).backward();
      EXPECT_TRUE(torch::equal(optimizer.param_groups()[0].params()[0].grad().flatten(),
                               torch::ones({kElements})));
      optimizer.step();
      EXPECT_TRUE(torch::equal(net->weight, torch::full({kElements}, -step)));
    }
  }
}

// An embedding that is the output's weight too, registered under both names.
struct TiedImpl : torch::nn::Module {
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(32, 8));
  torch::Tensor head = register_parameter("head", words->weight);
  torch::Tensor forward(const torch::Tensor& text) {
    return torch::linear(words(text), head).square().mean();
  }
};
TORCH_MODULE(Tied);

TEST_P(KnownBug, TiedWeightsAreReducedTwice) {
  const torch::Tensor start = torch::rand({32, 8});
  const auto text_of = [](int rank) { return torch::arange(4) + 3 * rank; };
  Tied alone;
  {
    const torch::NoGradGuard no_grad;
    alone->head.copy_(start);
  }
  for (int rank = 0; rank < 3; ++rank) alone->forward(text_of(rank)).backward();
  const torch::Tensor expected = alone->head.grad() / 3;
  run_ranks(3, [&](const Group& group) {
    Tied net;
    {
      const torch::NoGradGuard no_grad;
      net->head.copy_(start);
    }
    torch::optim::SGD optimizer({net->head}, 1);
    Parallelized parallelized = parallelize(*net, plan(), group);
    parallelized.shard(optimizer);
    net->forward(text_of(group.rank())).backward();
    EXPECT_FLOAT_EQ(static_cast<float>(global_norm(optimizer, parallelized.sharing())),
                    expected.norm().item<float>());
    optimizer.step();
    EXPECT_TRUE(torch::equal(net->words->weight, start - expected));
    EXPECT_TRUE(net->words->weight.is_same(net->head));
  });
}

// Trains one step on parts of a batch, each with so many rows, and returns the gradient and what
// the ranks report as loss: `weight(rows)` times the mean over a part.
struct Result {
  torch::Tensor gradient;
  double loss = 0;
};
template <typename Weight>
Result train_on_parts(const Plan& plan, const std::vector<std::vector<std::int64_t>>& rows_of_rank,
                      const torch::Tensor& batch, const Weight& weight) {
  Result result;
  run_ranks(static_cast<int>(rows_of_rank.size()), [&](const Group& group) {
    Vector net;
    torch::optim::SGD optimizer(net->parameters(), 1);
    Parallelized parallelized = parallelize(*net, plan, group);
    parallelized.shard(optimizer);
    std::int64_t begin = 0;
    for (int rank = 0; rank < group.rank(); ++rank) {
      const auto& rows = rows_of_rank[static_cast<std::size_t>(rank)];
      begin = std::accumulate(rows.begin(), rows.end(), begin);
    }
    double reported = 0;
    for (const std::int64_t rows : rows_of_rank[static_cast<std::size_t>(group.rank())]) {
      const torch::Tensor part = batch.narrow(0, begin, rows);
      begin += rows;
      const torch::Tensor loss = (net->weight - part).square().sum(1).mean() * weight(rows);
      reported += loss.item<double>();
      parallelized.add_to_step(torch::tensor(reported));
      loss.backward();
    }
    optimizer.step();
    const torch::Tensor moved = -net->weight.detach();  // from zero, by the gradient
    if (group.rank() != 0) return;
    result = {moved.clone(),
              parallelized.sum_of_step() / static_cast<double>(group.size() * plan.micro_batches)};
  });
  return result;
}

// Parts weigh the same whatever their size, so that a loop may weigh each by its rows.
void expect_whole_batch(const Plan& plan,
                        const std::vector<std::vector<std::int64_t>>& rows_of_rank) {
  std::int64_t total = 0;
  std::int64_t parts = 0;
  for (const auto& rows : rows_of_rank) {
    total = std::accumulate(rows.begin(), rows.end(), total);
    parts += static_cast<std::int64_t>(rows.size());
  }
  const torch::Tensor batch = torch::rand({total, kElements});
  Vector whole;
  const torch::Tensor loss = (whole->weight - batch).square().sum(1).mean();
  loss.backward();

  const Result result = train_on_parts(plan, rows_of_rank, batch, [&](std::int64_t rows) {
    return static_cast<double>(rows * parts) / static_cast<double>(total);
  });
  EXPECT_TRUE(torch::allclose(result.gradient, whole->weight.grad(), 1e-5, 1e-6));
  EXPECT_NEAR(result.loss, loss.item<double>(), 1e-4);

  // Without weights it is the mean of the means of the parts, as documented, and another number.
  const Result plain = train_on_parts(plan, rows_of_rank, batch, [](std::int64_t) { return 1.0; });
  torch::Tensor mean_of_means = torch::zeros({kElements});
  std::int64_t begin = 0;
  for (const auto& rows_of : rows_of_rank) {
    for (const std::int64_t rows : rows_of) {
      mean_of_means -= 2 * batch.narrow(0, begin, rows).mean(0) / parts;
      begin += rows;
    }
  }
  EXPECT_TRUE(torch::allclose(plain.gradient, mean_of_means, 1e-5, 1e-6));
  EXPECT_FALSE(torch::allclose(plain.gradient, whole->weight.grad(), 1e-2, 1e-3));
}

TEST_P(KnownBug, LastSmallerMicroBatchIsWeightedWrongly) {
  expect_whole_batch(plan(/*micro_batches=*/3), {{4, 4, 1}, {4, 4, 1}});
}

TEST_P(KnownBug, MeanOfMeansOfRanksWithUnequalParts) {
  expect_whole_batch(plan(), {{5}, {1}, {3}});
}

}  // namespace
}  // namespace trireme
