// SPDX-License-Identifier: Apache-2.0
// LAMB over parts of parameters: the training of one process, within the rounding of norms.
#include <trireme/comm/monitor/flight_recorder.h>
#include <trireme/parallel/data_parallel.h>
#include <trireme/parallel/state_dict.h>

#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/parity.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme {
namespace {

using comm::Group;
using test::Case;
using testing::run_ranks;

// One process takes norms in fp32, parts have exact ones. A step then differs by a few units in the
// last place of the largest element.
constexpr double kBound = 1e-6;

void expect_close(const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& expected,
                  const std::string& what, double bound = kBound) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double largest = expected[i].detach().abs().max().item<double>();
    EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(), bound * largest)
        << what << ", parameter " << i;
  }
}

class ShardedLamb : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShardedLamb, ::testing::Values(2, 4));

// Buckets of one byte and of all bytes cut parameters at different places. Small ones have nothing
// on some ranks, and a tied one is listed and stepped twice.
TEST_P(ShardedLamb, TrainsAsOneProcessAtEveryLevelAndWithTheSameBits) {
  constexpr int kSteps = 6;
  const auto expected = test::train_alone({.ranks = GetParam(), .optimizer = "lamb"}, kSteps);
  std::vector<torch::Tensor> first;
  for (const int zero_level : {1, 2, 3}) {
    for (const std::int64_t bucket_bytes : {1, 1 << 20}) {
      const Case c{.ranks = GetParam(),
                   .bucket_bytes = bucket_bytes,
                   .zero_level = zero_level,
                   .optimizer = "lamb"};
      std::vector<std::vector<torch::Tensor>> of_rank(static_cast<std::size_t>(GetParam()));
      run_ranks(GetParam(), [&](const Group& group) {
        of_rank[static_cast<std::size_t>(group.rank())] = test::train_parallel(c, kSteps, group);
      });
      if (first.empty()) first = of_rank[0];
      for (const auto& parameters : of_rank) {
        EXPECT_TRUE(test::all_equal(parameters, first)) << ::testing::PrintToString(c);
      }
      expect_close(of_rank[0], expected, ::testing::PrintToString(c));
    }
  }
  // The bound is about norms: a step by the norms of parts is far beyond it.
  const auto other = test::train_alone({.ranks = GetParam(), .optimizer = "adamw"}, kSteps);
  EXPECT_FALSE(test::all_equal(other, expected));
}

TEST(ShardedLambOf, HybridShardingAndLevelsByNameAndOffloadingIsThatOfOneProcess) {
  for (const Case& c :
       {Case{.ranks = 4, .zero_level = 2, .optimizer = "lamb", .shard_ranks = 2},
        Case{.ranks = 3, .zero_level = 3, .optimizer = "lamb", .offload_optimizer = true},
        Case{.ranks = 3,
             .bucket_bytes = 512,
             .zero_level = 2,
             .optimizer = "lamb",
             .zero_level_of = {{"first", 3}, {"second.weight", 0}, {"conv", 1}}}}) {
    const auto expected = test::train_alone(c, 4);
    run_ranks(c.ranks, [&](const Group& group) {
      expect_close(test::train_parallel(c, 4, group), expected, ::testing::PrintToString(c));
    });
  }
}

// However many parameters there are, their squares travel together.
TEST(ShardedLambOf, OneStepTakesOneAllReduce) {
  testing::engine_of_ranks = "gloo";  // it records what is sent
  run_ranks(2, [](const Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(16, 16), torch::nn::Linear(16, 16),
                              torch::nn::Linear(16, 16));
    const auto optimizer = lamb(net->parameters());
    const ShardedDataParallel parallel(net, *optimizer, group, 2);
    net->forward(torch::ones({2, 16})).sum().backward();
    const comm::Group ranks = parallel.sharing().group;
    const std::size_t before = ranks.recorder().records().size();
    optimizer->step();
    const auto records = ranks.recorder().records();
    ASSERT_EQ(records.size(), before + 1);
    EXPECT_EQ(records.back().label, "norms of parameters");
  });
  testing::engine_of_ranks = "shm";
}

// Given back whole, it is stepped as on one process, and cut again.
TEST(ShardedLambOf, GivesTheOptimizerBackWhole) {
  const Case c{.ranks = 2, .optimizer = "lamb"};
  const auto expected = test::train_alone(c, 4);
  for (const int zero_level : {1, 2, 3}) {
    run_ranks(2, [&](const Group& group) {
      test::Net net = test::make_net(1);
      const auto optimizer = test::make_optimizer("lamb", net->parameters());
      Parallelized parallel =
          parallelize(*net, {.bucket_bytes = 4096, .zero_level = zero_level}, group);
      parallel.shard(*optimizer);
      for (int step = 0; step < 4; ++step) {
        test::loss_of(net, test::make_batch(step, group.rank())).backward();
        optimizer->step();
        parallel.unshard(*optimizer);
        std::int64_t steps = -1;
        for (const auto& [key, state] : optimizer->state()) {
          const auto& kept = dynamic_cast<torch::optim::AdamWParamState&>(*state);
          steps = std::max(steps, kept.step());
        }
        EXPECT_GE(steps, step + 1);
        parallel.shard(*optimizer);
      }
      parallel.gather_parameters();
      expect_close(test::copies(*net), expected, "ZeRO " + std::to_string(zero_level));
      // On its own again, with no rank to wait for.
      parallel.unshard(*optimizer);
      if (group.rank() != 0 || zero_level == 3) return;
      const auto before = test::copies(*net);
      for (torch::Tensor& parameter : net->parameters()) {
        parameter.mutable_grad() = torch::ones_like(parameter);
      }
      optimizer->step();
      EXPECT_FALSE(test::all_equal(before, test::copies(*net)));
    });
  }
}

TEST(ShardedLambOf, KeepsItsStateInFullState) {
  run_ranks(2, [](const Group& group) {
    std::vector<FullState> states;
    for (const int zero_level : {1, 3}) {
      test::Net net = test::make_net(1);
      const auto optimizer = test::make_optimizer("lamb", net->parameters());
      Parallelized parallel =
          parallelize(*net, {.bucket_bytes = 3000, .zero_level = zero_level}, group);
      parallel.shard(*optimizer);
      const auto train = [&](int step) {
        optimizer->zero_grad();
        test::loss_of(net, test::make_batch(step, group.rank())).backward();
        optimizer->step();
      };
      train(0);
      train(1);
      FullState& state = states.emplace_back(full_state(parallel, *net, *optimizer));
      if (group.rank() == 0) {
        EXPECT_FALSE(state.optimizer.tensors.empty());
      }
      train(2);  // with the parts that it has again
    }
    if (group.rank() != 0) return;
    for (const auto& [name, tensor] : states[0].optimizer.tensors) {
      EXPECT_TRUE(torch::equal(tensor, states[1].optimizer.tensors.at(name))) << name;
    }
  });
}

// Returns the case in double precision: LAMB scales up the gradients of the biases of keys, which
// are zero but for rounding.
test::NetworkCase in_double(test::NetworkCase network) {
  const auto convert = [](const std::function<test::Network()>& make) {
    return [make] {
      test::Network made = make();
      made.module->to(torch::kDouble);
      return made;
    };
  };
  network.make = convert(network.make);
  if (network.make_twin) network.make_twin = convert(network.make_twin);
  return network;
}

// A tied weight is stepped on two stages, which cut it at different places.
TEST(ShardedLambOf, StagesTrainAsOneProcess) {
  for (const auto& each : test::network_cases()) {
    if (each.name != "language" && each.name != "tied") continue;
    const test::NetworkCase network = in_double(each);
    test::Arranged arranged{.data = 2, .optimizer = "lamb"};
    const test::Outcome expected = test::alone(network, arranged);
    for (arranged.zero_level = 1; arranged.zero_level <= 3; ++arranged.zero_level) {
      run_ranks(4, [&](const Group& group) {
        const test::Outcome got = test::train(network.make(), arranged, group);
        const std::string what = ::testing::PrintToString(arranged);
        expect_close(got.parameters, expected.parameters, what, 1e-9);
      });
    }
  }
}

}  // namespace
}  // namespace trireme
