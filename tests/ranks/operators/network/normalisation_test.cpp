// SPDX-License-Identifier: Apache-2.0
// layer_norm, rms_norm, group_norm, batch_norm and instance_norm with every placement.
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/operators/operator_checks.h>

#include <cstdint>
#include <functional>
#include <string>

namespace trireme {
namespace {

using test::check_in_both_precisions;
using test::check_operators;
using test::one;
using test::OperatorCase;
using test::sample;
using test::Tensors;
using ::testing::HasSubstr;

OperatorCase whole_parameters(OperatorCase one_case) {
  one_case.takes_partial = false;
  return one_case;
}

TEST(NormalisationRules, LayerNorm) {
  check_in_both_precisions({
      one("rows", [](const Tensors& in) { return torch::layer_norm(in[0], {5}, in[1], in[2]); },
          {sample({4, 5}), sample({5}), sample({5})}),
      whole_parameters(
          one("two dims",
              [](const Tensors& in) { return torch::layer_norm(in[0], {3, 2}, in[1], in[2]); },
              {sample({5, 3, 2}), sample({3, 2}), sample({3, 2})})),
      one("without parameters", [](const Tensors& in) { return torch::layer_norm(in[0], {3}); },
          {sample({2, 2, 3})}),
      one("weight alone", [](const Tensors& in) { return torch::layer_norm(in[0], {3}, in[1]); },
          {sample({2, 3}), sample({3})}),
      one("all dims", [](const Tensors& in) { return torch::layer_norm(in[0], {7}, in[1]); },
          {sample({7}), sample({7})}),
  });
}

TEST(NormalisationRules, LayerNormOfHalfPrecision) {
  const auto layer_norm = [](const Tensors& in) {
    return torch::layer_norm(in[0], {6}, in[1], in[2]);
  };
  auto mixed = whole_parameters(one(
      "bf16 with float parameters", layer_norm,
      {sample({3, 6}, torch::kBFloat16), sample({6}, torch::kFloat), sample({6}, torch::kFloat)}));
  auto bf16 = whole_parameters(one("bf16", layer_norm,
                                   {sample({3, 6}, torch::kBFloat16), sample({6}, torch::kBFloat16),
                                    sample({6}, torch::kBFloat16)}));
  mixed.bound = bf16.bound = 5e-2;
  check_operators({mixed, bf16});
}

TEST(NormalisationRules, RmsNorm) {
  check_in_both_precisions({
      one("rows", [](const Tensors& in) { return torch::rms_norm(in[0], {5}, in[1], 1e-5); },
          {sample({4, 5}), sample({5})}),
      one("without weight", [](const Tensors& in) { return torch::rms_norm(in[0], {3}); },
          {sample({2, 2, 3})}),
  });
}

TEST(NormalisationRules, GroupNorm) {
  const auto group_norm = [](std::int64_t groups) {
    return [groups](const Tensors& in) { return torch::group_norm(in[0], groups, in[1], in[2]); };
  };
  check_in_both_precisions({
      whole_parameters(one("groups that ranks share", group_norm(3),
                           {sample({2, 6, 3}), sample({6}), sample({6})})),
      whole_parameters(
          one("whole groups", group_norm(4), {sample({3, 8, 2}), sample({8}), sample({8})})),
      whole_parameters(
          one("images", group_norm(2), {sample({2, 4, 2, 3}), sample({4}), sample({4})})),
      one("without parameters", [](const Tensors& in) { return torch::group_norm(in[0], 2); },
          {sample({3, 4, 2})}),
      one("one channel a group", [](const Tensors& in) { return torch::group_norm(in[0], 12); },
          {sample({2, 12, 2})}),
  });
}

// Values, and the running buffers after the call.
std::function<Tensors(const Tensors&)> batch_norm(bool trains) {
  return [trains](const Tensors& in) {
    const auto mean = in[3].detach().clone();
    const auto variance = in[4].detach().square().add(0.5);
    const auto output = torch::batch_norm(in[0], in[1], in[2], mean, variance, trains, 0.2, 1e-5,
                                          /*cudnn_enabled=*/false);
    return Tensors{output, mean, variance};
  };
}

OperatorCase batch_norm_case(const std::string& name, bool trains, torch::IntArrayRef sizes) {
  const std::int64_t channels = sizes[1];
  return {.name = name,
          .function = batch_norm(trains),
          .inputs = {sample(sizes), sample({channels}), sample({channels}), sample({channels}),
                     sample({channels})},
          .takes_partial = false,
          .bound = 1e-10};
}

TEST(NormalisationRules, BatchNorm) {
  check_in_both_precisions({
      batch_norm_case("training", true, {5, 3}),
      batch_norm_case("training on images", true, {3, 4, 2, 2}),
      batch_norm_case("evaluation", false, {5, 3, 2}),
      whole_parameters(one("no buffers and parameters",
                           [](const Tensors& in) {
                             return torch::batch_norm(in[0], {}, {}, {}, {}, true, 0.1, 1e-5,
                                                      false);
                           },
                           {sample({4, 2, 3})})),
  });
}

TEST(NormalisationRules, BatchNormUnderItsOtherNames) {
  const auto call = [](const Tensors& in) {
    auto mean = in[3].detach().clone();
    auto variance = in[4].detach().square().add(0.5);
    const auto legit =
        at::_native_batch_norm_legit(in[0], in[1], in[2], mean, variance, true, 0.1, 1e-5);
    const auto updated =
        at::_batch_norm_with_update(in[0], in[1], in[2], mean, variance, 0.1, 1e-5);
    const auto fixed =
        at::_native_batch_norm_legit_no_training(in[0], in[1], in[2], mean, variance, 0.1, 1e-5);
    const auto kept = at::_batch_norm_no_update(in[0], in[1], in[2], mean, variance, 0.1, 1e-5);
    return Tensors{std::get<0>(legit),
                   std::get<0>(updated),
                   std::get<0>(fixed),
                   std::get<0>(kept),
                   mean,
                   variance};
  };
  check_in_both_precisions(
      {{.name = "batch_norm",
        .function = call,
        .inputs = {sample({4, 3}), sample({3}), sample({3}), sample({3}), sample({3})},
        .takes_partial = false,
        .bound = 1e-10}});
}

TEST(NormalisationRules, BatchNormUpdatesPlainBuffersAlike) {
  for (const Placement placement : {Placement(Shard{0}), Placement(Shard{1})}) {
    const auto input = sample({5, 4, 2});
    const auto expected_mean = torch::zeros({4}, torch::kDouble);
    const auto expected_variance = torch::ones({4}, torch::kDouble);
    torch::batch_norm(input, {}, {}, expected_mean, expected_variance, true, 0.1, 1e-5, false);
    testing::run_ranks(3, [&](const comm::Group& group) {
      const DeviceMesh mesh(group, {{"data", 3}});
      const auto mean = torch::zeros({4}, torch::kDouble);
      const auto variance = torch::ones({4}, torch::kDouble);
      const auto output = torch::batch_norm(distribute(input, Layout(mesh, {placement})), {}, {},
                                            mean, variance, true, 0.1, 1e-5, false);
      EXPECT_EQ(layout_of(output), Layout(mesh, {placement}));
      EXPECT_TRUE(torch::allclose(mean, expected_mean, 1e-12, 1e-12));
      EXPECT_TRUE(torch::allclose(variance, expected_variance, 1e-12, 1e-12));
    });
  }
}

TEST(NormalisationRules, BatchNormTakesHalfPrecision) {
  auto mixed = batch_norm_case("bf16 with float parameters", true, {4, 3, 2});
  mixed.inputs[0] = mixed.inputs[0].to(torch::kBFloat16);
  for (std::size_t i = 1; i < 5; ++i) mixed.inputs[i] = mixed.inputs[i].to(torch::kFloat);
  mixed.bound = 5e-2;
  check_operators({mixed});
}

TEST(NormalisationRules, BatchNormRefusesBuffersThatArePartial) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}});
    const auto input = distribute(sample({4, 3}), Layout(mesh, {Shard{0}}));
    const auto mean = distribute(torch::zeros({3}, torch::kDouble), Layout(mesh, {Partial{}}));
    const auto variance = torch::ones({3}, torch::kDouble);
    EXPECT_THAT(
        test::usage_error(
            [&] { torch::batch_norm(input, {}, {}, mean, variance, true, 0.1, 1e-5, false); }),
        HasSubstr("would update running_mean, which is Partial(sum) along the axis 'data'"));
  });
}

TEST(NormalisationRules, InstanceNorm) {
  check_in_both_precisions({
      whole_parameters(one("parameters",
                           [](const Tensors& in) {
                             return torch::instance_norm(in[0], in[1], in[2], {}, {}, true, 0.1,
                                                         1e-5, false);
                           },
                           {sample({2, 3, 4}), sample({3}), sample({3})})),
      one("no parameters",
          [](const Tensors& in) {
            return torch::instance_norm(in[0], {}, {}, {}, {}, true, 0.1, 1e-5, false);
          },
          {sample({4, 2, 3})}),
  });
}

}  // namespace
}  // namespace trireme
