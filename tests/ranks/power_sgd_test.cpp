// SPDX-License-Identifier: Apache-2.0
// Gradients that travel as products of thin matrices.
#include <trireme/base/error.h>
#include <trireme/parallel/comm_hooks.h>

#include <tests/ranks/comm_hook_buckets.h>

#include <cmath>

namespace trireme {
namespace {

using comm::Group;
using test::exchange_buckets;
using test::exchange_one;
using test::gradient_of;
using test::have_same_bits;
using test::is_same_on_all_ranks;
using test::relative_error;
using test::sum_of_gradients;
using testing::run_ranks;

// From the first step on, and everything that has two dimensions.
PowerSgdOptions always(std::int64_t rank) {
  return {.rank = rank, .start_iteration = 0, .min_compression_rate = 1e-6};
}

TEST(PowerSgdCommHook, OfFullRankIsTheSum) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    run_ranks(3, [&](const Group& group) {
      PowerSgdCommHook hook(always(64));
      const std::vector<std::vector<std::int64_t>> shapes = {{8, 6},       {6, 8}, {7},
                                                             {5, 3, 2, 2}, {1, 9}, {}};
      for (int step = 0; step < 3; ++step) {
        std::vector<test::NamedTensor> gradients;
        for (const auto& shape : shapes) {
          gradients.push_back(
              {join_message("p", gradients.size()), gradient_of(group.rank(), step, shape, dtype)});
        }
        gradients[3].tensor = gradients[3].tensor.contiguous(torch::MemoryFormat::ChannelsLast);
        const auto sums = exchange_buckets(hook, {gradients}, group);
        for (std::size_t i = 0; i < sums.size(); ++i) {
          const torch::Tensor expected = sum_of_gradients(3, step, shapes[i], dtype);
          if (shapes[i].size() < 2) {
            EXPECT_TRUE(torch::equal(sums[i], expected)) << i;
          } else {
            // P is orthonormal within rounding, so the error is that of two products.
            EXPECT_LT(relative_error(sums[i], expected), dtype == at::kFloat ? 2e-6 : 1e-14) << i;
          }
          EXPECT_TRUE(is_same_on_all_ranks(sums[i], group));
        }
      }
    });
  }
}

// The formulae of the paper, in the form of PyTorch's hook: the error is of the whole sum.
TEST(PowerSgdCommHook, FollowsTheFormulae) {
  constexpr std::int64_t kRank = 3;
  const auto orthonormal = [](const torch::Tensor& matrix) {
    return std::get<0>(torch::linalg_qr(matrix));
  };
  torch::Tensor right = torch::randn({30, kRank}, at::detail::createCPUGenerator(7));
  torch::Tensor error = torch::zeros({20, 30});
  std::vector<torch::Tensor> expected;
  for (int step = 0; step < 4; ++step) {
    const torch::Tensor whole = sum_of_gradients(4, step, {20, 30}) + error;
    const torch::Tensor left = orthonormal(whole.mm(orthonormal(right)));
    right = whole.t().mm(left);
    expected.push_back(left.mm(right.t()));
    error = whole - expected.back();
  }
  run_ranks(4, [&](const Group& group) {
    PowerSgdOptions options = always(kRank);
    options.seed = 7;
    PowerSgdCommHook hook(options);
    for (int step = 0; step < 4; ++step) {
      const torch::Tensor sum =
          exchange_one(hook, gradient_of(group.rank(), step, {20, 30}), group);
      EXPECT_LT(relative_error(sum, expected[static_cast<std::size_t>(step)]), 1e-4)
          << "step " << step;
    }
  });
}

// Norm of the difference between the sum of all results and of all gradients.
double error_after(int steps, const PowerSgdOptions& options) {
  double error = 0;
  run_ranks(3, [&](const Group& group) {
    PowerSgdCommHook hook(options);
    torch::Tensor got = torch::zeros({24, 16});
    torch::Tensor expected = torch::zeros({24, 16});
    for (int step = 0; step < steps; ++step) {
      // Every rank has a direction of its own beside the noise.
      const auto gradient = [&](int rank) {
        return gradient_of(rank, step, {24, 16}) + gradient_of(rank, 999, {24, 16});
      };
      const torch::Tensor sum = exchange_one(hook, gradient(group.rank()), group);
      EXPECT_TRUE(is_same_on_all_ranks(sum, group));
      got += sum;
      for (int rank = 0; rank < 3; ++rank) expected += gradient(rank);
    }
    if (group.rank() == 0) error = (got - expected).norm().item<double>();
  });
  return error;
}

TEST(PowerSgdCommHook, GivesTheSumOfAllStepsInTheEnd) {
  PowerSgdOptions options = always(2);
  EXPECT_LT(error_after(320, options), 1.5 * error_after(80, options));
  options.error_feedback = false;
  EXPECT_GT(error_after(320, options), 3 * error_after(80, options));
}

TEST(PowerSgdCommHook, ApproachesTheBestApproximationWithAWarmStart) {
  const auto error_with = [](bool warm_start) {
    double error = 0;
    run_ranks(2, [&](const Group& group) {
      PowerSgdOptions options = always(2);
      options.error_feedback = false;
      options.warm_start = warm_start;
      PowerSgdCommHook hook(options);
      torch::Tensor sum;
      for (int step = 0; step < 60; ++step) {
        sum = exchange_one(hook, gradient_of(group.rank(), 0, {12, 10}), group);
      }
      if (group.rank() == 0) error = (sum - sum_of_gradients(2, 0, {12, 10})).norm().item<double>();
    });
    return error;
  };
  const torch::Tensor values = torch::linalg_svdvals(sum_of_gradients(2, 0, {12, 10}));
  const double least = values.slice(0, 2).norm().item<double>();
  EXPECT_NEAR(error_with(true), least, 1e-3 * least);
  EXPECT_GT(error_with(false), 1.02 * least);
}

TEST(PowerSgdCommHook, SumsAsTheyAreEarlyStepsAndWhatDoesNotPay) {
  run_ranks(2, [](const Group& group) {
    PowerSgdCommHook hook({.rank = 1, .start_iteration = 2, .min_compression_rate = 4});
    for (int step = 0; step < 4; ++step) {
      const std::vector<std::vector<std::int64_t>> shapes = {{8, 8}, {8, 7}, {64}};
      std::vector<test::NamedTensor> gradients;
      for (const auto& shape : shapes) {
        gradients.push_back(
            {join_message("p", gradients.size()), gradient_of(group.rank(), step, shape)});
      }
      const auto sums = exchange_buckets(hook, {gradients}, group);
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const bool is_compressed = i == 0 && step >= 2;
        EXPECT_EQ(torch::equal(sums[i], sum_of_gradients(2, step, shapes[i])), !is_compressed)
            << "gradient " << i << ", step " << step;
      }
      EXPECT_EQ(torch::linalg_matrix_rank(sums[0], 1e-4).item<std::int64_t>(), step >= 2 ? 1 : 8);
    }
  });
}

TEST(PowerSgdCommHook, GoesOnWhenBucketsAreFilledAnew) {
  run_ranks(2, [](const Group& group) {
    PowerSgdCommHook together(always(2));
    PowerSgdCommHook apart(always(2));
    for (int step = 0; step < 4; ++step) {
      const test::NamedTensor a = {"a", gradient_of(group.rank(), step, {9, 11})};
      const test::NamedTensor b = {"b", gradient_of(group.rank(), 100 + step, {13, 5})};
      const auto expected = exchange_buckets(together, {{a, b}}, group);
      const auto got = step == 0 ? exchange_buckets(apart, {{a, b}}, group)
                                 : exchange_buckets(apart, {{a}, {b}}, group);
      // Factors lie elsewhere, and the bits of a product depend on that.
      EXPECT_LT(relative_error(got[0], expected[0]), 1e-4);
      EXPECT_LT(relative_error(got[1], expected[1]), 1e-4);
    }
  });
}

TEST(PowerSgdCommHook, FindsWhatComesAfterZeros) {
  run_ranks(2, [](const Group& group) {
    PowerSgdCommHook hook(always(2));
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(
          torch::equal(exchange_one(hook, torch::zeros({6, 6}), group), torch::zeros({6, 6})));
    }
    // Its rank is 1, below the approximation's, and then 2, elsewhere.
    torch::Tensor gradient = torch::zeros({6, 6});
    gradient[4][3] = 5;
    for (int step = 0; step < 3; ++step) {
      EXPECT_LT(relative_error(exchange_one(hook, gradient, group), 2 * gradient), 1e-6);
    }
    gradient[2][1] = -3;
    for (int step = 0; step < 3; ++step) {
      EXPECT_LT(relative_error(exchange_one(hook, gradient, group), 2 * gradient), 1e-6) << step;
    }
  });
}

TEST(PowerSgdCommHook, GoesOnAfterAGradientThatIsNotFinite) {
  run_ranks(3, [](const Group& group) {
    PowerSgdCommHook interrupted(always(2));
    PowerSgdCommHook undisturbed(always(2));
    for (int step = 0; step < 6; ++step) {
      const torch::Tensor gradient = gradient_of(group.rank(), step, {10, 8});
      if (step % 3 == 0) {
        torch::Tensor bad = gradient.clone();
        if (group.rank() == 1) bad[step][5] = step == 0 ? INFINITY : NAN;
        const torch::Tensor sum = exchange_one(interrupted, bad, group);
        EXPECT_FALSE(torch::isfinite(sum).all().item<bool>());
        EXPECT_TRUE(is_same_on_all_ranks(sum, group));
      }
      const torch::Tensor sum = exchange_one(interrupted, gradient, group);
      const torch::Tensor expected = exchange_one(undisturbed, gradient, group);
      EXPECT_TRUE(have_same_bits(sum, expected)) << "step " << step;
      EXPECT_TRUE(torch::isfinite(sum).all().item<bool>());
    }
  });
}

TEST(PowerSgdCommHook, LeavesTheDefaultGeneratorAlone) {
  torch::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const torch::Tensor before = generator.get_state();
  run_ranks(2, [](const Group& group) {
    PowerSgdOptions options = always(1);
    options.warm_start = false;
    PowerSgdCommHook hook(options);
    for (int step = 0; step < 2; ++step) exchange_one(hook, torch::ones({4, 4}), group);
  });
  EXPECT_TRUE(torch::equal(generator.get_state(), before));
}

// Ranks are threads here, and two exchanges of one rank know nothing of each other either.
TEST(PowerSgdCommHook, SharesNothingWithOthers) {
  const auto last_sum = [](bool has_another) {
    torch::Tensor last;
    run_ranks(2, [&](const Group& group) {
      PowerSgdCommHook hook(always(1));
      PowerSgdCommHook another(always(1));
      torch::Tensor sum;
      for (int step = 0; step < 5; ++step) {
        if (has_another) {
          exchange_one(another, gradient_of(group.rank(), 50 + step, {7, 7}), group);
        }
        sum = exchange_one(hook, gradient_of(group.rank(), step, {7, 7}), group);
      }
      if (group.rank() == 1) last = sum;
    });
    return last;
  };
  EXPECT_TRUE(have_same_bits(last_sum(true), last_sum(false)));
}

TEST(PowerSgdCommHook, IsTheSameOnAllRanksOverGloo) {
  testing::engine_of_ranks = "gloo";
  run_ranks(3, [](const Group& group) {
    PowerSgdCommHook hook(always(2));
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(is_same_on_all_ranks(
          exchange_one(hook, gradient_of(group.rank(), step, {9, 9}), group), group));
    }
  });
  testing::engine_of_ranks = "shm";
}

TEST(PowerSgdCommHook, RefusesWhatCannotBe) {
  const auto message = [](const PowerSgdOptions& options) -> std::string {
    try {
      PowerSgdCommHook hook(options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message({.rank = 0}), HasSubstr("PowerSGD: rank 0,"));
  EXPECT_THAT(message({.start_iteration = -1}), HasSubstr("start_iteration -1,"));
  EXPECT_THAT(message({.min_compression_rate = 0}), HasSubstr("min_compression_rate 0,"));
  EXPECT_THAT(message({.min_compression_rate = NAN}), HasSubstr("min_compression_rate nan,"));
  EXPECT_THAT(message({.orthogonalization_epsilon = 1}),
              HasSubstr("orthogonalization_epsilon 1\n"));
  EXPECT_THAT(message({.orthogonalization_epsilon = -1e-9}),
              HasSubstr("orthogonalization_epsilon -1e-09"));
  test::expect_refused_on_all_ranks(
      3,
      [](const Group& group) {
        PowerSgdCommHook hook({.seed = group.rank() == 1 ? 5U : 0U});
        exchange_one(hook, torch::ones({4, 4}), group);
      },
      "seed 5");
  test::expect_refused_on_all_ranks(
      2,
      [](const Group& group) {
        PowerSgdCommHook hook(always(1));
        exchange_one(hook, torch::ones({4, 6}), group);
        exchange_one(hook, torch::ones({6, 4}), group);
      },
      "parameter weight is a matrix [6, 4], and was [4, 6] in the step before");
}

}  // namespace
}  // namespace trireme
