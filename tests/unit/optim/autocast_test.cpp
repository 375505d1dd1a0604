// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/autocast.h>

#include <trireme/base/error.h>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <stdexcept>
#include <string>

namespace trireme {
namespace {

using ::testing::HasSubstr;

at::ScalarType dtype_of_product() {
  static torch::nn::Linear linear(4, 4);
  return linear->forward(torch::ones({2, 4})).scalar_type();
}

void expect_everything_as_before() {
  EXPECT_EQ(dtype_of_product(), at::kFloat);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCUDA));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCUDA), at::kHalf);
}

TEST(Autocast, RunsProductsInItsDtypeWhileItLives) {
  {
    const Autocast autocast(at::kCPU);
    EXPECT_EQ(dtype_of_product(), at::kBFloat16);
  }
  expect_everything_as_before();
  {
    const Autocast autocast(at::kCPU, at::kHalf);
    EXPECT_EQ(dtype_of_product(), at::kHalf);
  }
  expect_everything_as_before();
}

TEST(Autocast, RunsLossesInFp32) {
  const Autocast autocast(at::kCPU);
  const torch::Tensor narrow = torch::ones({3}, torch::kBFloat16);
  EXPECT_EQ(torch::mse_loss(narrow, narrow).scalar_type(), at::kFloat);
}

TEST(Autocast, NestsAndCanBeSwitchedOffInside) {
  {
    const Autocast outer(at::kCPU, at::kBFloat16);
    {
      const Autocast off(at::kCPU, at::kBFloat16, /*enabled=*/false);
      EXPECT_EQ(dtype_of_product(), at::kFloat);
      {
        const Autocast on(at::kCPU, at::kBFloat16);
        EXPECT_EQ(dtype_of_product(), at::kBFloat16);
      }
      EXPECT_EQ(dtype_of_product(), at::kFloat);
    }
    EXPECT_EQ(dtype_of_product(), at::kBFloat16);
  }
  expect_everything_as_before();
}

// LibTorch's cache of casts used to give the outer guard's: "mat1 and mat2 must have the same
// dtype".
TEST(Autocast, NestsWithAnotherDtypeForTheSameParameters) {
  {
    const Autocast outer(at::kCPU, at::kBFloat16);
    EXPECT_EQ(dtype_of_product(), at::kBFloat16);
    {
      const Autocast inner(at::kCPU, at::kHalf);
      EXPECT_EQ(dtype_of_product(), at::kHalf);
    }
    EXPECT_EQ(dtype_of_product(), at::kBFloat16);
  }
  expect_everything_as_before();
}

TEST(Autocast, OfAnotherDeviceLeavesThisOneAlone) {
  {
    const Autocast autocast(at::kCUDA, at::kBFloat16);
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCUDA));
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCUDA), at::kBFloat16);
    EXPECT_EQ(dtype_of_product(), at::kFloat);
  }
  expect_everything_as_before();
}

TEST(Autocast, RestoresEverythingWhenAnExceptionLeavesIt) {
  try {
    const Autocast outer(at::kCPU, at::kHalf);
    const Autocast inner(at::kCPU, at::kBFloat16, /*enabled=*/false);
    throw std::runtime_error("of the forward pass");
  } catch (const std::runtime_error&) {
    expect_everything_as_before();
  }
}

TEST(Autocast, BringsGradientsInFp32AndLeavesParametersAsTheyAre) {
  torch::nn::Linear linear(4, 3);
  const torch::Tensor weight = linear->weight.detach().clone();
  torch::Tensor loss;
  {
    const Autocast autocast(at::kCPU);
    loss = torch::mse_loss(linear(torch::ones({2, 4})), torch::zeros({2, 3}));
  }
  loss.backward();
  for (const torch::Tensor& parameter : linear->parameters()) {
    EXPECT_EQ(parameter.scalar_type(), at::kFloat);
    EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
    EXPECT_GT(parameter.grad().abs().sum().item<float>(), 0);
  }
  EXPECT_TRUE(torch::equal(linear->weight.detach(), weight));
}

// LibTorch keeps the casts of leaves, such as the weights before a step.
TEST(Autocast, SeesParametersThatChangedSinceTheLastOne) {
  const torch::Tensor weight = torch::ones({1, 2}, torch::requires_grad());
  const auto product = [&] {
    const Autocast outer(at::kCPU);
    const Autocast inner(at::kCPU);
    return torch::linear(torch::ones({1, 2}), weight).item<float>();
  };
  EXPECT_EQ(product(), 2);
  {
    const torch::NoGradGuard no_grad;
    weight.fill_(4);
  }
  EXPECT_EQ(product(), 8);
}

std::string refusal_of(c10::DeviceType device, c10::ScalarType dtype) {
  try {
    const Autocast autocast(device, dtype);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

TEST(Autocast, RefusesDevicesAndDtypesThatItDoesNotKnow) {
  EXPECT_THAT(refusal_of(at::kCPU, at::kFloat), HasSubstr("autocast on cpu to Float"));
  EXPECT_THAT(refusal_of(at::kCUDA, at::kDouble), HasSubstr("autocast on cuda to Double"));
  EXPECT_THAT(refusal_of(at::kMeta, at::kBFloat16), HasSubstr("autocast on meta to BFloat16"));
  expect_everything_as_before();
}

}  // namespace
}  // namespace trireme
