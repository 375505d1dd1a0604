// SPDX-License-Identifier: Apache-2.0
// Sharded data parallel (ZeRO) besides its bits, which parity_test.cpp compares: what each
// rank keeps, when parameters are whole, and what is refused.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/optim/fused_adam.h>
#include <trireme/optim/loss_scale.h>
#include <trireme/optim/post_validation.h>
#include <trireme/parallel/data_parallel.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>

namespace trireme {
namespace {

using comm::Group;
using test::loss_of;
using test::make_batch;
using test::make_net;
using test::usage_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;

class Sharded : public ::testing::TestWithParam<int> {
 protected:
  static Plan plan() {
    return {.bucket_bytes = 2000, .first_bucket_bytes = 500, .zero_level = GetParam()};
  }
};
INSTANTIATE_TEST_SUITE_P(ZeroLevels, Sharded, ::testing::Values(1, 2, 3));

TEST_P(Sharded, KeepsStateOfOnePartOnEachRank) {
  std::atomic<std::int64_t> in_all_parts = 0;
  std::atomic<std::int64_t> in_largest = 0;
  std::atomic<std::int64_t> trained = 0;
  run_ranks(4, [&](const Group& group) {
    test::Net net = make_net(1);
    torch::optim::Adam optimizer(net->parameters());
    Parallelized parallelized = parallelize(*net, plan(), group);
    parallelized.shard(optimizer);
    loss_of(net, make_batch(0, group.rank()), /*use_all=*/true).backward();
    optimizer.step();
    std::int64_t own = 0;
    for (const torch::Tensor& part : optimizer.param_groups()[0].params()) {
      own += part.numel();
      const auto known = optimizer.state().find(part.unsafeGetTensorImpl());
      if (known == optimizer.state().end()) continue;  // no step has used it
      const auto& state = dynamic_cast<torch::optim::AdamParamState&>(*known->second);
      EXPECT_EQ(state.exp_avg().numel(), part.numel());
    }
    for (const torch::Tensor& parameter : net->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
      if (group.rank() == 0) trained += parameter.numel();
    }
    in_all_parts += own;
    std::int64_t largest = in_largest;
    while (own > largest && !in_largest.compare_exchange_weak(largest, own)) {
    }
  });
  EXPECT_EQ(in_all_parts, trained);
  EXPECT_LT(in_largest, trained / 2);  // a bucket's slices are equal; few small tensors here
}

TEST_P(Sharded, ShowsWholeParametersToWhoeverLooks) {
  run_ranks(3, [](const Group& group) {
    test::Net net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Parallelized parallelized = parallelize(*net, plan(), group);
    parallelized.shard(optimizer);
    for (int step = 0; step < 2; ++step) {
      loss_of(net, make_batch(step, group.rank())).backward();
      optimizer.step();
      const torch::NoGradGuard no_grad;
      const torch::Tensor view = net->first->weight.t();
      const auto all = comm::all_gather_text(std::to_string(view.sum().item<double>()), group);
      EXPECT_EQ(all[0], all[1]);
      EXPECT_EQ(all[0], all[2]);
    }
  });
}

// Compares with one process, bit for bit. Slices have other bounds than vector instructions.
void check_that_the_optimizer_is_given_back_whole(const Plan& plan, bool is_fused) {
  const auto make = [=](const std::vector<torch::Tensor>& parameters) {
    const auto options = torch::optim::AdamWOptions(0.01).amsgrad(true);
    return is_fused ? fused_adamw(parameters, options)
                    : std::make_unique<torch::optim::AdamW>(parameters, options);
  };
  test::Net alone = make_net(1);
  const auto expected_optimizer = make(alone->parameters());
  torch::optim::AdamW& expected = *expected_optimizer;
  const auto step_alone = [&](int step) {
    std::vector<torch::Tensor> totals;
    for (int rank = 0; rank < 3; ++rank) {
      alone->zero_grad();
      loss_of(alone, make_batch(step, rank)).backward();
      std::size_t index = 0;
      for (const torch::Tensor& parameter : alone->parameters()) {
        if (rank == 0) totals.emplace_back();
        if (parameter.grad().defined()) {
          torch::Tensor& total = totals[index];
          total = total.defined() ? total + parameter.grad() : parameter.grad().clone();
        }
        ++index;
      }
    }
    std::size_t index = 0;
    for (torch::Tensor& parameter : alone->parameters()) {
      torch::Tensor& total = totals[index++];
      parameter.mutable_grad() = total.defined() ? total / 3 : total;
    }
    expected.step();
  };
  step_alone(0);
  step_alone(1);
  run_ranks(3, [&](const Group& group) {
    test::Net net = make_net(1);
    const auto own_optimizer = make(net->parameters());
    torch::optim::AdamW& optimizer = *own_optimizer;
    Parallelized parallelized = parallelize(*net, plan, group);
    for (int step = 0; step < 2; ++step) {
      parallelized.shard(optimizer);  // cut again what was made whole
      loss_of(net, make_batch(step, group.rank())).backward();
      optimizer.step();
      parallelized.unshard(optimizer);
    }
    ASSERT_EQ(optimizer.param_groups()[0].params().size(), alone->parameters().size());
    EXPECT_EQ(optimizer.state().size(), expected.state().size());
    const auto own = net->parameters();
    const auto others = alone->parameters();
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(torch::equal(own[i], others[i])) << "parameter " << i;
      EXPECT_TRUE(optimizer.param_groups()[0].params()[i].is_same(own[i]));
      const auto theirs = expected.state().find(others[i].unsafeGetTensorImpl());
      if (theirs == expected.state().end()) continue;
      const auto& state = dynamic_cast<torch::optim::AdamWParamState&>(
          *optimizer.state().at(own[i].unsafeGetTensorImpl()));
      const auto& whole = dynamic_cast<torch::optim::AdamWParamState&>(*theirs->second);
      EXPECT_EQ(state.step(), whole.step());
      EXPECT_TRUE(torch::equal(state.exp_avg(), whole.exp_avg()));
      EXPECT_TRUE(torch::equal(state.exp_avg_sq(), whole.exp_avg_sq()));
      EXPECT_TRUE(torch::equal(state.max_exp_avg_sq(), whole.max_exp_avg_sq()));
    }
  });
}

TEST_P(Sharded, GivesTheOptimizerBackWhole) {
  check_that_the_optimizer_is_given_back_whole(plan(), /*is_fused=*/false);
}

TEST_P(Sharded, GivesAFusedOptimizerBackWhole) {
  check_that_the_optimizer_is_given_back_whole(plan(), /*is_fused=*/true);
}

TEST_P(Sharded, HasTheNormOfAllPartsAndSeesAnOverflowOnAnyRank) {
  run_ranks(3, [](const Group& group) {
    std::array<double, 2> norms = {};
    std::array<torch::Tensor, 2> clipped;
    for (const bool sharded : {false, true}) {
      test::Net net = make_net(1);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      Plan own = plan();
      if (!sharded) own.zero_level = 0;
      Parallelized parallelized = parallelize(*net, own, group);
      parallelized.shard(optimizer);
      loss_of(net, make_batch(0, group.rank())).backward();
      EXPECT_TRUE(all_finite(optimizer, parallelized.sharing()));
      norms[sharded ? 1 : 0] =
          clip_by_global_norm(optimizer, 0.01, parallelized.sharing()).item<double>();
      optimizer.step();
      clipped[sharded ? 1 : 0] = net->first->weight.detach().clone();

      optimizer.zero_grad();
      // One element of one small parameter overflows.
      const float large = group.rank() == 1 ? 1e38F : 0.0F;
      const torch::Tensor overflow = net->norm->bias[0] * large * 1e38F;
      (loss_of(net, make_batch(0, group.rank())) + overflow).backward();
      EXPECT_FALSE(all_finite(optimizer, parallelized.sharing()));
      LossScale scale({.initial = 2});
      EXPECT_FALSE(scale.unscale(optimizer, parallelized.sharing()));
      EXPECT_EQ(scale.value(), 1);
    }
    EXPECT_EQ(norms[0], norms[1]);
    EXPECT_GT(norms[0], 0.01);
    EXPECT_TRUE(torch::equal(clipped[0], clipped[1]));
  });
}

TEST_P(Sharded, LeavesAnOrdinaryModuleBehind) {
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    {
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      Parallelized parallelized = parallelize(*net, plan(), group);
      parallelized.shard(optimizer);
      loss_of(net, make_batch(0, group.rank())).backward();
      optimizer.step();
    }
    const auto sums = comm::all_gather_text(
        std::to_string(net->third->bias.detach().sum().item<double>()), group);
    EXPECT_EQ(sums[0], sums[1]);
    EXPECT_FALSE(net->conv->weight.is_alias_of(net->first->weight));
    loss_of(net, make_batch(1, 0)).backward();
    EXPECT_TRUE(net->conv->weight.grad().defined());
  });
}

TEST_P(Sharded, MayBeLookedAtBetweenBackwardAndStep) {
  run_ranks(3, [](const Group& group) {
    test::Net net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Parallelized parallelized = parallelize(*net, plan(), group);
    parallelized.shard(optimizer);
    std::array<std::string, 2> sums;
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      loss_of(net, make_batch(step, group.rank())).backward();
      const double before = net->first->weight.detach().sum().item<double>();
      optimizer.step();
      const double after = net->first->weight.detach().sum().item<double>();
      EXPECT_NE(before, after);
      const auto all = comm::all_gather_text(std::to_string(after), group);
      EXPECT_TRUE(all[0] == all[1] && all[0] == all[2]);
    }
  });
}

TEST_P(Sharded, IsTheSameWithAParameterThatOnlySomeStepsUseAndZeroGradOfTheModule) {
  run_ranks(2, [](const Group& group) {
    std::array<std::vector<torch::Tensor>, 2> ends;
    for (const int zero_level : {0, GetParam()}) {
      test::Net net = make_net(1);
      torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.1));
      Plan own = plan();
      own.zero_level = zero_level;
      Parallelized parallelized = parallelize(*net, own, group);
      parallelized.shard(optimizer);
      for (int step = 0; step < 4; ++step) {
        net->zero_grad();
        // In ZeRO level 3 all ranks must touch the same parameters.
        const bool use_all = step % 2 == 1 && (group.rank() == 1 || GetParam() == 3);
        loss_of(net, make_batch(step, group.rank()), use_all).backward();
        optimizer.step();
      }
      parallelized.gather_parameters();
      for (const torch::Tensor& parameter : net->parameters()) {
        ends[zero_level == 0 ? 0 : 1].push_back(parameter.detach().clone());
      }
    }
    for (std::size_t i = 0; i < ends[0].size(); ++i) {
      EXPECT_TRUE(torch::equal(ends[0][i], ends[1][i])) << "parameter " << i;
    }
  });
}

// clip_grad_norm_ used to find no gradients and to clip nothing.
TEST_P(Sharded, RefusesFunctionsOfGradientsThatNoRankHasWhole) {
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Parallelized parallelized = parallelize(net, plan(), group);
    parallelized.shard(optimizer);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      loss_of(net, make_batch(step, group.rank())).backward();
      EXPECT_THAT(
          usage_error([&] { torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0); }),
          AllOf(HasSubstr("gradient of parameter "), HasSubstr("clip_by_global_norm(optimizer")));
      EXPECT_THAT(usage_error([&] { net->first->weight.grad().norm(); }),
                  HasSubstr("gradient of parameter first.weight"));
      EXPECT_FALSE(net->unused.grad().defined());
      net->zero_grad();  // leaves what the optimizer has
      EXPECT_FALSE(net->first->weight.grad().defined());
      // Each rank used to clip by the norm of its own slices.
      for (const double norm_type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
        const auto& stepped = optimizer.param_groups()[0].params();
        EXPECT_THAT(
            usage_error([&] { torch::nn::utils::clip_grad_norm_(stepped, 1e-3, norm_type); }),
            AllOf(HasSubstr("parameters that the plan cuts"),
                  HasSubstr("clip_by_global_norm(optimizer, max_norm, parallelized.sharing())")));
        for (const torch::Tensor& part : stepped) {
          if (part.grad().defined()) part.grad().norm();  // to look at norms is no mistake
        }
      }
      EXPECT_THAT(usage_error([&] { clip_by_global_norm(optimizer, 1e-3); }),
                  HasSubstr("clip_by_global_norm(optimizer, max_norm, parallelized.sharing())"));
      EXPECT_THAT(usage_error([&] { global_norm(optimizer, {.group = group}); }),
                  HasSubstr("steps parts of a model"));
      EXPECT_THROW(all_finite(optimizer), UsageError);
      EXPECT_THROW(LossScale().unscale(optimizer), UsageError);
      EXPECT_THROW(PostValidation(optimizer, {.max_norm = 1}).step(), UsageError);
      const auto norm = clip_by_global_norm(optimizer, 1e-3, parallelized.sharing()).item<double>();
      EXPECT_GT(norm, 1e-3);
      EXPECT_LT(global_norm(optimizer, parallelized.sharing()), 1.1e-3);
      optimizer.step();
      EXPECT_FALSE(net->first->weight.grad().defined());
      net->zero_grad(/*set_to_none=*/false);
    }
  });
}

TEST_P(Sharded, GoesBackwardTwiceThroughOneGraph) {
  run_ranks(2, [](const Group& group) {
    std::vector<std::vector<torch::Tensor>> ends;
    for (const int passes : {1, 2}) {
      test::Net net = make_net(1);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      Parallelized parallelized = parallelize(*net, plan(), group);
      parallelized.shard(optimizer);
      const auto loss = loss_of(net, make_batch(0, group.rank()));
      for (int pass = 1; pass <= passes; ++pass) loss.backward({}, /*retain_graph=*/pass < passes);
      optimizer.step();
      parallelized.gather_parameters();
      ends.push_back(test::copies(*net));
    }
    EXPECT_TRUE(test::all_equal(ends[0], ends[1]));  // the second replaces the first
  });
}

TEST_P(Sharded, CutsGradientsThatAreThereAlready) {
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    loss_of(net, make_batch(7, 0)).backward();
    Parallelized parallelized = parallelize(*net, plan(), group);
    parallelized.shard(optimizer);
    EXPECT_FALSE(net->first->weight.grad().defined());
    optimizer.zero_grad();
    loss_of(net, make_batch(0, group.rank())).backward();
    const double norm = global_norm(optimizer, parallelized.sharing());
    parallelized.unshard(optimizer);
    test::Net alone = make_net(1);
    const DataParallel parallel(*alone, group);
    loss_of(alone, make_batch(0, group.rank())).backward();
    EXPECT_EQ(norm, global_norm(torch::optim::SGD(alone->parameters(), 0.1)));
  });
}

TEST_P(Sharded, TellsWhatWouldSilentlyNotTrain) {
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    Parallelized parallelized = parallelize(*net, plan(), group);
    torch::optim::SGD some({net->conv->weight}, 0.1);
    parallelized.shard(some);
    EXPECT_THAT(usage_error([&] { loss_of(net, make_batch(0, 0)).backward(); }),
                AllOf(HasSubstr("parameter scale"), HasSubstr("for each optimizer")));
  });
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    Parallelized parallelized = parallelize(*net, plan(), group);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    parallelized.shard(optimizer);
    net->second->bias.set_data(torch::zeros({13}));
    EXPECT_THAT(usage_error([&] { loss_of(net, make_batch(0, 0)).backward(); }),
                HasSubstr("parameter second.bias has other memory"));
  });
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    {
      Parallelized first = parallelize(*net, plan(), group);
      first.shard(optimizer);
    }
    Parallelized second = parallelize(*net, plan(), group);
    EXPECT_THAT(usage_error([&] { second.shard(optimizer); }), HasSubstr("needs unshard before"));
  });
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    std::vector<torch::Tensor> others;
    for (const torch::Tensor& parameter : net->parameters()) {
      if (!parameter.is_same(net->first->weight)) others.push_back(parameter);
    }
    torch::optim::SGD one({net->first->weight}, 0.1);  // every rank has a part of it
    torch::optim::SGD other(others, 0.1);
    Parallelized parallelized = parallelize(*net, plan(), group);
    parallelized.shard(one);
    parallelized.shard(other);
    loss_of(net, make_batch(0, group.rank())).backward();
    other.step();
    static_cast<void>(net->first->weight.detach());
    one.step();
    EXPECT_THAT(usage_error([&] { loss_of(net, make_batch(1, 0)).backward(); }),
                HasSubstr("step() of all optimizers"));
  });
}

// A rank may own nothing of what one of the optimizers steps.
TEST_P(Sharded, SeesTheStepOfOneOfSeveralOptimizers) {
  run_ranks(3, [](const Group& group) {
    test::Net net = make_net(1);
    std::vector<torch::Tensor> others;
    for (const torch::Tensor& parameter : net->parameters()) {
      if (!parameter.is_same(net->third->bias)) others.push_back(parameter);
    }
    torch::optim::SGD small({net->third->bias}, 0.1);
    torch::optim::SGD large(others, 0.1);
    Parallelized parallelized = parallelize(*net, plan(), group);
    parallelized.shard(small);
    parallelized.shard(large);
    for (int step = 0; step < 3; ++step) {
      loss_of(net, make_batch(step, group.rank())).backward();
      small.step();
      const auto sums = comm::all_gather_text(
          std::to_string(net->third->bias.detach().sum().item<double>()), group);
      EXPECT_TRUE(sums[0] == sums[1] && sums[0] == sums[2]) << "step " << step;
    }
  });
}

TEST_P(Sharded, MissesAnOptimizerThatWasMadeAnew) {
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    auto optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
    Parallelized parallelized = parallelize(*net, plan(), group);
    parallelized.shard(*optimizer);
    loss_of(net, make_batch(0, group.rank())).backward();
    optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
    EXPECT_THAT(usage_error([&] { loss_of(net, make_batch(1, group.rank())).backward(); }),
                HasSubstr("call shard(optimizer)"));
    parallelized.shard(*optimizer);
    loss_of(net, make_batch(2, group.rank())).backward();
  });
}

TEST_P(Sharded, LeavesTheModuleAloneWhereTheOptimizerCannotBeCut) {
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    const torch::Tensor before = net->first->weight.detach().clone();
    torch::optim::LBFGS optimizer(net->parameters(), torch::optim::LBFGSOptions(1));
    EXPECT_THAT(usage_error([&] {
                  const ShardedDataParallel parallel(*net, optimizer, group, GetParam());
                }),
                HasSubstr("LBFGS"));
    EXPECT_TRUE(torch::equal(net->first->weight, before));
  });
}

TEST_P(Sharded, RefusesWhatCannotBe) {
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    Parallelized parallelized = parallelize(*net, plan(), group);
    torch::optim::LBFGS whole(net->parameters(), torch::optim::LBFGSOptions(1));
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    EXPECT_THAT(usage_error([&] { parallelized.shard(whole); }),
                AllOf(HasSubstr("LBFGS"), HasSubstr("inner products"), HasSubstr("zero_level 0")));
    EXPECT_THAT(usage_error([&] { loss_of(net, make_batch(0, 0)).backward(); }),
                HasSubstr("call shard(optimizer)"));
    EXPECT_FALSE(net->first->weight.grad().defined());
    EXPECT_THAT(usage_error([&] { parallelized.unshard(optimizer); }), HasSubstr("does not step"));
    parallelized.shard(optimizer);
    EXPECT_THAT(usage_error([&] { parallelized.shard(optimizer); }), HasSubstr("already"));
  });
  run_ranks(4, [](const Group& group) {
    torch::nn::Linear tiny(2, 2);
    EXPECT_THAT(usage_error([&] { static_cast<void>(parallelize(*tiny, plan(), group)); }),
                AllOf(HasSubstr("too small"), HasSubstr("rank 2 would have nothing")));
    EXPECT_FALSE(tiny->weight.key_set().has(c10::DispatchKey::DeferredInit));
  });
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Parallelized parallelized = parallelize(*net, plan(), group);
    parallelized.shard(optimizer);
    loss_of(net, make_batch(0, group.rank())).backward();
    parallelized.unshard(optimizer);  // and not cut again
    EXPECT_THAT(usage_error([&] { loss_of(net, make_batch(1, group.rank())).backward(); }),
                HasSubstr("call shard(optimizer)"));
  });
  test::Net net = make_net(1);
  EXPECT_THAT(
      usage_error([&] { static_cast<void>(parallelize(*net, {.zero_level = 4}, Group::self())); }),
      HasSubstr("zero_level is 4"));
}

}  // namespace
}  // namespace trireme
