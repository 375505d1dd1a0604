// SPDX-License-Identifier: Apache-2.0
// Gradients that travel in half precision, as their largest elements, or as a user likes.
#include <trireme/base/error.h>
#include <trireme/parallel/comm_hooks.h>

#include <tests/ranks/checks.h>
#include <tests/ranks/comm_hook_buckets.h>

#include <bit>
#include <cmath>
#include <memory>
#include <tuple>

namespace trireme {
namespace {

using comm::Group;
using test::exchange_buckets;
using test::exchange_one;
using test::expect_refused_on_all_ranks;
using test::gradient_of;
using test::have_same_bits;
using test::is_same_on_all_ranks;
using test::sum_of_gradients;
using test::usage_error;
using ::testing::HasSubstr;
using testing::run_ranks;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Half precision.

// All magnitudes that fp16 knows, and some beyond on both sides.
torch::Tensor of_all_magnitudes(int rank) {
  const torch::Tensor exponents = torch::arange(-30, 20, torch::kFloat).repeat({8});
  torch::Tensor values = gradient_of(rank, 0, exponents.sizes()).mul_(exponents.exp2());
  values[0] = -0.0F;
  values[1] = 0x1.002p0F;  // half way between two fp16
  return values;
}

template <typename Half>
torch::Tensor fold_manually(int ranks, float scale) {
  const torch::Tensor sum = torch::empty_like(of_all_magnitudes(0));
  std::vector<torch::Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(of_all_magnitudes(rank));
  for (std::int64_t i = 0; i < sum.numel(); ++i) {
    const auto term = [&](int rank) {
      const float value = parts[static_cast<std::size_t>(rank)].const_data_ptr<float>()[i];
      return static_cast<float>(Half(value / scale));
    };
    float total = term(0);
    for (int rank = 1; rank < ranks; ++rank) total += term(rank);
    sum.mutable_data_ptr<float>()[i] = static_cast<float>(Half(total)) * scale;
  }
  return sum;
}

using HalfCase = std::tuple<int, at::ScalarType>;
class HalfPrecision : public ::testing::TestWithParam<HalfCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, HalfPrecision,
                         ::testing::Combine(::testing::Values(2, 3, 4),
                                            ::testing::Values(at::kHalf, at::kBFloat16)));

TEST_P(HalfPrecision, RoundsFoldsAndRounds) {
  const auto [ranks, type] = GetParam();
  const torch::Tensor expected = type == at::kHalf
                                     ? fold_manually<c10::Half>(ranks, ranks == 2 ? 2 : 4)
                                     : fold_manually<c10::BFloat16>(ranks, 1);
  for (const char* engine : {"shm", "gloo"}) {
    testing::engine_of_ranks = engine;
    run_ranks(ranks, [&](const Group& group) {
      HalfPrecisionCommHook hook(type);
      for (int step = 0; step < 2; ++step) {
        const torch::Tensor sum = exchange_one(hook, of_all_magnitudes(group.rank()), group);
        EXPECT_TRUE(have_same_bits(sum, expected)) << engine << ", step " << step;
      }
    });
  }
  testing::engine_of_ranks = "shm";
}

TEST(HalfPrecisionCommHook, ScalesExactlyWhereNothingIsSubnormal) {
  run_ranks(3, [](const Group& group) {
    HalfPrecisionCommHook hook(at::kHalf);
    torch::Tensor total;
    for (int rank = 0; rank < 3; ++rank) {
      const torch::Tensor part = gradient_of(rank, 0, {1000}).to(at::kHalf).to(at::kFloat);
      total = total.defined() ? total + part : part;
    }
    const torch::Tensor sum = exchange_one(hook, gradient_of(group.rank(), 0, {1000}), group);
    EXPECT_TRUE(torch::equal(sum, total.to(at::kHalf).to(at::kFloat)));
  });
}

TEST(HalfPrecisionCommHook, OverflowsOnlyWhereAMeanWould) {
  run_ranks(4, [](const Group& group) {
    HalfPrecisionCommHook hook(at::kHalf);
    const torch::Tensor sum = exchange_one(hook, torch::tensor({60000.F, -60000.F}), group);
    EXPECT_TRUE(torch::equal(sum, torch::tensor({240000.F, -240000.F}))) << sum;
  });
}

TEST(HalfPrecisionCommHook, GivesInfinityToAllRanksWhereOneOverflows) {
  run_ranks(3, [](const Group& group) {
    HalfPrecisionCommHook hook(at::kHalf);
    torch::Tensor gradient = torch::ones({4});
    if (group.rank() == 1) gradient = torch::tensor({1.F, 1e6F, -1e6F, NAN});
    const torch::Tensor sum = exchange_one(hook, gradient, group);
    EXPECT_EQ(sum[0].item<float>(), 3);
    EXPECT_EQ(sum[1].item<float>(), kInfinity);
    EXPECT_EQ(sum[2].item<float>(), -kInfinity);
    EXPECT_TRUE(std::isnan(sum[3].item<float>()));
  });
}

TEST(HalfPrecisionCommHook, GoesOnWhenBucketsAreFilledAnew) {
  run_ranks(2, [](const Group& group) {
    HalfPrecisionCommHook hook(at::kBFloat16);
    constexpr std::int64_t kElements = 100001;  // short ones are read at the start already
    const auto gradient = [&](int parameter) {
      return test::NamedTensor{
          join_message("p", parameter),
          torch::full({kElements + parameter}, static_cast<float>(parameter + group.rank()))};
    };
    using Order = std::vector<std::vector<int>>;
    for (const Order& order : {Order{{0, 1}, {2, 3}}, Order{{0, 2}, {1, 3}}, Order{{0, 2}, {1, 3}},
                               Order{{3, 2, 1, 0}}, Order{{3}, {2}, {1}, {0}}}) {
      std::vector<std::vector<test::NamedTensor>> buckets;
      for (const std::vector<int>& bucket : order) {
        buckets.emplace_back();
        for (const int parameter : bucket) buckets.back().push_back(gradient(parameter));
      }
      const auto sums = exchange_buckets(hook, buckets, group);
      for (const torch::Tensor& sum : sums) {
        const auto parameter = sum.numel() - kElements;
        EXPECT_TRUE(
            torch::equal(sum, torch::full({sum.numel()}, 2.F * static_cast<float>(parameter) + 1)));
      }
    }
  });
}

TEST(HalfPrecisionCommHook, RefusesOtherTypes) {
  EXPECT_THAT(usage_error([] { HalfPrecisionCommHook hook(at::kFloat); }),
              HasSubstr("cannot travel as Float, expected Half or BFloat16"));
}

TEST(HalfPrecisionCommHook, RefusesOnAllRanksTypesThatDiffer) {
  expect_refused_on_all_ranks(
      3,
      [](const Group& group) {
        HalfPrecisionCommHook hook(group.rank() == 2 ? at::kHalf : at::kBFloat16);
        exchange_one(hook, torch::ones({4}), group);
      },
      "rank 0 has 'gradients travel as BFloat16', rank 2 has 'gradients travel as Half'");
}

// Top-k.

TEST(TopKCommHook, SendsTheLargestAndThenWhatWasLeft) {
  run_ranks(2, [](const Group& group) {
    TopKCommHook hook({.fraction = 0.4});
    const torch::Tensor zero = torch::zeros({5});
    const torch::Tensor gradient = group.rank() == 0 ? torch::tensor({5.F, -4.F, 1.F, 0.F, 0.5F})
                                                     : torch::tensor({0.25F, 3.F, -6.F, 2.F, 0.F});
    const auto step = [&](const torch::Tensor& given) { return exchange_one(hook, given, group); };
    EXPECT_TRUE(torch::equal(step(gradient), torch::tensor({5.F, -1.F, -6.F, 0.F, 0.F})));
    EXPECT_TRUE(torch::equal(step(zero), torch::tensor({0.25F, 0.F, 1.F, 2.F, 0.5F})));
    EXPECT_TRUE(torch::equal(step(zero), zero));
  });
}

TEST(TopKCommHook, ForgetsWhatWasLeftWithoutErrorFeedback) {
  run_ranks(2, [](const Group& group) {
    TopKCommHook hook({.fraction = 0.5, .error_feedback = false});
    const torch::Tensor sum = exchange_one(hook, torch::tensor({{1.F, 3.F}, {-4.F, 2.F}}), group);
    EXPECT_TRUE(torch::equal(sum, torch::tensor({{0.F, 6.F}, {-8.F, 0.F}}))) << sum;
    EXPECT_EQ(exchange_one(hook, torch::zeros({2, 2}), group).abs().max().item<float>(), 0);
  });
}

TEST(TopKCommHook, SendsOneElementAtLeastAndKeepsTheZerosBetweenGradients) {
  run_ranks(2, [](const Group& group) {
    TopKCommHook hook;
    GradientBucket bucket = test::make_bucket({{"a", torch::tensor({1.F, 2.F, 3.F})},
                                               {"empty", torch::zeros({0})},
                                               {"b", torch::tensor(7.F)}},
                                              group);
    hook.start(bucket, group)();
    EXPECT_TRUE(torch::equal(bucket.gradients[0], torch::tensor({0.F, 0.F, 6.F})));
    EXPECT_EQ(bucket.gradients[2].item<float>(), 14);
    EXPECT_EQ(bucket.memory.sum().item<float>(), 20);
  });
}

TEST(TopKCommHook, FoldsInRankOrderOverAnyEngine) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const torch::Tensor expected = sum_of_gradients(3, 0, {301}, dtype);
    for (const char* engine : {"shm", "gloo"}) {
      testing::engine_of_ranks = engine;
      run_ranks(3, [&](const Group& group) {
        TopKCommHook hook({.fraction = 1});
        const torch::Tensor sum =
            exchange_one(hook, gradient_of(group.rank(), 0, {301}, dtype), group);
        EXPECT_TRUE(torch::equal(sum, expected)) << engine << ", " << dtype;
      });
    }
  }
  testing::engine_of_ranks = "shm";
}

TEST(TopKCommHook, GivesTheSumOfAllStepsInTheEnd) {
  const auto error_after = [](int steps, bool error_feedback) {
    double error = 0;
    run_ranks(3, [&](const Group& group) {
      TopKCommHook hook({.fraction = 0.1, .error_feedback = error_feedback});
      torch::Tensor got = torch::zeros({20, 10});
      torch::Tensor expected = torch::zeros({20, 10});
      for (int step = 0; step < steps; ++step) {
        const torch::Tensor sum =
            exchange_one(hook, gradient_of(group.rank(), step, {20, 10}), group);
        EXPECT_TRUE(is_same_on_all_ranks(sum, group));
        got += sum;
        expected += sum_of_gradients(3, step, {20, 10});
      }
      if (group.rank() == 0) error = (got - expected).norm().item<double>();
    });
    return error;
  };
  // What is left over stays what it is; without it, errors of all steps add up.
  EXPECT_LT(error_after(160, true), 1.5 * error_after(40, true));
  EXPECT_GT(error_after(160, false), 1.5 * error_after(40, false));
}

TEST(TopKCommHook, DoesNotDependOnBuckets) {
  run_ranks(2, [](const Group& group) {
    TopKCommHook together({.fraction = 0.2});
    TopKCommHook apart({.fraction = 0.2});
    for (int step = 0; step < 3; ++step) {
      const test::NamedTensor a = {"a", gradient_of(group.rank(), step, {11})};
      const test::NamedTensor b = {"b", gradient_of(group.rank(), 100 + step, {3, 50})};
      const auto expected = exchange_buckets(together, {{a, b}}, group);
      // Filled anew after the first step.
      const auto got = step == 0 ? exchange_buckets(apart, {{a, b}}, group)
                                 : exchange_buckets(apart, {{a}, {b}}, group);
      EXPECT_TRUE(torch::equal(got[0], expected[0]) && torch::equal(got[1], expected[1])) << step;
    }
  });
}

TEST(TopKCommHook, FollowsTheMemoryOfAPermutedGradient) {
  run_ranks(2, [](const Group& group) {
    TopKCommHook hook({.fraction = 0.25});
    const torch::Tensor gradient =
        torch::tensor({{1.F, 9.F, 2.F}, {8.F, 3.F, 4.F}, {0.F, 0.F, 5.F}, {0.F, 0.F, 0.F}});
    const torch::Tensor first = exchange_one(hook, gradient.t().contiguous().t(), group);
    EXPECT_TRUE(torch::equal(first, torch::where(gradient.gt(4), 2 * gradient, torch::zeros({}))))
        << first;
    const torch::Tensor second = exchange_one(hook, torch::zeros({3, 4}).t(), group);
    EXPECT_TRUE(torch::equal(second, torch::where(gradient.gt(4).logical_or(gradient.lt(2)),
                                                  torch::zeros({}), 2 * gradient)))
        << second;
  });
}

TEST(TopKCommHook, KeepsWhatWasLeftWhereAGradientIsNotFinite) {
  run_ranks(2, [](const Group& group) {
    TopKCommHook hook({.fraction = 0.5});
    exchange_one(hook, torch::tensor({1.F, 2.F, 3.F, 4.F}), group);
    torch::Tensor bad = torch::ones({4});
    if (group.rank() == 1) bad = torch::tensor({kInfinity, NAN, NAN, 1.F});
    EXPECT_FALSE(torch::isfinite(exchange_one(hook, bad, group)).all().item<bool>());
    const torch::Tensor next = exchange_one(hook, torch::zeros({4}), group);
    EXPECT_TRUE(torch::equal(next, torch::tensor({2.F, 4.F, 0.F, 0.F}))) << next;
  });
}

TEST(TopKCommHook, RefusesWhatCannotBe) {
  for (const double fraction : {0.0, -0.5, 1.5, std::nan("")}) {
    EXPECT_THAT(usage_error([&] { TopKCommHook hook({.fraction = fraction}); }),
                HasSubstr("expected one above 0 and at most 1"));
  }
  expect_refused_on_all_ranks(
      2,
      [](const Group& group) {
        TopKCommHook hook({.fraction = group.rank() == 0 ? 0.1 : 0.1 + 1e-9});
        exchange_one(hook, torch::ones({4}), group);
      },
      "top-k, fraction 0.10000000");
  expect_refused_on_all_ranks(
      2,
      [](const Group& group) {
        TopKCommHook hook;
        exchange_one(hook, torch::ones({4}), group);
        exchange_one(hook, torch::ones({5}), group);
      },
      "parameter weight has 5 elements, and had 4 in the step before");
}

// What holds for all.

std::vector<std::unique_ptr<CommHook>> all_exchanges() {
  std::vector<std::unique_ptr<CommHook>> all;
  all.push_back(std::make_unique<HalfPrecisionCommHook>(at::kHalf));
  all.push_back(std::make_unique<HalfPrecisionCommHook>(at::kBFloat16));
  all.push_back(std::make_unique<PowerSgdCommHook>(PowerSgdOptions{.start_iteration = 0}));
  all.push_back(std::make_unique<TopKCommHook>());
  return all;
}

TEST(CommHook, LeavesGradientsOfAGroupOfOneAsTheyAre) {
  for (const auto& hook : all_exchanges()) {
    for (int step = 0; step < 2; ++step) {
      const torch::Tensor gradient = gradient_of(0, step, {30, 40});
      EXPECT_TRUE(have_same_bits(exchange_one(*hook, gradient, Group::self()), gradient));
    }
  }
}

TEST(CommHook, SumsAsTheyAreWhatItDoesNotCompress) {
  run_ranks(3, [](const Group& group) {
    const auto exchanges = all_exchanges();
    for (std::size_t i = 0; i < exchanges.size(); ++i) {
      const bool is_half = i < 2;
      const at::ScalarType dtype = is_half ? at::kDouble : at::kBFloat16;
      const torch::Tensor gradient = gradient_of(group.rank(), 0, {30, 40}, dtype);
      const torch::Tensor expected = gradient.clone();
      comm::all_reduce(expected, group);
      EXPECT_TRUE(have_same_bits(exchange_one(*exchanges[i], gradient, group), expected)) << i;
    }
  });
}

// The example of comm_hook.h.
class Doubling final : public CommHook {
 public:
  std::function<void()> start(GradientBucket& bucket, const Group& group) override {
    auto wide = bucket.memory.to(at::kDouble);
    auto work = std::make_shared<comm::Work>(comm::all_reduce_async(wide, group));
    return [=, memory = bucket.memory] { work->wait(), memory.copy_(wide); };
  }
};

TEST(CommHook, MayBeTheUsersOwn) {
  run_ranks(3, [](const Group& group) {
    Doubling hook;
    // In fp32 the one would be lost.
    const torch::Tensor gradient =
        torch::full({2}, group.rank() == 1 ? 1.F : 1e9F * (1 - static_cast<float>(group.rank())));
    const torch::Tensor sum = exchange_one(hook, gradient, group);
    EXPECT_TRUE(torch::equal(sum, torch::ones({2}))) << sum;
  });
}

}  // namespace
}  // namespace trireme
