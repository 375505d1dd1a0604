// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/gradients.h>

#include <trireme/base/error.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace trireme {
namespace {

torch::Tensor parameter(const torch::Tensor& gradient) {
  torch::Tensor tensor = torch::zeros_like(gradient).set_requires_grad(true);
  tensor.mutable_grad() = gradient;
  return tensor;
}

TEST(Gradients, HaveTheNormOfAllElementsTogether) {
  const torch::Tensor tied = parameter(torch::full({2}, 2.0F));
  torch::optim::SGD optimizer(
      {parameter(torch::full({3, 3}, 1.0F)), tied, tied,
       parameter(torch::full({4}, 1.5, torch::kDouble)), torch::zeros({5}).set_requires_grad(true)},
      0.1);
  EXPECT_EQ(global_norm(optimizer), std::sqrt(9 + 8 + 9));  // the tied one counts once
  EXPECT_EQ(global_maximum(optimizer), 2);
  EXPECT_TRUE(all_finite(optimizer));
}

TEST(Gradients, OfHalfPrecisionAndWithGapsCountToo) {
  const torch::Tensor wide = torch::full({4, 4}, 3.0F);
  torch::optim::SGD optimizer(
      {parameter(torch::full({4}, 0.5F).to(torch::kBFloat16)), parameter(wide.slice(1, 0, 4, 2))},
      0.1);
  EXPECT_EQ(global_norm(optimizer), std::sqrt(1.0 + 8 * 9));
}

TEST(Gradients, OfComplexParametersCountBothParts) {
  const torch::Tensor weight = torch::full({2}, c10::complex<float>(3, 4)).requires_grad_();
  weight.conj().abs().sum().backward();
  EXPECT_TRUE(weight.grad().is_conj());  // not yet resolved
  torch::optim::SGD optimizer({weight}, 0.1);
  EXPECT_NEAR(global_norm(optimizer), std::sqrt(2.0), 1e-6);
}

TEST(Gradients, AreClippedAsLibTorchDoes) {
  for (const double max_norm : {0.5, 1e3}) {
    const torch::Tensor gradient = torch::randn({50, 7});
    torch::optim::SGD optimizer({parameter(gradient.clone()), parameter(gradient * 2)}, 0.1);
    std::vector<torch::Tensor> theirs = {parameter(gradient.clone()), parameter(gradient * 2)};
    const auto norm = clip_by_global_norm(optimizer, max_norm).item<double>();
    EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(theirs, max_norm), 1e-5 * norm);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(
          torch::allclose(optimizer.param_groups()[0].params()[i].grad(), theirs[i].grad()));
    }
  }
}

TEST(Gradients, ThatAreNotFiniteAreLeftAlone) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    torch::optim::SGD optimizer({parameter(torch::tensor({3.0F, bad}))}, 0.1);
    EXPECT_FALSE(all_finite(optimizer));
    EXPECT_FALSE(std::isfinite(clip_by_global_norm(optimizer, 1).item<double>()));
    EXPECT_EQ(optimizer.param_groups()[0].params()[0].grad()[0].item<float>(), 3);
  }
  torch::optim::SGD optimizer({parameter(torch::ones({1}))}, 0.1);
  EXPECT_THROW(clip_by_global_norm(optimizer, 0), UsageError);
  EXPECT_THROW(clip_by_global_norm(optimizer, std::nan("")), UsageError);
}

}  // namespace
}  // namespace trireme
