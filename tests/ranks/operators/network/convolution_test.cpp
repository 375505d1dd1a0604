// SPDX-License-Identifier: Apache-2.0
// Convolutions with every placement of image, weight and bias.
#include <tests/ranks/operators/operator_checks.h>

namespace trireme {
namespace {

using test::check_in_both_precisions;
using test::check_operators;
using test::one;
using test::sample;
using test::Tensors;

TEST(ConvolutionRules, CutBatchAndChannels) {
  check_in_both_precisions({
      one("conv1d",
          [](const Tensors& in) { return torch::conv1d(in[0], in[1], torch::Tensor(), 1, 1); },
          {sample({3, 2, 5}), sample({4, 2, 3})}),
      one("conv2d", [](const Tensors& in) { return torch::conv2d(in[0], in[1], in[2], 2, 1); },
          {sample({2, 5, 4, 4}), sample({3, 5, 3, 3}), sample({3})}),
      one("conv2d without bias",
          [](const Tensors& in) { return torch::conv2d(in[0], in[1], torch::Tensor(), 1, 1, 2); },
          {sample({3, 2, 5, 5}), sample({2, 2, 2, 2})}),
      one("conv2d of one image", [](const Tensors& in) { return torch::conv2d(in[0], in[1]); },
          {sample({3, 4, 4}), sample({5, 3, 2, 2})}),
      one("conv3d", [](const Tensors& in) { return torch::conv3d(in[0], in[1]); },
          {sample({2, 3, 3, 3, 2}), sample({4, 3, 2, 2, 1})}),
  });
}

TEST(ConvolutionRules, CutTransposedOnes) {
  check_in_both_precisions({
      one("conv_transpose1d",
          [](const Tensors& in) { return torch::conv_transpose1d(in[0], in[1], in[2], 2); },
          {sample({3, 2, 4}), sample({2, 4, 3}), sample({4})}),
      one("conv_transpose2d",
          [](const Tensors& in) { return torch::conv_transpose2d(in[0], in[1], {}, 2, 1, 1); },
          {sample({2, 3, 3, 3}), sample({3, 2, 3, 3})}),
  });
}

TEST(ConvolutionRules, CutGroupsWhereTheyDivide) {
  check_in_both_precisions({
      one("two groups",
          [](const Tensors& in) { return torch::conv2d(in[0], in[1], in[2], 1, 1, 1, 2); },
          {sample({2, 4, 3, 3}), sample({6, 2, 3, 3}), sample({6})}),
      one("depthwise",
          [](const Tensors& in) {
            return torch::conv1d(in[0], in[1], torch::Tensor(), 1, 1, 1, 12);
          },
          {sample({2, 12, 4}), sample({12, 1, 2})}),
      one("transposed groups",
          [](const Tensors& in) { return torch::conv_transpose1d(in[0], in[1], {}, 1, 0, 0, 12); },
          {sample({2, 12, 3}), sample({12, 2, 2})}),
  });
}

TEST(ConvolutionRules, CutConvTbc) {
  check_in_both_precisions({
      one("conv_tbc", [](const Tensors& in) { return torch::conv_tbc(in[0], in[1], in[2], 1); },
          {sample({4, 2, 3}), sample({3, 3, 2}), sample({2})}),
  });
}

TEST(ConvolutionRules, TakeSinglePrecision) {
  auto in_float =
      one("conv2d in float",
          [](const Tensors& in) { return torch::conv2d(in[0], in[1], torch::Tensor(), 1, 1); },
          {sample({3, 4, 4, 4}, torch::kFloat), sample({4, 4, 3, 3}, torch::kFloat)});
  in_float.bound = 1e-4;
  auto last =
      one("channels last",
          [](const Tensors& in) {
            return torch::conv2d(in[0].contiguous(torch::MemoryFormat::ChannelsLast), in[1]);
          },
          {sample({3, 4, 4, 4}, torch::kFloat), sample({4, 4, 3, 3}, torch::kFloat)});
  last.bound = 1e-4;
  check_operators({in_float, last});
}

// A cut batch changes no bit of a row.
TEST(ConvolutionRules, KeepTheBitsOfABatch) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}});
    const auto image = sample({5, 3, 6, 6}, torch::kFloat);
    const auto weight = sample({4, 3, 3, 3}, torch::kFloat);
    const auto cut = distribute(image, Layout(mesh, {Shard{0}}));
    const auto whole = distribute(weight, Layout(mesh, {Replicate{}}));
    const auto got = torch::conv2d(cut, whole);
    EXPECT_TRUE(layout_of(got)[0].is_shard(0));
    EXPECT_TRUE(torch::equal(full(got), torch::conv2d(image, weight)));
  });
}

TEST(ConvolutionRules, SayWhatCutChannelsBecome) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto on = [&](const torch::Tensor& plain, Placement placement) {
      return distribute(plain, Layout(mesh, {placement}));
    };
    const auto image = sample({2, 4, 5, 5});
    const auto weight = sample({6, 4, 3, 3});
    const auto bias = sample({6});
    const auto columns =
        torch::conv2d(on(image, Replicate{}), on(weight, Shard{0}), on(bias, Shard{0}));
    EXPECT_TRUE(layout_of(columns)[0].is_shard(1));
    const auto rows =
        torch::conv2d(on(image, Shard{1}), on(weight, Shard{1}), on(bias, Replicate{}));
    EXPECT_TRUE(layout_of(rows)[0].is_partial(PartialOp::kSum));
    EXPECT_TRUE(torch::allclose(full(rows), torch::conv2d(image, weight, bias)));
    const auto depthwise = torch::conv2d(on(image, Shard{1}), on(sample({4, 1, 3, 3}), Shard{0}),
                                         torch::Tensor(), 1, 1, 1, 4);
    EXPECT_TRUE(layout_of(depthwise)[0].is_shard(1));
  });
}

}  // namespace
}  // namespace trireme
