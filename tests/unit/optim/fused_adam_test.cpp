// SPDX-License-Identifier: Apache-2.0
// tests/parity/optim compares with Python's fused optimizers, tests/ranks with one process.
#include <trireme/optim/fused_adam.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <cstdint>
#include <sstream>
#include <vector>

namespace trireme {
namespace {

using test::message_of;
using testing::HasSubstr;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;

// Of one element, of blocks and a rest, of blocks alone, in other orders of memory, and with gaps.
std::vector<at::Tensor> parameters(at::ScalarType dtype) {
  torch::manual_seed(3);
  std::vector<at::Tensor> all = {
      torch::randn({1}),
      torch::randn({5, 33}),
      torch::randn({64, 2}),
      torch::randn({70, 3}).t(),
      torch::randn({4, 3, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast),
      torch::randn({8, 20}).narrow(1, 3, 9)};
  for (at::Tensor& each : all) {
    // A copy of the tensor with gaps would have none.
    if (each.scalar_type() != dtype || each.is_non_overlapping_and_dense()) {
      each = each.to(dtype, /*non_blocking=*/false, /*copy=*/true);
    }
    each.requires_grad_();
  }
  return all;
}

void set_gradients(const std::vector<at::Tensor>& parameters, std::uint64_t step) {
  torch::manual_seed(100 + step);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor values = torch::randn(parameters[i].sizes(), parameters[i].dtype());
    // Some gradients have the order of memory of their parameter, others have their own.
    parameters[i].mutable_grad() =
        i % 2 == 0 ? values : torch::empty_like(parameters[i].detach()).copy_(values);
  }
}

// Compares five steps of an optimizer of fused_adam.h with those of LibTorch's class.
template <typename Plain, typename Make, typename Options>
void compare(const Make& make, const Options& options, at::ScalarType dtype, double tolerance) {
  const std::vector<at::Tensor> own = parameters(dtype);
  const std::vector<at::Tensor> expected = parameters(dtype);
  const auto fused = make(own, options);
  Plain plain(expected, options);
  for (std::uint64_t step = 0; step < 5; ++step) {
    set_gradients(own, step);
    set_gradients(expected, step);
    fused->step();
    plain.step();
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(torch::allclose(own[i], expected[i], tolerance, tolerance)) << "parameter " << i;
    EXPECT_EQ(own[i].strides(), expected[i].strides());
  }
}

TEST(FusedAdam, StepsAsTheClassesOfLibTorch) {
  for (const bool amsgrad : {false, true}) {
    const auto adamw = AdamWOptions(0.02).weight_decay(0.1).betas({0.8, 0.95}).amsgrad(amsgrad);
    const auto adam = AdamOptions(0.02).weight_decay(0.1).betas({0.8, 0.95}).amsgrad(amsgrad);
    const auto make_adamw = [](const auto&... arguments) { return fused_adamw(arguments...); };
    const auto make_adam = [](const auto&... arguments) { return fused_adam(arguments...); };
    compare<torch::optim::AdamW>(make_adamw, adamw, at::kDouble, 1e-14);
    compare<torch::optim::AdamW>(make_adamw, adamw, at::kFloat, 1e-6);
    compare<torch::optim::Adam>(make_adam, adam, at::kDouble, 1e-14);
    compare<torch::optim::Adam>(make_adam, adam, at::kFloat, 1e-6);
  }
}

// Every slice starts and ends elsewhere in a vector register.
TEST(FusedAdam, GivesTheSameBitsToSlices) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    torch::manual_seed(1);
    const at::Tensor whole = torch::randn({1031}, dtype).requires_grad_();
    std::vector<at::Tensor> slices;
    const std::vector<std::int64_t> sizes = {1, 17, 64, 350, 599};
    for (const at::Tensor& part : whole.detach().clone().split_with_sizes(sizes)) {
      slices.push_back(part.requires_grad_());
    }
    const auto of_whole = fused_adamw({whole}, 0.02);
    const auto of_slices = fused_adamw(slices, 0.02);
    for (int step = 0; step < 20; ++step) {
      whole.mutable_grad() = torch::randn({1031}, dtype);
      const std::vector<at::Tensor> parts = whole.grad().split_with_sizes(sizes);
      for (std::size_t i = 0; i < slices.size(); ++i) slices[i].mutable_grad() = parts[i];
      of_whole->step();
      of_slices->step();
    }
    EXPECT_TRUE(torch::cat(slices).equal(whole)) << dtype;
  }
}

TEST(FusedAdam, ResumesFromTheStateOfThePlainClass) {
  const std::vector<at::Tensor> own = parameters(at::kDouble);
  const std::vector<at::Tensor> expected = parameters(at::kDouble);
  const auto fused = fused_adamw(own, 0.02);
  torch::optim::AdamW plain(expected, AdamWOptions(0.02));
  set_gradients(own, 0);
  set_gradients(expected, 0);
  fused->step();
  plain.step();
  std::stringstream archive;
  torch::save(plain, archive);
  torch::load(*fused, archive);
  set_gradients(own, 1);
  set_gradients(expected, 1);
  fused->step();
  plain.step();
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(torch::allclose(own[i], expected[i], 1e-14, 1e-14)) << "parameter " << i;
  }
}

// Parameters that got their first gradient later have had fewer steps.
TEST(FusedAdam, CountsTheStepsOfEachParameter) {
  const std::vector<at::Tensor> own = parameters(at::kDouble);
  const std::vector<at::Tensor> expected = parameters(at::kDouble);
  const auto fused = fused_adam(own, 0.02);
  torch::optim::Adam plain(expected, AdamOptions(0.02));
  for (std::uint64_t step = 0; step < 4; ++step) {
    set_gradients(own, step);
    set_gradients(expected, step);
    if (step < 2) {
      own[1].mutable_grad() = at::Tensor();
      expected[1].mutable_grad() = at::Tensor();
    }
    fused->step();
    plain.step();
    if (step < 2) EXPECT_TRUE(own[1].equal(parameters(at::kDouble)[1]));
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(torch::allclose(own[i], expected[i], 1e-14, 1e-14)) << "parameter " << i;
  }
}

// As tied parameters are in `parameters()` of a module: each step follows from the one before.
TEST(FusedAdam, StepsAParameterAsOftenAsItIsListed) {
  const at::Tensor own = torch::ones({70}, at::kDouble).requires_grad_();
  const at::Tensor expected = torch::ones({70}, at::kDouble).requires_grad_();
  const auto fused = fused_adamw({own, own}, 0.02);
  torch::optim::AdamW plain({expected, expected}, AdamWOptions(0.02));
  for (int step = 0; step < 3; ++step) {
    own.mutable_grad() = torch::linspace(1, 2, 70, at::kDouble) - step;
    expected.mutable_grad() = own.grad().clone();
    fused->step();
    plain.step();
  }
  EXPECT_TRUE(torch::allclose(own, expected, 1e-14, 1e-14));
}

TEST(FusedAdam, ReturnsTheLossOfItsClosure) {
  const at::Tensor parameter = torch::ones({3}).requires_grad_();
  const auto optimizer = fused_adamw({parameter}, AdamWOptions(0.1).weight_decay(0));
  const at::Tensor loss = optimizer->step([&] {
    at::Tensor sum = parameter.sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(loss.item<double>(), 3);
  EXPECT_TRUE(torch::allclose(parameter, torch::full({3}, 0.9)));
}

TEST(FusedAdam, RefusesWhatItCannotStep) {
  const at::Tensor sparse = torch::ones({2}).requires_grad_();
  sparse.mutable_grad() =
      torch::sparse_coo_tensor(torch::zeros({1, 1}, torch::kLong), torch::ones({1}), {2});
  const auto of_sparse = fused_adamw({sparse}, 0.1);
  EXPECT_THAT(message_of<UsageError>([&] { of_sparse->step(); }),
              HasSubstr("fused_adamw() cannot step a parameter with a sparse gradient"));
  const at::Tensor complex = torch::ones({2}, at::kComplexFloat).requires_grad_();
  complex.mutable_grad() = torch::ones_like(complex);
  const auto of_complex = fused_adam({complex}, 0.1);
  EXPECT_THAT(message_of<UsageError>([&] { of_complex->step(); }),
              HasSubstr("fused_adam() cannot step a parameter of type ComplexFloat"));
}

// The kernel would read and write beyond smaller memory.
TEST(FusedAdam, RefusesStateOfOtherParameters) {
  const at::Tensor small = torch::ones({8, 4}).requires_grad_();
  small.mutable_grad() = torch::ones({8, 4});
  const auto of_small = fused_adamw({small}, 0.1);
  of_small->step();
  std::stringstream archive;
  torch::save(*of_small, archive);
  const at::Tensor large = torch::ones({16, 4}).requires_grad_();
  large.mutable_grad() = torch::ones({16, 4});
  const auto of_large = fused_adamw({large}, 0.1);
  torch::load(*of_large, archive);
  EXPECT_THAT(message_of<UsageError>([&] { of_large->step(); }),
              HasSubstr("fused_adamw(): exp_avg is Float [8, 4] on cpu, and its parameter is Float "
                        "[16, 4] on cpu"));
  EXPECT_TRUE(large.equal(torch::ones({16, 4})));
}

TEST(FusedAdam, CountsNoStepAfterAnError) {
  const auto optimizer_of = [](std::int64_t rows) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const std::int64_t size : {std::int64_t{3}, rows}) {
      const at::Tensor parameter = torch::ones({size}).requires_grad_();
      parameter.mutable_grad() = torch::ones({size});
      groups.emplace_back(std::vector<at::Tensor>{parameter});
    }
    return fused_adamw(groups, torch::optim::AdamWOptions(0.1));
  };
  const auto of_small = optimizer_of(4);
  of_small->step();
  std::stringstream archive;
  torch::save(*of_small, archive);
  const auto of_large = optimizer_of(5);
  torch::load(*of_large, archive);
  EXPECT_THROW(of_large->step(), UsageError);
  const at::Tensor& first = of_large->param_groups()[0].params()[0];
  EXPECT_TRUE(first.equal(torch::ones({3})));
  const auto& state = static_cast<const torch::optim::AdamWParamState&>(
      *of_large->state().at(first.unsafeGetTensorImpl()));
  EXPECT_EQ(state.step(), 1);
}

TEST(FusedAdam, TakesUpAmsgradLater) {
  const at::Tensor parameter = torch::ones({70}).requires_grad_();
  const auto optimizer = fused_adamw({parameter}, 0.1);
  for (const bool amsgrad : {false, true}) {
    static_cast<AdamWOptions&>(optimizer->param_groups()[0].options()).amsgrad(amsgrad);
    parameter.mutable_grad() = torch::ones({70});
    optimizer->step();
  }
  EXPECT_TRUE(torch::allclose(parameter, torch::full({70}, 0.8), 0, 0.01));
}

}  // namespace
}  // namespace trireme
