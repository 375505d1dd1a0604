// SPDX-License-Identifier: Apache-2.0
// Recomputation under data parallel, ZeRO, synchronized batch norm and tensor parallelism: the bits
// of the same training without it.
#include <trireme/parallel/recompute.h>

#include <trireme/comm/collectives.h>
#include <trireme/parallel/data_parallel.h>
#include <trireme/parallel/distribute_module.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/tensor/language_model.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace trireme {
namespace {

using comm::Group;
using test::all_equal;
using test::make_batch;
using test::make_net;
using testing::run_ranks;
using Tensors = std::vector<torch::Tensor>;

torch::Tensor call(bool is_recomputed, const OneToOne& function, const torch::Tensor& input) {
  return is_recomputed ? recompute(function, input) : function(input);
}

// What NetImpl::forward does, in three parts, one of them inside another.
torch::Tensor step_loss(test::Net& net, const torch::Tensor& images, bool is_recomputed) {
  torch::Tensor x = call(
      is_recomputed,
      [&](const torch::Tensor& in) { return torch::relu(net->norm(net->conv(in))).flatten(1); },
      images);
  x = call(
      is_recomputed,
      [&, is_recomputed](const torch::Tensor& in) {
        const torch::Tensor h = torch::relu(net->first(in));
        return torch::relu(call(
            is_recomputed, [&](const torch::Tensor& each) { return net->second(each).tanh(); }, h));
      },
      x);
  // Tied with the weight inside.
  x = net->third(x) * net->scale.sum().to(torch::kFloat);
  return x.square().mean();
}

// Parameters and buffers after three steps.
Tensors trained(const Plan& plan, const Group& group, bool is_recomputed) {
  test::Net net = make_net(1);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  Parallelized parallelized = parallelize(*net, plan, group);
  parallelized.shard(optimizer);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    for (std::int64_t i = 0; i < plan.micro_batches; ++i) {
      const std::int64_t number = group.rank() * plan.micro_batches + i;
      step_loss(net, make_batch(step, number), is_recomputed).backward();
    }
    optimizer.step();
  }
  Tensors all = test::copies(*net);
  for (const torch::Tensor& buffer : net->buffers()) all.push_back(buffer.clone());
  return all;
}

class RecomputeZeroLevel : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ZeroLevels, RecomputeZeroLevel, ::testing::Values(0, 1, 2, 3));

TEST_P(RecomputeZeroLevel, TrainsBitByBitAsWithout) {
  for (const std::int64_t micro_batches : {1, 2}) {
    for (const bool is_synchronized : {false, true}) {
      run_ranks(3, [&](const Group& group) {
        const Plan plan = {.micro_batches = micro_batches,
                           .bucket_bytes = 1000,
                           .zero_level = GetParam(),
                           .gathered_buckets = 2,
                           .sync_batch_norm = is_synchronized};
        EXPECT_TRUE(all_equal(trained(plan, group, false), trained(plan, group, true)))
            << micro_batches << " micro-batches, synchronized: " << is_synchronized;
      });
    }
  }
}

TEST(RecomputeOverRanks, SendsBucketsWhileBackwardRuns) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear first(64, 64);
    torch::nn::Linear second(64, 64);
    torch::nn::Sequential net(first, second);
    const Parallelized parallelized = parallelize(*net, {.bucket_bytes = 64L * 64 * 4}, group);
    Tensors gradients[2];
    for (const bool is_recomputed : {false, true}) {
      net->zero_grad();
      torch::Tensor x = torch::full({4, 64}, 0.1 * (1 + group.rank()));
      for (const torch::nn::Linear& layer : {first, second}) {
        torch::nn::Linear own = layer;
        x = call(is_recomputed, [own](const torch::Tensor& h) mutable { return own(h).tanh(); }, x);
      }
      x.sum().backward();
      for (const torch::Tensor& parameter : net->parameters()) {
        gradients[is_recomputed].push_back(parameter.grad().clone());
      }
    }
    EXPECT_TRUE(all_equal(gradients[0], gradients[1]));
  });
}

TEST(RecomputeOverRanks, ComputesDistributedTensorsAgain) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto tokens = torch::arange(12).reshape({2, 6}).remainder(10);
    Tensors gradients[2];
    for (const bool is_recomputed : {false, true}) {
      auto model = test::seeded();
      distribute_module(*model, mesh, test::megatron());
      const torch::Tensor loss = call(
          is_recomputed, [&](const torch::Tensor& in) { return test::loss_of(model, in); }, tokens);
      loss.backward();
      gradients[is_recomputed].push_back(full(loss.detach()));
      for (const torch::Tensor& parameter : model->parameters()) {
        gradients[is_recomputed].push_back(full(parameter.grad()));
      }
    }
    EXPECT_TRUE(all_equal(gradients[0], gradients[1]));
  });
}

}  // namespace
}  // namespace trireme
