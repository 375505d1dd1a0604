// SPDX-License-Identifier: Apache-2.0
// Reductions of large tensors in half precision, cut along every dim: no further from the values in
// single precision than one process is. Sums of a part must not overflow where the result does not.
#include <tests/ranks/operators/operator_checks.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace trireme {
namespace {

using test::Tensors;

struct HalfCase {
  std::string name;
  std::function<torch::Tensor(const Tensors&)> function;
  /// Of the given dtype; a gradient is taken of the first.
  std::function<Tensors(torch::ScalarType)> inputs;
  bool has_gradient = true;
  /// Which input is cut along each of its dims, with those of its sizes; others are replicated.
  std::size_t cut = 0;
};

// Values from `low` to `high` in no order.
torch::Tensor values(torch::IntArrayRef sizes, double low, double high, torch::ScalarType dtype) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return (torch::arange(count, torch::kDouble).mul(0.6180339887).frac() * (high - low) + low)
      .to(dtype)
      .reshape(sizes);
}

struct Outcome {
  torch::Tensor value;
  torch::Tensor gradient;
};

// A gradient as a loss scale gives it.
constexpr double kLossScale = 512;

Outcome outcome_of(const HalfCase& one_case, const Tensors& inputs) {
  Outcome result;
  result.value = one_case.function(inputs);
  if (one_case.has_gradient) {
    const torch::Tensor& value = result.value;
    auto weights = value.dim() == 0 ? torch::full({}, kLossScale, value.scalar_type())
                                    : values(value.sizes(), -1, 1, value.scalar_type());
    if (has_layout(value))
      weights = distribute(weights, Layout::replicated(layout_of(value).mesh()));
    result.value.backward(weights);
    result.gradient = inputs[0].grad();
  }
  return result;
}

Tensors copied(const Tensors& inputs, torch::ScalarType dtype, bool has_gradient) {
  Tensors all;
  for (const torch::Tensor& input : inputs) {
    all.push_back(input.is_floating_point() ? input.to(dtype).clone() : input);
  }
  all[0].requires_grad_(has_gradient);
  return all;
}

double distance(const torch::Tensor& a, const torch::Tensor& b) {
  return (a.to(torch::kDouble) - b.to(torch::kDouble)).abs().max().item<double>();
}

// `got` may be as far from `exact` as one process, twice, or as rounding a few times makes it.
void expect_as_exact(const torch::Tensor& got, const torch::Tensor& alone,
                     const torch::Tensor& exact, const std::string& what) {
  const auto whole = full(got).detach();
  ASSERT_EQ(whole.scalar_type(), alone.scalar_type()) << what;
  const double step = whole.scalar_type() == torch::kHalf ? 0x1p-10 : 0x1p-7;
  const double largest = exact.to(torch::kDouble).abs().max().item<double>();
  const double bound = std::max(4 * step * largest, 0x1p-24);
  const double of_one = distance(alone, exact);
  const double ours = distance(whole, exact);
  // One process may overflow where parts do not: then the bound counts.
  EXPECT_LE(ours, std::isfinite(of_one) ? std::max(2 * of_one, bound) : bound)
      << what << ": one process is off by " << of_one;
}

std::vector<HalfCase> all_cases() {
  const auto small = [](torch::ScalarType dtype) {
    return Tensors{values({6, 12000}, 1, 2, dtype)};
  };
  const auto large = [](torch::ScalarType dtype) {
    return Tensors{values({6, 12000}, 2, 9, dtype)};
  };
  const auto pair = [](torch::ScalarType dtype) {
    return Tensors{values({6, 12000}, 0.1, 6, dtype), values({6, 12000}, -3, -0.1, dtype)};
  };
  const auto probabilities = [](torch::ScalarType dtype) {
    return Tensors{values({6, 12000}, 0.1, 0.9, dtype), values({6, 12000}, 0, 1, dtype)};
  };
  const auto rows = [](torch::ScalarType dtype) {
    return Tensors{values({24, 3000}, -4, 4, dtype)};
  };
  const auto images = [](torch::ScalarType dtype) {
    return Tensors{values({4, 8, 48, 48}, 20, 60, dtype)};
  };
  const auto scores = [](torch::ScalarType dtype) {
    const auto classes = torch::arange(24000, torch::kLong).remainder(6);
    return Tensors{values({24000, 6}, -9, 9, dtype), classes};
  };
  const auto few_scores = [](torch::ScalarType dtype) {
    const auto classes = torch::arange(600, torch::kLong).remainder(6);
    return Tensors{values({600, 6}, -9, 9, dtype), classes};
  };
  return {
      {"mean", [](const Tensors& in) { return in[0].mean(); }, large},
      {"mean of rows", [](const Tensors& in) { return in[0].mean(1); }, large},
      {"sum of rows", [](const Tensors& in) { return in[0].sum(1); }, small},
      {"var", [](const Tensors& in) { return in[0].var(); }, large},
      {"std of rows", [](const Tensors& in) { return in[0].std(1); }, large},
      {"norm", [](const Tensors& in) { return torch::linalg_vector_norm(in[0], 2); }, large},
      {"norm of rows",
       [](const Tensors& in) { return torch::linalg_vector_norm(in[0], 2, torch::IntArrayRef{1}); },
       large},
      {"dist", [](const Tensors& in) { return torch::dist(in[0], in[1]); }, pair},
      {"logsumexp", [](const Tensors& in) { return torch::logsumexp(in[0], 1); }, rows},
      {"softmax", [](const Tensors& in) { return torch::softmax(in[0], 1); }, rows},
      {"log_softmax", [](const Tensors& in) { return torch::log_softmax(in[0], 1); }, rows},
      {"layer_norm", [](const Tensors& in) { return torch::layer_norm(in[0], {3000}); }, rows},
      {"rms_norm", [](const Tensors& in) { return torch::rms_norm(in[0], {3000}); }, rows},
      {"group_norm", [](const Tensors& in) { return torch::group_norm(in[0], 2); }, images},
      {"batch_norm",
       [](const Tensors& in) {
         return torch::batch_norm(in[0], {}, {}, {}, {}, true, 0.1, 1e-5, false);
       },
       images},
      {"avg_pool2d", [](const Tensors& in) { return torch::avg_pool2d(in[0], 24); }, images},
      {"adaptive_avg_pool2d",
       [](const Tensors& in) { return torch::adaptive_avg_pool2d(in[0], {1, 1}); }, images},
      {"cosine_similarity",
       [](const Tensors& in) { return torch::cosine_similarity(in[0], in[1], 1); }, pair},
      {"mse_loss", [](const Tensors& in) { return torch::mse_loss(in[0], in[1]); }, pair},
      {"l1_loss", [](const Tensors& in) { return torch::l1_loss(in[0], in[1]); }, pair},
      {"smooth_l1_loss", [](const Tensors& in) { return torch::smooth_l1_loss(in[0], in[1]); },
       pair},
      {"huber_loss", [](const Tensors& in) { return torch::huber_loss(in[0], in[1]); }, pair},
      {"soft_margin_loss",
       [](const Tensors& in) { return torch::soft_margin_loss(in[0], in[1].sign()); }, pair},
      {"binary_cross_entropy",
       [](const Tensors& in) { return torch::binary_cross_entropy(in[0], in[1]); }, probabilities},
      {"binary_cross_entropy_with_logits",
       [](const Tensors& in) {
         return torch::binary_cross_entropy_with_logits(in[0], in[1].abs() / 3);
       },
       pair},
      {"kl_div", [](const Tensors& in) { return torch::kl_div(in[1], in[0]); }, pair},
      {"cross_entropy", [](const Tensors& in) { return torch::cross_entropy_loss(in[0], in[1]); },
       scores},
      {"cross_entropy with smoothing",
       [](const Tensors& in) {
         return torch::cross_entropy_loss(in[0], in[1], {}, at::Reduction::Mean, -100, 0.1);
       },
       few_scores},
  };
}

// Operators that add up over a dim that may be cut, or over rows in backward.
std::vector<HalfCase> products() {
  const auto matrices = [](torch::ScalarType dtype) {
    return Tensors{values({24, 6000}, -4, 4, dtype), values({6000, 8}, -4, 4, dtype)};
  };
  const auto batches = [](torch::ScalarType dtype) {
    return Tensors{values({4, 12, 3000}, -4, 4, dtype), values({4, 3000, 8}, -4, 4, dtype)};
  };
  const auto layer = [](torch::ScalarType dtype) {
    return Tensors{values({24, 6000}, -2, 2, dtype), values({8, 6000}, -1, 1, dtype),
                   values({8}, -1, 1, dtype)};
  };
  const auto weight_and_rows = [](torch::ScalarType dtype) {
    return Tensors{values({8, 16}, -1, 1, dtype), values({6000, 16}, -2, 2, dtype)};
  };
  const auto images = [](torch::ScalarType dtype) {
    return Tensors{values({4, 8, 24, 24}, -4, 4, dtype), values({6, 8, 3, 3}, -1, 1, dtype)};
  };
  const auto kernel_and_images = [](torch::ScalarType dtype) {
    return Tensors{values({6, 8, 3, 3}, -1, 1, dtype), values({4, 8, 24, 24}, -4, 4, dtype)};
  };
  const auto table_and_words = [](torch::ScalarType dtype) {
    return Tensors{values({16, 8}, -1, 1, dtype), torch::arange(6000, torch::kLong).remainder(16)};
  };
  const auto heads = [](torch::ScalarType dtype) {
    return Tensors{values({2, 4, 256, 32}, -2, 2, dtype), values({2, 4, 256, 32}, -1, 2, dtype),
                   values({2, 4, 256, 32}, -4, 3, dtype)};
  };
  const auto direction = [](torch::ScalarType dtype) {
    return Tensors{values({8, 6000}, 1, 6, dtype), values({8, 1}, 1, 2, dtype)};
  };
  const auto both_sides = [](torch::ScalarType dtype) {
    return Tensors{values({64, 80}, -1, 1, dtype), values({64, 60}, -1, 1, dtype),
                   values({6, 80, 60}, -1, 1, dtype)};
  };
  const auto sequences = [](torch::ScalarType dtype) {
    return Tensors{values({12, 8, 6}, -1, 1, dtype),  values({1, 8, 10}, -1, 1, dtype),
                   values({40, 6}, -0.5, 0.5, dtype), values({40, 10}, -0.5, 0.5, dtype),
                   values({40}, -0.5, 0.5, dtype),    values({40}, -0.5, 0.5, dtype)};
  };
  const auto linear = [](const Tensors& in) { return torch::linear(in[0], in[1], in[2]); };
  const auto linear_of_rows = [](const Tensors& in) { return torch::linear(in[1], in[0]); };
  const auto convolve = [](const Tensors& in) { return torch::conv2d(in[0], in[1]); };
  const auto convolve_images = [](const Tensors& in) { return torch::conv2d(in[1], in[0]); };
  return {
      {"mm", [](const Tensors& in) { return torch::mm(in[0], in[1]); }, matrices},
      {"bmm", [](const Tensors& in) { return torch::bmm(in[0], in[1]); }, batches},
      {"linear", linear, layer},
      {"linear with its weight cut", linear, layer, true, 1},
      {"gradient of the weight of linear", linear_of_rows, weight_and_rows, true, 1},
      {"conv2d", convolve, images},
      {"gradient of the weight of conv2d", convolve_images, kernel_and_images, true, 1},
      {"embedding", [](const Tensors& in) { return torch::embedding(in[0], in[1]); },
       table_and_words},
      {"gradient of the table of embedding",
       [](const Tensors& in) { return torch::embedding(in[0], in[1]); }, table_and_words, true, 1},
      {"attention",
       [](const Tensors& in) { return torch::scaled_dot_product_attention(in[0], in[1], in[2]); },
       heads},
      {"weight_norm", [](const Tensors& in) { return torch::_weight_norm(in[0], in[1], 0); },
       direction},
      {"bilinear", [](const Tensors& in) { return torch::bilinear(in[0], in[1], in[2]); },
       both_sides},
      {"lstm",
       [](const Tensors& in) {
         return std::get<0>(torch::lstm(in[0], {in[1], in[1]}, {in[2], in[3], in[4], in[5]},
                                        /*has_biases=*/true, 1, 0.0, /*train=*/false,
                                        /*bidirectional=*/false, /*batch_first=*/false));
       },
       sequences},
  };
}

// Sums that half precision holds, where their parts are as many as it counts.
std::vector<HalfCase> sums() {
  const auto pair = [](torch::ScalarType dtype) {
    return Tensors{values({6, 2000}, 0.1, 2, dtype), values({6, 2000}, -1, -0.1, dtype)};
  };
  const auto probabilities = [](torch::ScalarType dtype) {
    return Tensors{values({6, 2000}, 0.1, 0.9, dtype), values({6, 2000}, 0, 1, dtype)};
  };
  const auto scores = [](torch::ScalarType dtype) {
    const auto classes = torch::arange(6000, torch::kLong).remainder(6);
    return Tensors{values({6000, 6}, -4, 4, dtype), classes};
  };
  const auto rows = [](torch::ScalarType dtype) {
    return Tensors{values({4800, 6}, 0.1, 1, dtype),
                   torch::arange(4800, torch::kLong).remainder(16), torch::ones({16, 6}, dtype),
                   torch::arange(28800, torch::kLong).remainder(16).view({4800, 6})};
  };
  const auto few = [](torch::ScalarType dtype) { return Tensors{values({6, 3000}, 0, 1, dtype)}; };
  constexpr auto kSum = at::Reduction::Sum;
  return {
      {"mse_loss", [](const Tensors& in) { return torch::mse_loss(in[0], in[1], kSum); }, pair},
      {"l1_loss", [](const Tensors& in) { return torch::l1_loss(in[0], in[1], kSum); }, pair},
      {"smooth_l1_loss",
       [](const Tensors& in) { return torch::smooth_l1_loss(in[0], in[1], kSum); }, pair},
      {"huber_loss", [](const Tensors& in) { return torch::huber_loss(in[0], in[1], kSum); }, pair},
      {"soft_margin_loss",
       [](const Tensors& in) { return torch::soft_margin_loss(in[0], in[1].sign(), kSum); }, pair},
      {"binary_cross_entropy",
       [](const Tensors& in) { return torch::binary_cross_entropy(in[0], in[1], {}, kSum); },
       probabilities},
      {"binary_cross_entropy_with_logits",
       [](const Tensors& in) {
         return torch::binary_cross_entropy_with_logits(in[0], in[1].abs(), {}, {}, kSum);
       },
       pair},
      {"kl_div", [](const Tensors& in) { return torch::kl_div(in[1], in[0], kSum); }, pair},
      {"cross_entropy",
       [](const Tensors& in) { return torch::cross_entropy_loss(in[0], in[1], {}, kSum); }, scores},
      {"mse_loss without a reduction",
       [](const Tensors& in) { return torch::mse_loss(in[0], in[1], at::Reduction::None); }, pair},
      {"index_add", [](const Tensors& in) { return torch::index_add(in[2], 0, in[1], in[0]); },
       rows},
      {"scatter_add", [](const Tensors& in) { return torch::scatter_add(in[2], 0, in[3], in[0]); },
       rows},
      {"cumsum", [](const Tensors& in) { return torch::cumsum(in[0], 1); }, few},
  };
}

class HalfPrecision : public ::testing::TestWithParam<HalfCase> {};

TEST_P(HalfPrecision, IsAsExactAsOneProcess) {
  const HalfCase& one_case = GetParam();
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    // The values are those that half precision has.
    const Tensors rounded = one_case.inputs(dtype);
    const Outcome exact =
        outcome_of(one_case, copied(rounded, torch::kFloat, one_case.has_gradient));
    const Outcome alone = outcome_of(one_case, copied(rounded, dtype, one_case.has_gradient));
    testing::run_ranks(2, [&](const comm::Group& group) {
      const DeviceMesh mesh(group, {{"tensor", 2}});
      for (int dim = 0; dim < static_cast<int>(rounded[one_case.cut].dim()); ++dim) {
        Tensors inputs = copied(rounded, dtype, false);
        for (torch::Tensor& input : inputs) {
          const bool is_alike = input.sizes() == rounded[one_case.cut].sizes();
          input = distribute(
              input, Layout(mesh, {is_alike ? Placement(Shard{dim}) : Placement(Replicate{})}));
        }
        inputs[0] = inputs[0].detach().requires_grad_(one_case.has_gradient);
        const Outcome got = outcome_of(one_case, inputs);
        const std::string what = one_case.name + join_message(" of ", dtype, ", cut along ", dim);
        expect_as_exact(got.value, alone.value.detach(), exact.value.detach(), what);
        if (one_case.has_gradient) {
          expect_as_exact(got.gradient, alone.gradient, exact.gradient, "gradient of " + what);
        }
      }
    });
  }
}

constexpr auto kNameOfCase = [](const auto& one_case) {
  std::string name = one_case.param.name;
  std::ranges::replace(name, ' ', '_');
  return name;
};
INSTANTIATE_TEST_SUITE_P(Reductions, HalfPrecision, ::testing::ValuesIn(all_cases()), kNameOfCase);
INSTANTIATE_TEST_SUITE_P(Products, HalfPrecision, ::testing::ValuesIn(products()), kNameOfCase);
INSTANTIATE_TEST_SUITE_P(Sums, HalfPrecision, ::testing::ValuesIn(sums()), kNameOfCase);

// One process gives no number here, since the number of targets has none in half precision.
TEST(HalfPrecisionOfManyTargets, CrossEntropyIsNoNumberRatherThanWithoutAGradient) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto scores =
        distribute(torch::zeros({70000, 2}, torch::kHalf), Layout(mesh, {Shard{0}}));
    const auto targets = torch::zeros({70000}, torch::kLong);
    EXPECT_TRUE(std::isnan(full(torch::cross_entropy_loss(scores, targets)).item<float>()));
  });
}

}  // namespace
}  // namespace trireme
