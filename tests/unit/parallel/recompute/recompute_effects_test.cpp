// SPDX-License-Identifier: Apache-2.0
// What the second run does not repeat, what it sees as the first did, what it costs, and what is
// freed in between.
#include <trireme/parallel/recompute.h>
#include <trireme/parallel/recompute/effects.h>

#include <gtest/gtest.h>
#include <tests/unit/parallel/recompute/recompute_checks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

namespace trireme {
namespace {

using test::Caller;
using test::expect_same;
using test::leaf;
using test::state_after;
using test::Tensors;

TEST(RecomputeEffects, CountsRunningStatisticsOnce) {
  for (const bool is_cumulative : {false, true}) {
    expect_same([is_cumulative](const Caller& call) {
      const std::optional<double> momentum =
          is_cumulative ? std::nullopt : std::optional<double>(0.3);
      torch::nn::BatchNorm2d norm(torch::nn::BatchNorm2dOptions(4).momentum(momentum));
      torch::nn::InstanceNorm2d instances(
          torch::nn::InstanceNorm2dOptions(4).track_running_stats(true).affine(true));
      torch::nn::Sequential net(torch::nn::Conv2d(4, 4, 3), norm, instances);
      const torch::Tensor input = leaf({3, 4, 8, 8});
      for (int step = 0; step < 3; ++step) {
        // Twice in one step: the second call finds what the first left.
        const torch::Tensor output =
            call([&](const torch::Tensor& x) { return net->forward(x); }, input) +
            call([&](const torch::Tensor& x) { return net->forward(x * 2); }, input);
        output.square().mean().backward({}, /*retain_graph=*/true);
        output.mean().backward();
      }
      EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 6);
      return state_after({input}, *net);
    });
  }
}

TEST(RecomputeEffects, ReadsRunningStatisticsInEvaluation) {
  expect_same([](const Caller& call) {
    torch::nn::BatchNorm1d norm(4);
    norm->running_mean.uniform_();
    norm->eval();
    const torch::Tensor input = leaf({5, 4});
    call([&](const torch::Tensor& x) { return norm(x); }, input).square().sum().backward();
    return state_after({input}, *norm);
  });
}

// A buffer that is read, written, and read again.
struct Smoothed : torch::nn::Module {
  Smoothed() { mean = register_buffer("mean", torch::ones({8})); }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor before = x * mean.exp();
    mean.mul_(0.5).add_(x.detach().mean(0));
    torch::Tensor all = mean.view({2, 4});
    all[0].fill_(0.25);
    at::_foreach_mul_({all[1]}, 1.5);
    return before.sin() * mean.clone() + at::linear(before, mean.diag());
  }
  torch::Tensor mean;
};

TEST(RecomputeEffects, FindsBuffersAsTheFirstRunFoundThem) {
  expect_same([](const Caller& call) {
    Smoothed smoothed;
    const torch::Tensor input = leaf({6, 8});
    torch::Tensor x = input;
    // Nested: the inner call writes in both runs of the outer one.
    x = call(
        [&](const torch::Tensor& h) {
          return call([&](const torch::Tensor& g) { return smoothed.forward(g); }, h.sin()).tanh();
        },
        x);
    x = call([&](const torch::Tensor& h) { return smoothed.forward(h); }, x);
    x.square().sum().backward();
    return state_after({input}, smoothed);
  });
}

TEST(RecomputeEffects, GivesTheGradientsOfBuffersAsTheyWere) {
  const torch::Tensor start = torch::rand({8});
  const torch::Tensor buffer = start.clone();
  const torch::Tensor input = leaf({6, 8});
  const auto version = buffer._version();
  const torch::Tensor output = recompute(
      [&](const torch::Tensor& x) {
        const torch::Tensor y = (x * buffer).sin();
        buffer.add_(1);
        return y * buffer;
      },
      input);
  EXPECT_EQ(buffer._version(), version + 1);
  output.sum().backward();
  EXPECT_TRUE(buffer.equal(start + 1));
  EXPECT_EQ(buffer._version(), version + 1);

  const torch::Tensor plain = input.detach().clone().requires_grad_();
  ((plain * start).sin() * (start + 1)).sum().backward();
  EXPECT_TRUE(input.grad().equal(plain.grad()));
}

TEST(RecomputeEffects, ForgetsTensorsThatAreGoneBeforeBackward) {
  auto scratch = std::make_unique<torch::Tensor>(torch::zeros({6, 8}));
  const torch::Tensor input = leaf({6, 8});
  const auto function = [&](const torch::Tensor& x) {
    if (scratch) scratch->copy_(x.detach());
    return x.sin().exp();
  };
  const torch::Tensor output = recompute(function, input);
  EXPECT_TRUE(scratch->equal(input));
  scratch.reset();
  output.sum().backward();
  EXPECT_TRUE(input.grad().defined());
}

TEST(RecomputeEffects, RepeatsRandomNumbersOfEveryGenerator) {
  expect_same([](const Caller& call) {
    at::Generator own = at::detail::createCPUGenerator(3);
    const torch::Tensor input = leaf({20});
    torch::Tensor x = call(
        [&](const torch::Tensor& h) {
          return at::dropout(h, 0.5, true).sin() * torch::rand({20}) *
                 at::rand({20}, own, at::kFloat).exp() * at::bernoulli(h.sigmoid().detach(), own);
        },
        input);
    x = x * torch::rand({20}) + torch::rand({20}, own);
    x.square().sum().backward();
    return Tensors{input.grad(), torch::rand({2}, own)};
  });
}

TEST(RecomputeEffects, DrawsOtherNumbersWhereTheyAreNotPreserved) {
  torch::manual_seed(1);
  const torch::Tensor input = torch::ones({1000}).requires_grad_();
  const torch::Tensor output =
      recompute([](const torch::Tensor& x) { return at::dropout(x, 0.5, true).square(); }, input,
                {.name = "", .preserve_random = false, .modules = {}});
  output.sum().backward();
  EXPECT_FALSE(((input.grad() != 0) == (output != 0)).all().item<bool>());
}

TEST(RecomputeEffects, DrawsNothingWhereTheFunctionDoesNot) {
  detail::Effects effects;
  {
    detail::Recording recording(effects, {}, "it", /*records_random=*/true,
                                /*keeps_copies=*/true);
    torch::ones({3}).sin().add_(1);
    EXPECT_TRUE(effects.drawn.empty() && effects.written.empty());
    torch::rand({3});
    torch::rand({3});
  }
  EXPECT_EQ(effects.drawn.size(), 1);
}

TEST(RecomputeEffects, StopsAsSoonAsItHasWhatBackwardNeeds) {
  torch::nn::Linear first(8, 8);
  torch::nn::Linear last(8, 8);
  int begun = 0;
  int ended = 0;
  const torch::Tensor input = leaf({6, 8});
  const torch::Tensor output = recompute(
      [&](const torch::Tensor& x) {
        ++begun;
        const torch::Tensor h = last(first(x).sin()) + x;
        ++ended;
        return h;
      },
      input);
  output.sum().backward();
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(ended, 1);
}

TEST(RecomputeEffects, LeavesOutWhatOnlyNodesThatAreGoneNeeded) {
  int behind = 0;
  const torch::Tensor input = leaf({6});
  Tensors outputs = recompute(
      [&](const Tensors& in) -> Tensors {
        const torch::Tensor first = in[0].sin();
        const torch::Tensor second = in[0].cos().exp();
        ++behind;
        return {first, second.tanh()};
      },
      {input});
  outputs.pop_back();
  outputs.front().sum().backward();
  EXPECT_EQ(behind, 1);
}

TEST(RecomputeEffects, RunsOnceMoreWhateverTheNumberOfTensors) {
  int runs = 0;
  const torch::Tensor input = leaf({6});
  const torch::Tensor output = recompute(
      [&](const torch::Tensor& x) {
        ++runs;
        torch::Tensor h = x;
        for (int i = 0; i < 50; ++i) h = h.sin() * h;
        return h;
      },
      input);
  output.sum().backward();
  EXPECT_EQ(runs, 2);
}

TEST(RecomputeEffects, DoesNotRunAgainWhereBackwardNeedsNothing) {
  int runs = 0;
  const torch::Tensor input = leaf({6});
  const torch::Tensor output = recompute(
      [&](const torch::Tensor& x) {
        ++runs;
        return x + 1;
      },
      input);
  output.sum().backward();
  EXPECT_EQ(runs, 1);
}

// Bytes that tensors of this thread hold, now and at the most.
struct Bytes : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* /*memory*/, std::int64_t size, std::size_t /*total*/,
                         std::size_t /*reserved*/, c10::Device /*device*/) override {
    now += size;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t now = 0;
  std::int64_t peak = 0;
};

TEST(RecomputeEffects, FreesWhatIsComputedOnTheWay) {
  constexpr std::int64_t kBlocks = 8;
  constexpr std::int64_t kLayers = 6;
  const torch::Tensor weight = torch::eye(64).requires_grad_();
  constexpr std::int64_t kActivation = 512L * 64 * 4;
  Bytes bytes[2];
  for (const bool is_recomputed : {false, true}) {
    const Caller call(is_recomputed);
    const auto counted = std::make_shared<Bytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counted);
    torch::Tensor x = torch::ones({512, 64});
    for (int block = 0; block < kBlocks; ++block) {
      x = call(
          [&](const torch::Tensor& in) {
            torch::Tensor h = in;
            for (int layer = 0; layer < kLayers; ++layer) h = h.matmul(weight).tanh();
            return h;
          },
          x);
    }
    bytes[is_recomputed].now = counted->now;
    x.sum().backward();
    bytes[is_recomputed].peak = counted->peak;
    x.reset();
    EXPECT_LT(counted->now, kActivation);  // the weight's gradient
  }
  // Without: each tanh. With: the inputs of blocks, and in backward one block's.
  EXPECT_GE(bytes[0].now, kBlocks * kLayers * kActivation);
  EXPECT_LE(bytes[1].now, (kBlocks + 1) * kActivation);
  EXPECT_LE(bytes[1].peak, (kBlocks + 2 * kLayers + 4) * kActivation);
  EXPECT_GE(bytes[0].peak, bytes[0].now);
}

TEST(RecomputeEffects, FreesWhatABackwardThatKeepsTheGraphDidNotTake) {
  const torch::Tensor input = leaf({1000});
  const Tensors outputs = recompute(
      [](const Tensors& in) -> Tensors { return {in[0].sin().exp(), in[0].cos().tanh().exp()}; },
      {input});
  const auto counted = std::make_shared<Bytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counted);
  for (int pass = 0; pass < 2; ++pass) {
    const auto gradients =
        torch::autograd::grad({outputs[0].sum()}, {input}, {}, /*retain_graph=*/true);
    EXPECT_GE(counted->peak, 4000);
  }
  EXPECT_EQ(counted->now, 0);
}

TEST(RecomputeEffects, FreesItsInputsWithTheGraph) {
  c10::weak_intrusive_ptr<c10::StorageImpl> memory{c10::intrusive_ptr<c10::StorageImpl>()};
  const auto captured = std::make_shared<int>(1);
  torch::Tensor output;
  {
    const torch::Tensor input = torch::ones({5});
    memory = input.storage().getWeakStorageImpl();
    const torch::Tensor weight = leaf({5});
    output = recompute(
        [weight, captured](const torch::Tensor& x) { return (x * weight).sin().exp(); }, input);
  }
  EXPECT_FALSE(memory.expired());
  EXPECT_EQ(captured.use_count(), 2);
  output.sum().backward();
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(captured.use_count(), 1);
}

}  // namespace
}  // namespace trireme
