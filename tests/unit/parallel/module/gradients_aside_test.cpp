// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/module/gradients_aside.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace trireme::detail {
namespace {

torch::Tensor parameter_with(float gradient) {
  const torch::Tensor parameter = torch::zeros({2}).requires_grad_();
  parameter.mutable_grad() = torch::full({2}, gradient);
  return parameter;
}

TEST(GradientsAside, AreAddedToThoseOfTheStep) {
  const torch::Tensor parameter = parameter_with(1);
  GradientsAside aside;
  aside.take(parameter);
  EXPECT_FALSE(parameter.grad().defined());
  parameter.mutable_grad() = torch::full({2}, 2.F);
  aside.add_back();
  EXPECT_TRUE(torch::equal(parameter.grad(), torch::full({2}, 3.F)));
}

TEST(GradientsAside, LeaveTheStepAloneWhereThereWereNone) {
  const torch::Tensor parameter = torch::zeros({2}).requires_grad_();
  GradientsAside aside;
  aside.take(parameter);
  parameter.mutable_grad() = torch::full({2}, 2.F);
  aside.add_back();
  EXPECT_TRUE(torch::equal(parameter.grad(), torch::full({2}, 2.F)));
}

TEST(GradientsAside, ArePutBackInPlaceOfThoseOfTheStep) {
  const torch::Tensor parameter = parameter_with(1);
  const torch::Tensor without = torch::zeros({2}).requires_grad_();
  GradientsAside aside;
  aside.take(parameter);
  aside.take(without);
  parameter.mutable_grad() = torch::full({2}, 2.F);
  without.mutable_grad() = torch::full({2}, 2.F);
  aside.put_back();
  EXPECT_TRUE(torch::equal(parameter.grad(), torch::full({2}, 1.F)));
  EXPECT_FALSE(without.grad().defined());
}

TEST(GradientsAside, AreCopiedWhereTheirMemoryIsWrittenAgain) {
  const torch::Tensor parameter = parameter_with(1);
  const torch::Tensor memory = parameter.grad();
  GradientsAside aside;
  aside.take_copy(parameter);
  memory.fill_(5);
  aside.add_back();
  EXPECT_TRUE(torch::equal(parameter.grad(), torch::full({2}, 1.F)));
}

}  // namespace
}  // namespace trireme::detail
