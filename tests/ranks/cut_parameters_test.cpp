// SPDX-License-Identifier: Apache-2.0
// ZeRO level 3 besides its bits, which parity_test.cpp compares: how much is whole at a time, what
// may be done with a parameter that is not.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/data_parallel.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/cut_stack.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

namespace trireme {
namespace {

using comm::Group;
using test::all_equal;
using test::copies;
using test::cut;
using test::loss_of;
using test::make_batch;
using test::make_net;
using test::num_whole;
using test::Stack;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_catching;

TEST(CutParameters, AreWholeAFewAtATime) {
  run_ranks(2, [](const Group& group) {
    for (const std::int64_t gathered_buckets : {2, 3, 5}) {
      Stack net(8);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      Parallelized parallelized = parallelize(*net, cut(gathered_buckets), group);
      parallelized.shard(optimizer);
      EXPECT_EQ(num_whole(*net), 0);
      for (int step = 0; step < 3; ++step) {
        const torch::Tensor y = net->forward(torch::ones({4, 32}));
        EXPECT_LE(num_whole(*net), gathered_buckets);
        y.sum().backward();
        EXPECT_LE(num_whole(*net), gathered_buckets);
        optimizer.step();
      }
      parallelized.gather_parameters();
      EXPECT_EQ(num_whole(*net), 8);
      net->forward(torch::ones({4, 32})).sum().backward();
      EXPECT_EQ(num_whole(*net), 8);  // until the next step
      optimizer.step();
      net->forward(torch::ones({4, 32}));
      EXPECT_LE(num_whole(*net), gathered_buckets);
    }
  });
}

TEST(CutParameters, StayWholeFromForwardToBackwardWhereThePlanKeepsThem) {
  run_ranks(2, [](const Group& group) {
    Stack net(6);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Parallelized parallelized = parallelize(*net, cut(0), group);
    parallelized.shard(optimizer);
    net->forward(torch::ones({4, 32})).sum().backward();
    EXPECT_EQ(num_whole(*net), 6);
    optimizer.step();
    static_cast<void>(net->layers[5]->bias.sum());
    EXPECT_LE(num_whole(*net), 2);  // it, and the one predicted
  });
}

// One operator that is given all parameters at once, and views that are older than a step.
TEST(CutParameters, AreWholeForWhateverTouchesThem) {
  run_ranks(2, [](const Group& group) {
    Stack net(5);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Parallelized parallelized = parallelize(*net, cut(2), group);
    parallelized.shard(optimizer);
    const auto before = copies(*net);
    const torch::Tensor old_view = net->layers[1]->weight.detach().t();
    std::vector<torch::Tensor> flattened;
    for (const torch::Tensor& parameter : net->parameters()) {
      flattened.push_back(parameter.flatten());
    }
    torch::Tensor loss = torch::cat(flattened).square().sum();
    loss.backward();
    optimizer.step();
    const auto after = copies(*net);
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_TRUE(torch::allclose(after[i], before[i] * 0.8, 1e-5, 1e-7));
    }
    EXPECT_TRUE(torch::equal(old_view, after[2].t()));
  });
}

TEST(CutParameters, KeepWhatIsWrittenIntoThem) {
  run_ranks(3, [](const Group& group) {
    Stack net(6);
    torch::optim::SGD optimizer(net->parameters(), 0.5);
    Parallelized parallelized = parallelize(*net, cut(2), group);
    parallelized.shard(optimizer);
    {
      const torch::NoGradGuard no_grad;
      for (auto& layer : net->layers) layer->weight.fill_(0.01).t().select(0, 3).fill_(2);
    }
    for (const auto& layer : net->layers) {
      EXPECT_EQ(layer->weight.sum().item<double>(), layer->weight.sum().item<double>());
      EXPECT_NEAR(layer->weight.detach()[4][3].item<double>(), 2, 0);
      EXPECT_NEAR(layer->weight.detach()[31][30].item<double>(), 0.01, 1e-7);
    }
    // And an optimizer steps what was written.
    net->layers[2]->weight.sum().backward();
    {
      const torch::NoGradGuard no_grad;
      net->layers[2]->weight.add_(1);
    }
    optimizer.step();
    EXPECT_NEAR(net->layers[2]->weight.detach()[4][3].item<double>(), 2.5, 1e-6);
  });
}

TEST(CutParameters, KeepWhatIsWrittenIntoThemWhereOptimizersStepInHostMemory) {
  run_ranks(2, [](const Group& group) {
    for (const int zero_level : {1, 2, 3}) {
      Stack net(4);
      torch::optim::SGD optimizer(net->parameters(), 0.5);
      Plan plan = cut(2);
      plan.zero_level = zero_level;
      plan.offload_optimizer = true;
      Parallelized parallelized = parallelize(*net, plan, group);
      parallelized.shard(optimizer);
      {
        const torch::NoGradGuard no_grad;
        for (auto& layer : net->layers) layer->weight.fill_(2);
      }
      net->layers[1]->weight.sum().backward();
      optimizer.step();
      EXPECT_TRUE(torch::equal(net->layers[1]->weight.detach(), torch::full({32, 32}, 1.5)));
      EXPECT_TRUE(torch::equal(net->layers[3]->weight.detach(), torch::full({32, 32}, 2.0)));
    }
  });
}

TEST(CutParameters, OfRecurrentNetworksTrain) {
  run_ranks(2, [](const Group& group) {
    std::vector<std::vector<torch::Tensor>> ends;
    for (const int zero_level : {0, 3}) {
      torch::nn::LSTM net(torch::nn::LSTMOptions(6, 16).num_layers(3).bidirectional(true));
      {
        auto generator = at::detail::createCPUGenerator(4);
        const torch::NoGradGuard no_grad;
        for (auto& parameter : net->parameters()) {
          parameter.copy_(torch::rand(parameter.sizes(), generator, parameter.options()) - 0.5);
        }
      }
      torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
      Plan plan = cut(2);
      plan.zero_level = zero_level;
      plan.bucket_bytes = plan.first_bucket_bytes = 1000;
      Parallelized parallelized = parallelize(*net, plan, group);
      parallelized.shard(optimizer);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const auto input = torch::full({5, 2, 6}, 0.1 * (step + group.rank()));
        std::get<0>(net(input)).square().mean().backward();
        optimizer.step();
      }
      ends.push_back(copies(*net));
    }
    EXPECT_TRUE(all_equal(ends[0], ends[1]));
  });
}

// What one rank does alone with what is whole must not make it predict other buckets.
TEST(CutParameters, MayBeLookedAtByOneRankWhileAllAreWhole) {
  run_ranks(2, [](const Group& group) {
    Stack net(6);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Parallelized parallelized = parallelize(*net, cut(), group);
    parallelized.shard(optimizer);
    for (int step = 0; step < 3; ++step) {
      net->forward(torch::ones({4, 32})).sum().backward();
      optimizer.step();
      parallelized.gather_parameters();
      if (group.rank() != 0) continue;
      for (const std::size_t layer : {3U, 0U, 5U, 1U}) {
        EXPECT_GT(net->layers[layer]->weight.norm().item<double>(), 0);
      }
    }
    net->forward(torch::ones({4, 32})).sum().backward();
  });
}

// Connects by another engine than the other tests while it lives.
class WithEngine {
 public:
  explicit WithEngine(std::string engine)
      : before_(std::exchange(testing::engine_of_ranks, std::move(engine))) {}
  WithEngine(const WithEngine&) = delete;
  WithEngine& operator=(const WithEngine&) = delete;
  ~WithEngine() { testing::engine_of_ranks = before_; }

 private:
  std::string before_;
};

// Over Gloo this used to end the process.
TEST(CutParameters, TellRanksThatNeedOthersThanTheRest) {
  for (const std::string engine : {"shm", "gloo", "threads"}) {
    const WithEngine by(engine);
    const auto thrown = run_ranks_catching(
        2,
        [](const Group& group) {
          Stack net(6);
          Parallelized parallelized = parallelize(*net, cut(), group);
          static_cast<void>(net->layers[group.rank() == 0 ? 1 : 4]->weight.sum());
        },
        std::chrono::seconds(20));
    for (const std::exception_ptr& exception : thrown) {
      EXPECT_THAT(testing::message_of<UsageError>(exception),
                  AllOf(HasSubstr("rank 0 needs layer1.bias, layer1.weight"),
                        HasSubstr("rank 1 needs layer4.bias, layer4.weight"),
                        HasSubstr("plan.zero_level_of"), HasSubstr("with no rows")))
          << engine;
    }
  }
}

// Experts of which each rank may skip some.
struct ExpertsImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, bool use_second, bool with_no_rows) {
    torch::Tensor y = last(torch::tanh(first(x)));
    if (use_second) return y + second(x);
    return with_no_rows ? torch::cat({y, second(x.narrow(0, 0, 0))}) : y;
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(32, 32));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(32, 32));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(32, 32));
};
TORCH_MODULE(Experts);

// With every bucket size: one bucket for all used to hide it.
TEST(CutParameters, NameExpertsThatSomeRanksSkip) {
  const auto train = [](const Plan& plan, bool with_no_rows) {
    return run_ranks_catching(
        2,
        [&](const Group& group) {
          Experts net;
          torch::optim::SGD optimizer(net->parameters(), 0.1);
          Parallelized parallelized = parallelize(*net, plan, group);
          parallelized.shard(optimizer);
          for (int step = 0; step < 2; ++step) {
            optimizer.zero_grad();
            const bool use_second = group.rank() == 0 || step == 0;
            net->forward(torch::ones({4, 32}), use_second, with_no_rows).sum().backward();
            optimizer.step();
          }
          parallelized.gather_parameters();
          EXPECT_TRUE(torch::isfinite(net->second->weight).all().item<bool>());
        },
        std::chrono::seconds(20));
  };
  for (const std::int64_t bytes :
       {test::kLayerBytes, 2 * test::kLayerBytes, 100 * test::kLayerBytes}) {
    Plan plan = cut();
    plan.bucket_bytes = plan.first_bucket_bytes = bytes;
    for (const std::exception_ptr& exception : train(plan, false)) {
      EXPECT_THAT(testing::message_of<UsageError>(exception),
                  AllOf(HasSubstr("second.weight"), HasSubstr("plan.zero_level_of")))
          << bytes;
    }
    for (const std::exception_ptr& exception : train(plan, true)) EXPECT_EQ(exception, nullptr);
    plan.zero_level_of = {{"second", 2}};
    for (const std::exception_ptr& exception : train(plan, false)) EXPECT_EQ(exception, nullptr);
  }
}

TEST(CutParameters, WorkWithSynchronisedBatchNorm) {
  run_ranks(2, [](const Group& group) {
    std::vector<std::vector<torch::Tensor>> ends;
    for (const int zero_level : {0, 3}) {
      test::Net net = make_net(1);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      Parallelized parallel = parallelize(
          *net, {.bucket_bytes = 500, .zero_level = zero_level, .sync_batch_norm = true}, group);
      parallel.shard(optimizer);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        loss_of(net, make_batch(step, group.rank()), /*use_all=*/true).backward();
        optimizer.step();
      }
      ends.push_back(copies(*net));
      const auto means = comm::all_gather_text(
          std::to_string(net->norm->running_mean.sum().item<double>()), group);
      EXPECT_EQ(means[0], means[1]);
    }
    EXPECT_TRUE(all_equal(ends[0], ends[1]));
  });
}

}  // namespace
}  // namespace trireme
