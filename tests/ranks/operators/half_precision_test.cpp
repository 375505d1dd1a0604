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
  /// Of the given dtype; the first is cut, and is what a gradient is taken of.
  std::function<Tensors(torch::ScalarType)> inputs;
  bool has_gradient = true;
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
      for (int dim = 0; dim < static_cast<int>(rounded[0].dim()); ++dim) {
        Tensors inputs = copied(rounded, dtype, false);
        for (torch::Tensor& input : inputs) {
          const bool is_alike = input.sizes() == rounded[0].sizes();
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

INSTANTIATE_TEST_SUITE_P(Reductions, HalfPrecision, ::testing::ValuesIn(all_cases()),
                         [](const auto& one_case) {
                           std::string name = one_case.param.name;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

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
