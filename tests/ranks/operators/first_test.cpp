// SPDX-License-Identifier: Apache-2.0
// Rules by brute force: every placement of every input.
#include <trireme/tensor/dispatch/decision.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/operators/operator_checks.h>

namespace trireme {
namespace {

using test::check_operators;
using test::one;
using test::sample;
using test::Tensors;

TEST(Rules, Pointwise) {
  check_operators({
      one("add", [](const Tensors& in) { return in[0] + in[1]; }, {sample({5, 3}), sample({5, 3})}),
      one("add broadcast", [](const Tensors& in) { return in[0] + in[1]; },
          {sample({5, 3}), sample({3})}),
      one("mul broadcast", [](const Tensors& in) { return in[0] * in[1]; },
          {sample({5, 1}), sample({3})}),
      one("div", [](const Tensors& in) { return in[0] / (in[1] * in[1] + 1); },
          {sample({4, 3}), sample({4, 3})}),
      one("relu", [](const Tensors& in) { return torch::relu(in[0]); }, {sample({7})}),
      one("in place", [](const Tensors& in) { return in[0].clone().mul_(in[1]).add_(1.5); },
          {sample({4, 3}), sample({4, 3})}),
      one("where", [](const Tensors& in) { return torch::where(in[0] > 0, in[0], in[1]); },
          {sample({4, 3}), sample({4, 3})}),
  });
}

TEST(Rules, Products) {
  check_operators({
      one("mm", [](const Tensors& in) { return in[0].mm(in[1]); },
          {sample({5, 3}), sample({3, 4})}),
      one("matmul", [](const Tensors& in) { return in[0].matmul(in[1]); },
          {sample({2, 5, 3}), sample({3, 4})}),
      one("batched", [](const Tensors& in) { return in[0].matmul(in[1]); },
          {sample({2, 3, 2}), sample({1, 2, 3})}),
      one("linear", [](const Tensors& in) { return torch::linear(in[0], in[1], in[2]); },
          {sample({5, 3}), sample({4, 3}), sample({4})}),
      one("linear of three dims", [](const Tensors& in) { return torch::linear(in[0], in[1]); },
          {sample({2, 3, 3}), sample({4, 3})}),
      one("addmm", [](const Tensors& in) { return torch::addmm(in[0], in[1], in[2], 0.5, 2); },
          {sample({4}), sample({5, 3}), sample({3, 4})}),
  });
}

TEST(Rules, Reductions) {
  check_operators({
      one("sum", [](const Tensors& in) { return in[0].sum(); }, {sample({5, 3})}),
      one("sum of a dim", [](const Tensors& in) { return in[0].sum(1); }, {sample({5, 3})}),
      one("mean", [](const Tensors& in) { return in[0].mean(0, true); }, {sample({5, 3})}),
      one("amax", [](const Tensors& in) { return in[0].amax(0); }, {sample({2, 3})}),
      one("prod", [](const Tensors& in) { return in[0].prod(); }, {sample({4})}),
  });
}

TEST(Rules, Views) {
  check_operators({
      one("view", [](const Tensors& in) { return in[0].view({4, 6}) * 2; }, {sample({4, 2, 3})}),
      one("view split", [](const Tensors& in) { return in[0].view({2, 4, 3}) * 2; },
          {sample({8, 3})}),
      one("transpose", [](const Tensors& in) { return in[0].transpose(0, 1).contiguous(); },
          {sample({5, 3})}),
      one("permute", [](const Tensors& in) { return in[0].permute({2, 0, 1}) * 3; },
          {sample({4, 2, 3})}),
      one("select", [](const Tensors& in) { return in[0].select(1, 1) * 3; }, {sample({4, 3})}),
      one("slice", [](const Tensors& in) { return in[0].slice(0, 1, 4) * 3; }, {sample({5, 3})}),
      one("expand", [](const Tensors& in) { return in[0].expand({2, 5, 3}) * 3; },
          {sample({5, 1})}),
      one("squeeze", [](const Tensors& in) { return in[0].squeeze() * 3; }, {sample({2, 1, 3})}),
      {.name = "split",
       .function = [](const Tensors& in) { return torch::split(in[0], 2, 0); },
       .inputs = {sample({5, 3})}},
      {.name = "unbind",
       .function = [](const Tensors& in) { return torch::unbind(in[0], 1); },
       .inputs = {sample({5, 3})}},
      one("transpose in place",
          [](const Tensors& in) { return in[0].clone().transpose_(0, 1) * 3; }, {sample({5, 3})}),
      one("unsqueeze in place", [](const Tensors& in) { return in[0].clone().unsqueeze_(1) * 3; },
          {sample({5, 3})}),
      one("real and imaginary parts",
          [](const Tensors& in) {
            return torch::view_as_real(torch::view_as_complex(in[0]) * 2).mul(3);
          },
          {sample({5, 2})}),
      test::without_gradient(
          "bits", [](const Tensors& in) { return in[0].view(torch::kLong).bitwise_not(); },
          {sample({4, 3})}),
      test::without_gradient("minus, lazily",
                             [](const Tensors& in) { return torch::_neg_view(in[0]).clone(); },
                             {sample({4, 3})}),
  });
}

// The tensor cut along one dim by all axes, as the operators after it need it; plain ones stay.
torch::Tensor cut_along(const torch::Tensor& tensor, int dim) {
  if (!has_layout(tensor)) return tensor;
  const DeviceMesh mesh = layout_of(tensor).mesh();
  const std::vector<Placement> placements(static_cast<std::size_t>(mesh.num_axes()), Shard{dim});
  return redistribute(tensor, Layout(mesh, placements));
}

// Autograd regenerates views and sends gradients through as_strided.
TEST(Rules, InPlaceOnViewsAndBases) {
  check_operators({
      one("in place on a row",
          [](const Tensors& in) {
            auto x = cut_along(in[0], 1) * 1;
            x.select(0, 1).mul_(2);
            return x * x;
          },
          {sample({4, 6})}),
      one("in place on columns",
          [](const Tensors& in) {
            auto x = cut_along(in[0], 0) * 1;
            x.slice(1, 1, 4).add_(in[1]);
            return x * x;
          },
          {sample({4, 6}), sample({4, 3})}),
      one("in place on every other row of a transpose",
          [](const Tensors& in) {
            auto x = cut_along(in[0], 0) * 1;
            x.t().slice(0, 0, 6, 2).mul_(3);
            return x * x;
          },
          {sample({4, 6})}),
      one("view of a base that changes",
          [](const Tensors& in) {
            auto x = cut_along(in[0], 0) * 1;
            auto view = x.view({4, 2, 3});
            x.mul_(in[1]);
            return view * view;
          },
          {sample({4, 6}), sample({4, 6})}),
      one("copy into a view of a view",
          [](const Tensors& in) {
            auto x = cut_along(in[0], 0) * 1;
            x.narrow(1, 1, 4).narrow(1, 2, 2).copy_(in[1]);
            return x * 2;
          },
          {sample({4, 6}), sample({4, 2})}),
  });
}

TEST(Rules, AViewThatNeedsCommunicationIsRefusedOrACopy) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto tensor = distribute(sample({4, 6}), Layout(mesh, {Shard{0}}));
    tensor::allow_gather_in_views(false);
    EXPECT_THAT(test::usage_error([&] { return tensor.view({24}).select(0, 3); }),
                ::testing::HasSubstr("operator aten::select.int cannot view a tensor of [24] as [] "
                                     "without communication: "));
    tensor::allow_gather_in_views(true);
    auto row = tensor.select(0, 1);
    EXPECT_TRUE(torch::equal(full(row), sample({4, 6})[1]));
    EXPECT_THAT(test::usage_error([&] { row.mul_(2); }),
                ::testing::HasSubstr("would write into a view of [6] that had to be gathered"));
    EXPECT_THAT(test::usage_error([&] { row.view({2, 3}).zero_(); }),
                ::testing::HasSubstr("would write into a view of [2, 3] that had to be gathered"));
    auto cut = distribute(sample({5, 1, 3}), Layout(mesh, {Shard{1}}));
    EXPECT_THAT(test::usage_error([&] { cut.squeeze_(1); }),
                ::testing::HasSubstr("operator aten::squeeze_.dim cannot change a tensor of [5, 1, "
                                     "3] to [5, 3] in place without communication: "));
  });
}

// What is gathered lies in other memory than the strides among the arguments speak of.
TEST(Rules, ReshapesOfTransposesThatAreGathered) {
  check_operators({
      one("reshape of a transpose",
          [](const Tensors& in) { return in[0].t().reshape({4, 3, 2}) * 2; }, {sample({6, 4})}),
      one("flatten of a transpose", [](const Tensors& in) { return in[0].t().reshape({-1}) * 2; },
          {sample({6, 4})}),
      one("as_strided", [](const Tensors& in) { return in[0].t().as_strided({24}, {1}, 0) * 2; },
          {sample({6, 4})}),
  });
}

TEST(Rules, AConjugationThatIsStillToBeDoneTravels) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto plain = torch::complex(sample({4, 3}), sample({4, 3}).flip(0));
    const auto tensor = distribute(plain, Layout(mesh, {Shard{0}}));
    EXPECT_TRUE(torch::equal(full(tensor.conj()), plain.conj().resolve_conj()));
  });
}

TEST(Rules, MeansOfHalfDoNotOverflow) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto ones = distribute(torch::ones({2, 70000}, torch::kHalf), Layout(mesh, {Shard{1}}));
    EXPECT_EQ(full(ones.mean()).item<float>(), 1);
  });
}

TEST(Rules, WhatIsWrittenInPlaceKeepsItsLayout) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const Layout whole(mesh, {Replicate{}});
    auto tensor = distribute(torch::ones({4}), whole);
    const auto view = tensor.view({2, 2});
    const auto factor = from_local(torch::full({4}, static_cast<float>(group.rank() + 1)),
                                   Layout(mesh, {Partial{}}), {4});
    tensor.mul_(factor);
    EXPECT_EQ(layout_of(tensor), whole);
    EXPECT_TRUE(torch::equal(full(view), torch::full({2, 2}, 3.0F)));
  });
}

TEST(Rules, WriteIntoOut) {
  check_operators({{.name = "out",
                    .function =
                        [](const Tensors& in) {
                          auto sum = torch::empty_like(in[0]);
                          torch::add_out(sum, in[0], in[1]);
                          auto product = torch::empty({0}, in[0].options());
                          if (has_layout(in[0])) {
                            product =
                                distribute(product, Layout::replicated(layout_of(in[0]).mesh()));
                          }
                          torch::mm_out(product, in[0], in[1]);
                          return Tensors{sum, product};
                        },
                    .inputs = {sample({5, 5}), sample({5, 5})},
                    .has_gradient = false}});
}

TEST(Rules, Foreach) {
  check_operators({{.name = "foreach",
                    .function =
                        [](const Tensors& in) {
                          auto sums = torch::_foreach_add({in[0], in[1]}, {in[1], in[0]}, 2);
                          auto scaled = torch::_foreach_mul({in[0], in[1]}, 3);
                          torch::_foreach_mul_(sums, scaled);
                          return sums;
                        },
                    .inputs = {sample({5, 3}), sample({5, 3})},
                    .has_gradient = false}});
}

}  // namespace
}  // namespace trireme
