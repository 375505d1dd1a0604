// SPDX-License-Identifier: Apache-2.0
// DistributedOptimizer: its numbers against one process that takes the sums by hand, the order of
// calls, and what it refuses.
#include <trireme/base/error.h>
#include <trireme/optim/gradients.h>
#include <trireme/parallel/horovod.h>

#include <gmock/gmock.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

namespace trireme {
namespace {

using comm::Group;
using hvd::DistributedOptimizer;
using hvd::DistributedOptimizerOptions;
using test::loss_of;
using test::make_batch;
using test::make_net;
using test::Net;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_catching;

constexpr int kSteps = 3;

std::vector<torch::Tensor> values_of(const hvd::NamedParameters& parameters) {
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, tensor] : parameters) tensors.push_back(tensor);
  return tensors;
}

torch::optim::SGD make_sgd(const Net& net) {
  return torch::optim::SGD(values_of(hvd::named_parameters(*net)),
                           torch::optim::SGDOptions(0.05).momentum(0.9));
}

// One process: the sum over ranks of each rank's sum over its passes, divided once.
std::vector<torch::Tensor> train_alone(int ranks, int passes, double divisor, int steps = kSteps) {
  Net net = make_net(1);
  auto sgd = make_sgd(net);
  const auto parameters = values_of(hvd::named_parameters(*net));
  for (int step = 0; step < steps; ++step) {
    std::vector<torch::Tensor> total(parameters.size());
    for (int rank = 0; rank < ranks; ++rank) {
      net->zero_grad();
      for (int pass = 0; pass < passes; ++pass)
        loss_of(net, make_batch(step, rank * passes + pass)).backward();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const torch::Tensor gradient = parameters[i].grad();
        if (gradient.defined())
          total[i] = total[i].defined() ? total[i] + gradient : gradient.clone();
      }
    }
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = total[i].defined() ? total[i] / divisor : torch::Tensor();
    }
    sgd.step();
  }
  return parameters;
}

std::vector<torch::Tensor> train_over(const Group& group,
                                      const DistributedOptimizerOptions& options,
                                      int steps = kSteps) {
  Net net = make_net(1);
  auto sgd = make_sgd(net);
  const auto parameters = hvd::named_parameters(*net);
  DistributedOptimizer optimizer(sgd, parameters, options, group);
  const auto passes = options.backward_passes_per_step;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (std::int64_t pass = 0; pass < passes; ++pass)
      loss_of(net, make_batch(step, group.rank() * passes + pass)).backward();
    optimizer.step();
  }
  return values_of(parameters);
}

struct Case {
  std::string name;
  int ranks;
  DistributedOptimizerOptions options;
  double divisor;  // of the sum over ranks and passes
};

class Numbers : public ::testing::TestWithParam<Case> {};

TEST_P(Numbers, AreThoseOfOneProcess) {
  const Case& c = GetParam();
  const auto expected =
      train_alone(c.ranks, static_cast<int>(c.options.backward_passes_per_step), c.divisor);
  run_ranks(c.ranks, [&](const Group& group) {
    const auto values = train_over(group, c.options);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(torch::equal(values[i], expected[i]))
          << "parameter " << i << " on rank " << group.rank();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    DistributedOptimizer, Numbers,
    ::testing::Values(Case{"Alone", 1, {}, 1}, Case{"Mean", 3, {}, 3},
                      Case{"AloneInPasses", 1, {.backward_passes_per_step = 3}, 1},
                      Case{"MeanOfSums", 3, {.backward_passes_per_step = 3}, 3},
                      Case{"MeanOfMeans",
                           3,
                           {.backward_passes_per_step = 3, .average_aggregated_gradients = true},
                           9},
                      Case{"Sum", 2, {.op = hvd::Sum}, 1},
                      Case{"SumOfSums", 2, {.op = hvd::Sum, .backward_passes_per_step = 2}, 1},
                      // Powers of two round nothing.
                      Case{"Predivided", 2, {.gradient_predivide_factor = 4}, 2}),
    [](const auto& tested) { return tested.param.name; });

TEST(DistributedOptimizer, CompressesGradientsToHalfPrecision) {
  const auto expected = train_alone(2, 1, 2, /*steps=*/1);  // later ones go other ways soon
  for (const auto compression : {hvd::Compression::kFp16, hvd::Compression::kBf16}) {
    std::vector<std::vector<torch::Tensor>> values(2);
    run_ranks(2, [&](const Group& group) {
      values[static_cast<std::size_t>(group.rank())] =
          train_over(group, {.compression = compression}, /*steps=*/1);
    });
    bool is_rounded = false;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(values[0][i], values[1][i])) << "parameter " << i;
      EXPECT_TRUE(torch::allclose(values[0][i], expected[i], 1e-2, 1e-3)) << "parameter " << i;
      is_rounded = is_rounded || !torch::equal(values[0][i], expected[i]);
    }
    EXPECT_TRUE(is_rounded);
  }
}

// Two models under one optimizer.
struct Pair {
  torch::nn::Linear encoder{4, 4};
  torch::nn::Linear decoder{4, 4};
  hvd::NamedParameters names(const std::string& first, const std::string& second) const {
    auto all = hvd::named_parameters(*encoder, first);
    for (const auto& parameter : hvd::named_parameters(*decoder, second)) all.push_back(parameter);
    return all;
  }
  torch::Tensor loss(int rank) {
    return decoder(encoder(torch::full({2, 4}, rank + 1.0))).square().mean();
  }
};

TEST(DistributedOptimizer, TakesSeveralModels) {
  run_ranks(2, [](const Group& group) {
    Pair pair;
    const auto names = pair.names("encoder", "decoder");
    hvd::broadcast_parameters(names, 0, group);
    torch::optim::SGD sgd(values_of(names), 0.1);
    DistributedOptimizer optimizer(sgd, names, {}, group);
    pair.loss(group.rank()).backward();
    optimizer.step();
    for (const auto& [name, tensor] : names) {
      EXPECT_TRUE(torch::equal(hvd::allreduce(tensor, hvd::Max, group), tensor)) << name;
    }
  });
}

TEST(DistributedOptimizer, TakesTheOptimizersOwnParametersWithoutNames) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear linear(1, 1);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : linear->parameters()) parameter.fill_(0);
    torch::optim::SGD sgd(linear->parameters(), 1);
    DistributedOptimizer optimizer(sgd, {}, {}, group);
    {
      const torch::AutoGradMode with_grad(true);
      linear(torch::full({1, 1}, group.rank(), torch::kFloat)).sum().backward();
    }
    optimizer.step();
    EXPECT_EQ(linear->weight.item<float>(), -0.5F);
  });
}

// Every rank throws UsageError with these words.
void expect_refused(const std::string& words, const std::function<void(const Group&)>& body) {
  for (const std::exception_ptr& thrown : run_ranks_catching(2, body)) {
    EXPECT_THAT(message_of<UsageError>(thrown), HasSubstr(words));
  }
}

TEST(DistributedOptimizer, RefusesNamesThatAreThereTwice) {
  expect_refused("on rank 1: these names are there twice: a.weight, a.bias",
                 [](const Group& group) {
                   Pair pair;
                   const auto names = pair.names("a", group.rank() == 1 ? "a" : "b");
                   torch::optim::SGD sgd(values_of(names), 0.1);
                   const DistributedOptimizer optimizer(sgd, names, {}, group);
                 });
}

TEST(DistributedOptimizer, SaysWhichParametersHaveNoName) {
  expect_refused(
      "the optimizer has parameters that are not among the named ones (group.place and "
      "sizes): 0.2 [4, 4], 0.3 [4]",
      [](const Group& group) {
        const Pair pair;
        torch::optim::SGD sgd(values_of(pair.names("a", "b")), 0.1);
        const DistributedOptimizer optimizer(sgd, hvd::named_parameters(*pair.encoder), {}, group);
      });
}

TEST(DistributedOptimizer, SaysWhichParametersTheOptimizerDoesNotHave) {
  expect_refused("the optimizer does not have these named parameters: b.weight, b.bias",
                 [](const Group& group) {
                   const Pair pair;
                   torch::optim::SGD sgd(pair.encoder->parameters(), 0.1);
                   const DistributedOptimizer optimizer(sgd, pair.names("a", "b"), {}, group);
                 });
}

TEST(DistributedOptimizer, RefusesOptionsThatCannotBeOrDiffer) {
  const auto with = [](const DistributedOptimizerOptions& options) {
    return [options](const Group& group) {
      torch::nn::Linear linear(2, 2);
      torch::optim::SGD sgd(linear->parameters(), 0.1);
      const DistributedOptimizer optimizer(sgd, {}, options, group);
    };
  };
  expect_refused("backward_passes_per_step 0", with({.backward_passes_per_step = 0}));
  expect_refused("op is another", with({.op = hvd::Max}));
  expect_refused("gradient_predivide_factor 2",
                 with({.op = hvd::Sum, .gradient_predivide_factor = 2}));
  expect_refused(
      "op is Sum, backward_passes_per_step 2, averaged",
      with({.op = hvd::Sum, .backward_passes_per_step = 2, .average_aggregated_gradients = true}));
  expect_refused("rank 1 has Average over 2 passes", [&](const Group& group) {
    with({.backward_passes_per_step = 1 + group.rank()})(group);
  });
}

TEST(DistributedOptimizer, NamesTheParameterThatWasNotBroadcast) {
  const torch::Tensor numbers = torch::arange(16, torch::kFloat).view({4, 4});
  const std::vector<std::vector<torch::Tensor>> weights_of_ranks = {
      {torch::zeros({4, 4}), torch::ones({4, 4})},
      {numbers, numbers.flip(0)},  // the same numbers in another order
  };
  for (const auto& weights : weights_of_ranks) {
    expect_refused(
        "parameter decoder.weight is not the same on ranks 0 and 1 before the first step",
        [&](const Group& group) {
          Pair pair;
          const auto names = pair.names("encoder", "decoder");
          hvd::broadcast_parameters(names, 0, group);
          {
            const torch::NoGradGuard no_grad;
            pair.decoder->weight.copy_(weights[static_cast<std::size_t>(group.rank())]);
          }
          torch::optim::SGD sgd(values_of(names), 0.1);
          DistributedOptimizer optimizer(sgd, names, {}, group);
          pair.loss(group.rank()).backward();
          optimizer.step();
        });
  }
}

// One process: a group of one.
struct Alone {
  explicit Alone(std::int64_t passes)
      : optimizer(sgd, {}, {.backward_passes_per_step = passes}, comm::Group::self()) {}
  void backward() { linear(torch::ones({1, 2})).sum().backward(); }

  torch::nn::Linear linear{2, 2};
  torch::optim::SGD sgd{linear->parameters(), 0.1};
  DistributedOptimizer optimizer;
};

std::string message_from(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

TEST(DistributedOptimizer, WantsAsManyPassesAsItWasPromised) {
  Alone alone(2);
  EXPECT_THAT(message_from([&] { alone.optimizer.step(); }),
              HasSubstr("after 0 calls of backward(), expected 2"));
  alone.backward();
  EXPECT_THAT(message_from([&] { alone.optimizer.synchronize(); }),
              HasSubstr("after 1 calls of backward(), expected 2"));
  alone.backward();
  EXPECT_THAT(message_from([&] { alone.backward(); }),
              HasSubstr("backward() was called more than 2 times"));
  alone.optimizer.step();
  EXPECT_THAT(message_from([&] { alone.optimizer.step(); }), HasSubstr("after 0 calls"));
}

TEST(DistributedOptimizer, DoesNotThrowGradientsAwayThatOthersUse) {
  Alone alone(1);
  alone.optimizer.zero_grad();
  alone.backward();
  EXPECT_THAT(message_from([&] { alone.optimizer.zero_grad(); }),
              HasSubstr("zero_grad() after backward() and before step()"));
  EXPECT_TRUE(alone.linear->weight.grad().defined());
  alone.optimizer.synchronize();
  alone.optimizer.zero_grad();  // a step that is skipped
  EXPECT_FALSE(alone.linear->weight.grad().defined());
}

TEST(DistributedOptimizer, DoesNotCountGradientsThatAreAskedForAlone) {
  Alone alone(1);
  const auto loss = alone.linear(torch::ones({1, 2})).sum();
  const auto gradients = torch::autograd::grad({loss}, {alone.linear->weight},
                                               /*grad_outputs=*/{}, /*retain_graph=*/true);
  EXPECT_FALSE(alone.linear->weight.grad().defined());
  loss.backward();
  alone.optimizer.step();
}

TEST(DistributedOptimizer, LetsGradientsBeClippedBetweenSynchronizeAndStep) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear linear(1, 1);
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : linear->parameters()) parameter.fill_(0);
    }
    torch::optim::SGD sgd(linear->parameters(), 1);
    DistributedOptimizer optimizer(sgd, {}, {}, group);
    linear(torch::full({1, 1}, 6.0 * group.rank())).sum().mul(4).backward();
    optimizer.synchronize();  // the weight's is 12, the bias' 4
    EXPECT_NEAR(clip_by_global_norm(sgd, 1.0).item<double>(), std::sqrt(160.0), 1e-9);
    {
      const auto skip = optimizer.skip_synchronize();
      optimizer.step();
    }
    EXPECT_NEAR(linear->weight.item<float>(), -12 / std::sqrt(160.0), 1e-6);
    linear(torch::ones({1, 1})).sum().backward();  // the next step begins as any other
    optimizer.step();
  });
}

TEST(DistributedOptimizer, LeavesAnOrdinaryModelWhenItGoes) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear linear(1, 1);
    torch::optim::SGD sgd(linear->parameters(), 1);
    {
      const DistributedOptimizer optimizer(sgd, {}, {}, group);
    }
    for (int pass = 0; pass < 2; ++pass)
      linear(torch::full({1, 1}, group.rank(), torch::kFloat)).sum().backward();
    EXPECT_EQ(linear->weight.grad().item<float>(), 2.0F * static_cast<float>(group.rank()));
  });
}

}  // namespace
}  // namespace trireme
