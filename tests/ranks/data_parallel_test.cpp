// SPDX-License-Identifier: Apache-2.0
// What a plan can ask of data parallel besides the mean of one pass: accumulation by no_sync, sums,
// sparse gradients, ranks whose data ends early, several modules in one optimizer, half precision
// on the wire, and what is refused.
#include <trireme/parallel/data_parallel.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/comm_hooks.h>

#include <gmock/gmock.h>
#include <tests/ranks/allocations.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

namespace trireme {
namespace {

using comm::Group;
using test::all_equal;
using test::copies;
using test::loss_of;
using test::make_batch;
using test::make_net;
using test::usage_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;

class EveryZeroLevel : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ZeroLevels, EveryZeroLevel, ::testing::Values(0, 1, 2, 3));
class ShardedZeroLevel : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ZeroLevels, ShardedZeroLevel, ::testing::Values(1, 2, 3));

TEST_P(EveryZeroLevel, AccumulatesByNoSyncWhatMicroBatchesAccumulate) {
  run_ranks(3, [](const Group& group) {
    std::vector<std::vector<torch::Tensor>> ends;
    for (const bool by_plan : {true, false}) {
      test::Net net = make_net(1);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
      Parallelized parallelized = parallelize(*net,
                                              {.micro_batches = by_plan ? 2 : 1,
                                               .bucket_bytes = 1000,
                                               .zero_level = GetParam(),
                                               .gradient_reduction = GradientReduction::kSum},
                                              group);
      parallelized.shard(optimizer);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        if (by_plan) {
          loss_of(net, make_batch(step, group.rank())).backward();
        } else {
          const auto held_back = parallelized.no_sync();
          loss_of(net, make_batch(step, group.rank())).backward();
        }
        loss_of(net, make_batch(step, 7 + group.rank())).backward();
        optimizer.step();
      }
      ends.push_back(copies(*net));
    }
    EXPECT_TRUE(all_equal(ends[0], ends[1]));
  });
}

TEST_P(EveryZeroLevel, GivesTheSumWhereThePlanSaysSo) {
  run_ranks(2, [](const Group& group) {
    std::vector<std::vector<torch::Tensor>> ends;
    for (const bool is_sum : {true, false}) {
      test::Net net = make_net(1);
      // A power of two: the rate makes up for the divisor without rounding.
      torch::optim::SGD optimizer(net->parameters(), is_sum ? 0.0625 : 0.25);
      Parallelized parallelized = parallelize(
          *net,
          {.micro_batches = 2,
           .zero_level = GetParam(),
           .gradient_reduction = is_sum ? GradientReduction::kSum : GradientReduction::kMean,
           .gradient_predivide = is_sum ? 1.0 : 2.0},
          group);
      parallelized.shard(optimizer);
      for (int pass = 0; pass < 4; ++pass) {
        if (pass % 2 == 0) optimizer.zero_grad();
        loss_of(net, make_batch(pass, group.rank())).backward();
        if (pass % 2 == 1) optimizer.step();
      }
      ends.push_back(copies(*net));
    }
    EXPECT_TRUE(all_equal(ends[0], ends[1]));
  });
}

TEST_P(ShardedZeroLevel, StepsSeveralModulesWithOneOptimizer) {
  run_ranks(3, [](const Group& group) {
    std::vector<std::vector<torch::Tensor>> ends;
    for (const int zero_level : {0, GetParam()}) {
      test::Net first = make_net(1);
      test::Net second = make_net(2);
      std::vector<torch::Tensor> parameters = first->parameters();
      for (const torch::Tensor& parameter : second->parameters()) parameters.push_back(parameter);
      torch::optim::Adam optimizer(parameters, torch::optim::AdamOptions(0.01));
      Parallelized of_first = parallelize(*first, {.zero_level = zero_level}, group);
      Parallelized of_second = parallelize(*second, {.zero_level = zero_level}, group);
      of_first.shard(optimizer);
      of_second.shard(optimizer);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const torch::Tensor loss = loss_of(first, make_batch(step, group.rank())) +
                                   loss_of(second, make_batch(step, 5 + group.rank()));
        loss.backward();
        clip_by_global_norm(optimizer, 0.5, combine(of_first.sharing(), of_second.sharing()))
            .item<double>();
        optimizer.step();
      }
      of_first.unshard(optimizer);  // in the order in which they were cut, and the other one
      of_second.unshard(optimizer);
      const auto& listed = optimizer.param_groups()[0].params();
      ASSERT_EQ(listed.size(), parameters.size());
      for (std::size_t i = 0; i < listed.size(); ++i) EXPECT_TRUE(listed[i].is_same(parameters[i]));
      ends.push_back(copies(*first));
      for (const torch::Tensor& parameter : copies(*second)) ends.back().push_back(parameter);
    }
    EXPECT_TRUE(all_equal(ends[0], ends[1]));
  });
}

struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(bool is_sparse) {
    words = register_module(
        "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(40, 5).sparse(is_sparse)));
    head = register_module("head", torch::nn::Linear(5, 30));
    auto generator = at::detail::createCPUGenerator(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::rand(parameter.sizes(), generator, parameter.options()) - 0.5);
    }
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return head(words(tokens)); }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Words);

TEST_P(EveryZeroLevel, SumsSparseGradientsToTheBitsOfDenseOnes) {
  run_ranks(3, [](const Group& group) {
    std::vector<std::vector<torch::Tensor>> ends;
    for (const bool is_sparse : {false, true}) {
      Words net(is_sparse);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      Parallelized parallelized =
          parallelize(*net, {.micro_batches = 2, .zero_level = is_sparse ? GetParam() : 0}, group);
      parallelized.shard(optimizer);
      for (int pass = 0; pass < 4; ++pass) {
        if (pass % 2 == 0) optimizer.zero_grad();
        // No word twice in a batch: dense and sparse then add the same numbers in the same order.
        const auto tokens = torch::arange(7) * 5 + (pass + group.rank()) % 5;
        net(tokens).square().mean().backward();
        if (pass == 1) {
          EXPECT_EQ(net->words->weight.grad().is_sparse(), is_sparse);
        }
        if (pass % 2 == 1) optimizer.step();
      }
      ends.push_back(copies(*net));
    }
    EXPECT_TRUE(all_equal(ends[0], ends[1]));
  });
}

class ZeroLevelsThatJoin : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ZeroLevels, ZeroLevelsThatJoin, ::testing::Values(0, 1, 2));

// Rank r has 1 + r steps; each step's divisor is that of the ranks that are left.
TEST_P(ZeroLevelsThatJoin, GoesOnWithoutRanksWhoseDataHasEnded) {
  constexpr int kRanks = 3;
  test::Net alone = make_net(1);
  torch::optim::Adam adam(alone->parameters(), torch::optim::AdamOptions(0.01));
  for (int step = 0; step < kRanks; ++step) {
    std::vector<torch::Tensor> total(alone->parameters().size());
    for (int rank = step; rank < kRanks; ++rank) {
      alone->zero_grad();
      loss_of(alone, make_batch(step, rank)).backward();
      for (std::size_t p = 0; p < total.size(); ++p) {
        const torch::Tensor gradient = alone->parameters()[p].grad();
        if (!gradient.defined()) continue;
        total[p] = total[p].defined() ? total[p] + gradient : gradient.clone();
      }
    }
    for (std::size_t p = 0; p < total.size(); ++p) {
      torch::Tensor parameter = alone->parameters()[p];
      parameter.mutable_grad() = total[p].defined() ? total[p] / (kRanks - step) : torch::Tensor();
    }
    adam.step();
  }
  const auto expected = copies(*alone);
  run_ranks(kRanks, [&](const Group& group) {
    test::Net net = make_net(1);
    torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
    Parallelized parallelized = parallelize(
        *net, {.bucket_bytes = 1000, .zero_level = GetParam(), .divide_by_active_ranks = true},
        group);
    parallelized.shard(optimizer);
    const auto step_and_zero = [&] {
      optimizer.step();
      optimizer.zero_grad();
    };
    for (int step = 0; step <= group.rank(); ++step) {
      loss_of(net, make_batch(step, group.rank())).backward();
      step_and_zero();
    }
    parallelized.join(step_and_zero);
    EXPECT_TRUE(all_equal(copies(*net), expected)) << "rank " << group.rank();
    loss_of(net, make_batch(9, group.rank())).backward();  // and on they go together
    step_and_zero();
  });
}

TEST(DataParallel, JoinIsRefusedWhereForwardNeedsAllRanks) {
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    Parallelized parallelized = parallelize(*net, {.zero_level_of = {{"first", 3}}}, group);
    EXPECT_THAT(usage_error([&] { parallelized.join([] {}); }), HasSubstr("ZeRO level 3"));
    EXPECT_THAT(usage_error([&] { parallelized.finish_without_backward(); }),
                HasSubstr("ZeRO level 3"));
  });
}

TEST_P(ZeroLevelsThatJoin, TakesAStepWithARankThatHasNoGradients) {
  run_ranks(3, [&](const Group& group) {
    test::Net net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), 1e-3);
    Parallelized parallelized =
        parallelize(*net, {.bucket_bytes = 1000, .zero_level = GetParam()}, group);
    parallelized.shard(optimizer);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      parallelized.add_to_step(torch::tensor(1.0F + static_cast<float>(group.rank())));
      if (group.rank() == step) {
        parallelized.finish_without_backward();
      } else {
        loss_of(net, make_batch(step, group.rank())).backward();
      }
      EXPECT_EQ(parallelized.sum_of_step(), 6);
      optimizer.step();
    }
    parallelized.unshard(optimizer);
    for (const torch::Tensor& parameter : copies(*net)) {
      const torch::Tensor all = torch::empty({3 * parameter.numel()}, parameter.options());
      comm::all_gather(all, parameter.flatten(), group);
      EXPECT_TRUE(all.view({3, -1}).eq(parameter.flatten()).all().item<bool>());
    }
  });
}

TEST_P(EveryZeroLevel, RoundsToHalfPrecisionOnTheWireAlone) {
  for (const GradientCompression wire : {GradientCompression::kFp16, GradientCompression::kBf16}) {
    run_ranks(2, [&](const Group& group) {
      std::vector<std::vector<torch::Tensor>> gradients;
      for (const GradientCompression way : {GradientCompression::kNone, wire}) {
        test::Net net = make_net(1);
        torch::optim::SGD optimizer(net->parameters(), 1.0);
        Parallelized parallelized =
            parallelize(*net, {.zero_level = GetParam(), .wire = way}, group);
        parallelized.shard(optimizer);
        loss_of(net, make_batch(0, group.rank())).backward();
        const auto before = copies(*net);
        optimizer.step();
        gradients.push_back(copies(*net));
        for (std::size_t p = 0; p < before.size(); ++p) gradients.back()[p] -= before[p];
      }
      const double unit = wire == GradientCompression::kFp16 ? 0x1p-11 : 0x1p-8;
      bool any_differs = false;
      for (std::size_t p = 0; p < gradients[0].size(); ++p) {
        const torch::Tensor& exact = gradients[0][p];
        const double largest = exact.abs().max().item<double>();
        // Each summand and the sum are rounded; and the difference of two parameters in fp32.
        EXPECT_LE((gradients[1][p] - exact).abs().max().item<double>(), 4 * unit * largest + 1e-6);
        any_differs = any_differs || !torch::equal(gradients[1][p], exact);
      }
      EXPECT_TRUE(any_differs);
    });
  }
}

TEST_P(ShardedZeroLevel, RoundsAlikeInHalfPrecision) {
  for (const std::string engine : {"shm", "gloo"}) {
    testing::engine_of_ranks = engine;
    run_ranks(3, [](const Group& group) {
      for (const GradientCompression wire :
           {GradientCompression::kFp16, GradientCompression::kBf16}) {
        std::vector<std::vector<torch::Tensor>> ends;
        for (const int zero_level : {0, GetParam()}) {
          test::Net net = make_net(1);
          torch::optim::SGD optimizer(net->parameters(), 0.1);
          Parallelized parallelized = parallelize(
              *net, {.bucket_bytes = 600, .zero_level = zero_level, .wire = wire}, group);
          parallelized.shard(optimizer);
          for (int step = 0; step < 2; ++step) {
            optimizer.zero_grad();
            loss_of(net, make_batch(step, group.rank())).backward();
            optimizer.step();
          }
          ends.push_back(copies(*net));
        }
        EXPECT_TRUE(all_equal(ends[0], ends[1]));
      }
    });
  }
  testing::engine_of_ranks = "shm";
}

// The sum would overflow, the mean does not.
TEST_P(EveryZeroLevel, StaysWithinTheRangeOfHalfPrecision) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear net(torch::nn::LinearOptions(32, 32).bias(false));
    {
      const torch::NoGradGuard no_grad;
      net->weight.zero_();
    }
    torch::optim::SGD optimizer(net->parameters(), 1.0);
    Parallelized parallelized =
        parallelize(*net, {.zero_level = GetParam(), .wire = GradientCompression::kFp16}, group);
    parallelized.shard(optimizer);
    (net(torch::ones({1, 32})).sum() * 40000).backward();
    optimizer.step();
    EXPECT_TRUE(torch::equal(net->weight.detach(), torch::full({32, 32}, -40000.0F)));
  });
}

TEST_P(EveryZeroLevel, ForgetsGradientsThatWereThrownAway) {
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Parallelized parallelized = parallelize(*net, {.zero_level = GetParam()}, group);
    parallelized.shard(optimizer);
    {
      const auto held_back = parallelized.no_sync();
      loss_of(net, make_batch(0, group.rank()), /*use_all=*/true).backward();
    }
    net->zero_grad();
    const auto before = copies(*net);
    loss_of(net, make_batch(1, group.rank())).backward();  // does not use all
    optimizer.step();
    const auto after = copies(*net);
    EXPECT_FALSE(all_equal(after, before));
    const auto names = net->named_parameters().keys();
    const auto unused = std::ranges::find(names, "unused") - names.begin();
    EXPECT_TRUE(torch::equal(after[static_cast<std::size_t>(unused)],
                             before[static_cast<std::size_t>(unused)]));
  });
}

// Besides what forward, backward and the optimizer allocate anyhow.
TEST_P(EveryZeroLevel, AllocatesNoMemoryInALaterStep) {
  run_ranks(2, [](const Group& group) {
    const auto make = [] {
      return torch::nn::Sequential(torch::nn::Linear(40, 30), torch::nn::Tanh(),
                                   torch::nn::Linear(30, 20));
    };
    const auto step = [](torch::nn::Sequential& net, torch::optim::Optimizer& optimizer) {
      optimizer.zero_grad();
      net->forward(torch::ones({4, 40})).square().mean().backward();
      optimizer.step();
    };
    torch::nn::Sequential plain = make();
    torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
    torch::nn::Sequential net = make();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Parallelized parallelized = parallelize(
        *net, {.bucket_bytes = 1000, .first_bucket_bytes = 500, .zero_level = GetParam()}, group);
    parallelized.shard(optimizer);
    for (int number = 0; number < 3; ++number) {
      step(plain, plain_optimizer);
      step(net, optimizer);
    }
    auto expected = test::allocations_of([&] { step(plain, plain_optimizer); });
    auto found = test::allocations_of([&] { step(net, optimizer); });
    std::ranges::sort(expected);
    std::ranges::sort(found);
    EXPECT_THAT(found, ::testing::ElementsAreArray(expected));
  });
}

// Runs its input's graph backward inside its own backward, as recomputation by hand does.
struct BackwardInside : torch::autograd::Function<BackwardInside> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x.mm(weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const torch::AutoGradMode enable(true);
    torch::Tensor x = saved[0].detach().requires_grad_();
    x.mm(saved[1]).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

TEST(DataParallel, RefusesABackwardInsideABackward) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear net(torch::nn::LinearOptions(3, 3).bias(false));
    const DataParallel parallel(*net, group);
    const torch::Tensor input = torch::ones({2, 3}).requires_grad_();
    const torch::Tensor output = BackwardInside::apply(input, net->weight);
    EXPECT_THAT(usage_error([&] { output.sum().backward(); }),
                HasSubstr("inside another backward"));
  });
}

struct Doubling final : CommHook {
  std::function<void()> start(GradientBucket& bucket, const Group& group) override {
    num_started += 1;
    auto work = std::make_shared<comm::Work>(comm::all_reduce_async(bucket.memory, group));
    return [work, memory = bucket.memory] {
      work->wait();
      memory.mul_(2);
    };
  }
  int num_started = 0;
};

TEST(DataParallel, TakesAnExchangeOfTheUsers) {
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    test::Net plain = make_net(1);
    Parallelized parallelized = parallelize(*net, {.bucket_bytes = 1000}, group);
    const DataParallel parallel(*plain, group);
    const auto doubling = std::make_shared<Doubling>();
    parallelized.register_comm_hook(doubling);
    for (int step = 0; step < 3; ++step) {  // buckets are filled anew after the first
      net->zero_grad();
      plain->zero_grad();
      loss_of(net, make_batch(step, group.rank())).backward();
      loss_of(plain, make_batch(step, group.rank())).backward();
      EXPECT_TRUE(torch::equal(net->first->weight.grad(), 2 * plain->first->weight.grad()));
      EXPECT_EQ(net->unused.grad().defined(), false);
    }
    EXPECT_GT(doubling->num_started, 3);
    test::Net cut = make_net(1);
    Parallelized sharded = parallelize(*cut, {.zero_level = 1}, group);
    EXPECT_THAT(usage_error([&] { sharded.register_comm_hook(doubling); }),
                HasSubstr("zero_level 0"));
  });
}

// What top-k has not sent when a layer rests still comes to it.
TEST(DataParallel, GivesWhatAnExchangeKeptToAParameterThatRests) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear always(torch::nn::LinearOptions(4, 1).bias(false));
    torch::nn::Linear once(torch::nn::LinearOptions(4, 1).bias(false));
    torch::nn::Sequential net(always, once);
    Parallelized parallelized = parallelize(*net, {}, group);
    parallelized.register_comm_hook(std::make_shared<TopKCommHook>(TopKOptions{.fraction = 0.5}));
    const torch::Tensor input = torch::tensor({{4.F, 3.F, 2.F, 1.F}});
    torch::Tensor sum = torch::zeros({1, 4});
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      torch::Tensor y = always(input);
      if (step == 0) y = y + once(input);
      y.sum().backward();
      if (once->weight.grad().defined()) sum += once->weight.grad();
    }
    EXPECT_TRUE(torch::equal(sum, input));
  });
}

TEST(DataParallel, NamesWhatChangedAfterwards) {
  run_ranks(2, [](const Group& group) {
    {
      test::Net net = make_net(1);
      const DataParallel parallel(*net, group);
      net->conv->weight.set_requires_grad(false);
      EXPECT_THAT(usage_error([&] { loss_of(net, make_batch(0, 0)).backward(); }),
                  AllOf(HasSubstr("parameter conv.weight"), HasSubstr("frozen")));
    }
    {
      test::Net net = make_net(1);
      const DataParallel parallel(*net, group);
      net->scale = net->register_parameter("late", torch::ones({3}, torch::kDouble));
      EXPECT_THAT(usage_error([&] { loss_of(net, make_batch(0, 0)).backward(); }),
                  AllOf(HasSubstr("parameter late"), HasSubstr("added")));
    }
    {
      test::Net net = make_net(1);
      const DataParallel parallel(*net, group);
      net->to(torch::kDouble);
      EXPECT_THAT(
          usage_error([&] { loss_of(net, make_batch(0, 0).to(torch::kDouble)).backward(); }),
          AllOf(HasSubstr("parameter unused is Double"), HasSubstr("Float")));
    }
    {
      test::Net net = make_net(1);
      EXPECT_THAT(
          usage_error([&] { static_cast<void>(parallelize(*net, {.shard_ranks = 3}, group)); }),
          AllOf(HasSubstr("shard_ranks is 3"), HasSubstr("divisor of the 2 ranks")));
    }
  });
}

TEST(DataParallel, KnowsTheNamesThatAPlanGives) {
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    EXPECT_THAT(usage_error([&] {
                  static_cast<void>(parallelize(*net, {.zero_level_of = {{"frist", 3}}}, group));
                }),
                AllOf(HasSubstr("zero_level_of"), HasSubstr("frist")));
    EXPECT_THAT(usage_error([&] {
                  static_cast<void>(parallelize(*net, {.sparse_gradients = {"second"}}, group));
                }),
                AllOf(HasSubstr("sparse_gradients"), HasSubstr("second")));
  });
}

TEST(DataParallel, TakesAListOfParameters) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear one(2, 2);
    torch::nn::Linear other(2, 2);
    const std::vector<std::pair<std::string, torch::Tensor>> parameters = {
        {"one.weight", one->weight}, {"other.weight", other->weight}};
    const Parallelized parallelized = parallelize(parameters, {}, group);
    (one(torch::ones({1, 2}) * (1 + group.rank())).sum() + other(torch::ones({1, 2})).sum())
        .backward();
    EXPECT_TRUE(torch::equal(one->weight.grad(), torch::full({2, 2}, 1.5)));
    EXPECT_THAT(usage_error([&] {
                  const std::vector<std::pair<std::string, torch::Tensor>> same = {
                      {"weight", one->bias}, {"weight", other->bias}};
                  static_cast<void>(parallelize(same, {}, group));
                }),
                HasSubstr("two parameters have the name weight"));
  });
}

struct Warnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { all += warning.msg(); }
  std::string all;
};

// Ranks that read the same rows take all the time of several ranks for the work of one.
TEST_P(EveryZeroLevel, WarnsWhereAllRanksTrainOnTheSameRows) {
  const c10::WarningUtils::WarnAlways always;
  for (const std::int64_t micro_batches : {1, 2}) {
    for (const bool differ : {false, true}) {
      run_ranks(3, [&](const Group& group) {
        Warnings warnings;
        const c10::WarningUtils::WarningHandlerGuard noticing(&warnings);
        test::Net net = make_net(1);
        torch::optim::SGD optimizer(net->parameters(), 0.05);
        Parallelized parallelized =
            parallelize(*net, {.micro_batches = micro_batches, .zero_level = GetParam()}, group);
        parallelized.shard(optimizer);
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          for (int i = 0; i < micro_batches; ++i) {
            // Once may be chance.
            const bool is_same = !differ || step == 0;
            loss_of(net, make_batch(step, is_same ? 0 : group.rank())).backward();
          }
          optimizer.step();
        }
        if (differ || group.rank() > 0) {
          EXPECT_EQ(warnings.all, "");
        } else {
          EXPECT_THAT(warnings.all, AllOf(HasSubstr("the 3 ranks along data have computed the same "
                                                    "gradients in their first two steps"),
                                          HasSubstr("data_part(plan, group)")));
        }
      });
    }
  }
}

// Which parameters were used travels in the last bucket, here as complex numbers: to read them from
// it cast complex values to real, with a warning.
TEST(DataParallel, TrainsComplexParametersWithoutAWarning) {
  const c10::WarningUtils::WarnAlways always;
  run_ranks(2, [](const Group& group) {
    Warnings warnings;
    const c10::WarningUtils::WarningHandlerGuard noticing(&warnings);
    const torch::Tensor weight = torch::ones({3}, torch::kComplexFloat).set_requires_grad(true);
    const std::vector<std::pair<std::string, torch::Tensor>> parameters = {{"weight", weight}};
    const Parallelized parallelized = parallelize(parameters, {}, group);
    torch::real(weight * (1.0 + group.rank())).sum().backward();
    EXPECT_TRUE(torch::equal(weight.grad(), torch::full({3}, 1.5, torch::kComplexFloat)));
    EXPECT_EQ(warnings.all, "");
  });
}

}  // namespace
}  // namespace trireme
