// SPDX-License-Identifier: Apache-2.0
// Parts so large that an optimizer steps them in pieces: training has the bits of one process, and
// the state is that of the whole parameters.
#include <trireme/parallel/data_parallel.h>
#include <trireme/parallel/state_dict.h>

#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <functional>
#include <memory>

namespace trireme {
namespace {

using comm::Group;
using test::all_equal;
using test::copies;
using testing::run_ranks;

// The first weight has pieces on two ranks that hold other weights too, and the last piece of a
// part is shorter than the others.
torch::nn::Sequential make_net() {
  const torch::NoGradGuard no_grad;
  torch::nn::Sequential net(torch::nn::Linear(700, 801), torch::nn::ReLU(),
                            torch::nn::Linear(801, 5));
  auto generator = at::detail::createCPUGenerator(7);
  for (auto& parameter : net->parameters()) {
    parameter.copy_(torch::rand(parameter.sizes(), generator, parameter.options()) / 30 - 0.015);
  }
  return net;
}

void train(torch::nn::Sequential& net, torch::optim::Optimizer& optimizer, int first,
           const Group& group) {
  for (int step = first; step < first + 2; ++step) {
    optimizer.zero_grad();
    auto generator = at::detail::createCPUGenerator(10 * static_cast<std::uint64_t>(step) +
                                                    static_cast<std::uint64_t>(group.rank()));
    net->forward(torch::rand({3, 700}, generator, torch::kFloat)).square().mean().backward();
    optimizer.step();
  }
}

namespace optim = torch::optim;
using Parameters = std::vector<torch::Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const Parameters&)>;

const std::vector<MakeOptimizer>& all_optimizers() {
  static const std::vector<MakeOptimizer> all = {
      [](const Parameters& parameters) {
        return std::make_unique<optim::SGD>(
            parameters, optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
      },
      [](const Parameters& parameters) {
        return std::make_unique<optim::Adam>(
            parameters, optim::AdamOptions(0.01).amsgrad(true).weight_decay(0.1));
      },
      [](const Parameters& parameters) {
        return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions(0.01));
      },
      [](const Parameters& parameters) {
        return std::make_unique<optim::RMSprop>(
            parameters, optim::RMSpropOptions(0.01).centered(true).momentum(0.5));
      },
      [](const Parameters& parameters) {
        return std::make_unique<optim::Adagrad>(
            parameters, optim::AdagradOptions(0.01).initial_accumulator_value(0.1));
      },
  };
  return all;
}

void expect_equal(const FullState& a, const FullState& b) {
  EXPECT_EQ(a.optimizer.scalars, b.optimizer.scalars);
  ASSERT_EQ(a.optimizer.tensors.size(), b.optimizer.tensors.size());
  for (const auto& [name, tensor] : a.optimizer.tensors) {
    EXPECT_TRUE(torch::equal(tensor, b.optimizer.tensors.at(name))) << name;
  }
  for (const auto& [name, tensor] : a.module) {
    EXPECT_TRUE(torch::equal(tensor, b.module.at(name))) << name;
  }
}

class OptimizerPieces : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ZeroLevels, OptimizerPieces, ::testing::Values(1, 2, 3));

TEST_P(OptimizerPieces, AreSteppedAsTheWhole) {
  run_ranks(2, [](const Group& group) {
    for (const MakeOptimizer& make : all_optimizers()) {
      torch::nn::Sequential plain = make_net();
      const auto plain_optimizer = make(plain->parameters());
      Parallelized plain_parallel = parallelize(*plain, {}, group);
      torch::nn::Sequential net = make_net();
      const auto optimizer = make(net->parameters());
      Parallelized parallel = parallelize(*net, {.zero_level = GetParam()}, group);
      parallel.shard(*optimizer);
      EXPECT_GT(optimizer->parameters().size(), net->parameters().size());

      train(plain, *plain_optimizer, 0, group);
      train(net, *optimizer, 0, group);
      expect_equal(full_state(parallel, *net, *optimizer),
                   full_state(plain_parallel, *plain, *plain_optimizer));
      // On with a state that was cut again.
      train(plain, *plain_optimizer, 2, group);
      train(net, *optimizer, 2, group);
      EXPECT_TRUE(all_equal(copies(*net), copies(*plain)));

      parallel.unshard(*optimizer);
      EXPECT_TRUE(all_equal(optimizer->parameters(), plain_optimizer->parameters()));
    }
  });
}

TEST_P(OptimizerPieces, AreOnePartInAPartialState) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Sequential net = make_net();
    optim::Adam optimizer(net->parameters(), optim::AdamOptions(0.01));
    Parallelized parallel = parallelize(*net, {.zero_level = GetParam()}, group);
    parallel.shard(optimizer);
    train(net, optimizer, 0, group);
    const auto stepped = optimizer.parameters();

    PartialState parts = partial_state(parallel, *net, optimizer);
    EXPECT_TRUE(
        std::ranges::equal(stepped, optimizer.parameters(), std::mem_fn(&at::Tensor::is_same)));
    const auto& exp_avg = parts.optimizer.tensors.at("optimizer.0.weight.exp_avg");
    EXPECT_EQ(exp_avg.sizes(), parts.parameters.at("0.weight").sizes());
    const auto own = exp_avg.clone();
    train(net, optimizer, 2, group);
    EXPECT_FALSE(torch::equal(exp_avg, own));  // the optimizer's own memory, as promised
    const std::vector<torch::Tensor> after = copies(*net);

    // Back to what it was, and the same way again.
    PartialState start;
    {
      torch::nn::Sequential other = make_net();
      optim::Adam adam(other->parameters(), optim::AdamOptions(0.01));
      Parallelized made = parallelize(*other, {.zero_level = GetParam()}, group);
      made.shard(adam);
      train(other, adam, 0, group);
      start = partial_state(made, *other, adam);
      load_partial_state(start, parallel, *net, optimizer);
    }
    train(net, optimizer, 2, group);
    EXPECT_TRUE(all_equal(copies(*net), after));
  });
}

}  // namespace
}  // namespace trireme
