// SPDX-License-Identifier: Apache-2.0
// What autograd does seldom: gradients that are not there, gradients of gradients, and in-place
// operations on views that fold or split dims.
#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/operators/operator_cases.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace trireme {
namespace {

using test::sample;
using test::usage_error;
using ::testing::HasSubstr;
using testing::run_ranks;
using torch::autograd::variable_list;

// Hands its input on, and no gradient back.
struct Forgets : torch::autograd::Function<Forgets> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/,
                               const torch::Tensor& x) {
    return x.clone();
  }
  static variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                const variable_list& /*grads*/) {
    return {torch::Tensor()};
  }
};

TEST(Autograd, AGradientThatIsNotThereStaysAway) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const Layout rows(mesh, {Shard{0}});
    const Layout whole(mesh, {Replicate{}});
    const auto plain = sample({4, 3}).requires_grad_();
    const auto local = sample({2, 3}).requires_grad_();
    const auto distributed = distribute(plain, rows);
    const std::vector<std::pair<torch::Tensor, torch::Tensor>> moved = {
        {plain, distributed},
        {plain, redistribute(distributed, whole)},
        {plain, to_local(distributed)},
        {plain, full(distributed)},
        {local, from_local(local, rows)}};
    for (const auto& [leaf, tensor] : moved) {
      Forgets::apply(tensor).sum().backward({}, /*retain_graph=*/true);
      EXPECT_FALSE(leaf.grad().defined());
    }
  });
}

// The gradient of the sum of squares of a function's gradients.
variable_list second_gradients(const std::function<torch::Tensor(const variable_list&)>& function,
                               const variable_list& inputs) {
  const auto first = torch::autograd::grad({function(inputs).pow(3).sum()}, inputs, {}, true,
                                           /*create_graph=*/true);
  torch::Tensor total;
  for (const torch::Tensor& gradient : first) {
    const auto term = gradient.square().sum();
    total = total.defined() ? total + term : term;
  }
  return torch::autograd::grad({total}, inputs);
}

// The gradient of the sum of squares of the parts of complex numbers.
variable_list complex_gradients(const std::function<torch::Tensor(const variable_list&)>& function,
                                const variable_list& inputs) {
  return torch::autograd::grad({torch::view_as_real(function(inputs)).square().sum()}, inputs);
}

// Distributed and plain, with the first two inputs cut along each of their dims and not at all.
template <typename Gradients>
void check_gradients(const std::string& name, const Gradients& gradients,
                     const std::function<torch::Tensor(const variable_list&)>& function,
                     const variable_list& inputs) {
  variable_list plain;
  for (const torch::Tensor& input : inputs) plain.push_back(input.clone().requires_grad_());
  const variable_list expected = gradients(function, plain);
  run_ranks(2, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    for (int first = -1; first < static_cast<int>(inputs[0].dim()); ++first) {
      for (int second = -1; second < static_cast<int>(inputs[1].dim()); ++second) {
        const auto on = [&](const torch::Tensor& input, int dim) {
          const Placement placement = dim < 0 ? Placement(Replicate{}) : Placement(Shard{dim});
          return distribute(input, Layout(mesh, {placement})).requires_grad_();
        };
        variable_list distributed = {on(inputs[0], first), on(inputs[1], second)};
        for (std::size_t i = 2; i < inputs.size(); ++i) distributed.push_back(on(inputs[i], -1));
        const variable_list got = gradients(function, distributed);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(torch::allclose(full(got[i]), expected[i], 1e-9, 1e-9))
              << name << ", input " << i << ", cut along " << first << " and " << second;
        }
      }
    }
  });
}

void check_second_gradients(const std::string& name,
                            const std::function<torch::Tensor(const variable_list&)>& function,
                            const variable_list& inputs) {
  check_gradients(name, second_gradients, function, inputs);
}

TEST(Autograd, GradientsOfComplexProducts) {
  const auto complex = [](c10::IntArrayRef sizes) {
    return torch::complex(sample(sizes), sample(sizes).flip(0) + 0.5);
  };
  const auto check = [&](const std::string& name, const auto& function,
                         const variable_list& inputs) {
    check_gradients(name, complex_gradients, function, inputs);
  };
  const auto linear = [](const variable_list& in) { return torch::linear(in[0], in[1], in[2]); };
  const auto product = [](const variable_list& in) { return in[0].mm(in[1]); };
  check("linear", linear, {complex({5, 3}), complex({4, 3}), complex({4})});
  check("linear of three dims", linear, {complex({2, 5, 3}), complex({4, 3}), complex({4})});
  check("mm", product, {complex({5, 3}), complex({3, 4})});
}

TEST(Autograd, GradientsOfGradientsOfProducts) {
  const auto linear = [](const variable_list& in) {
    return in.size() > 2 ? torch::linear(in[0], in[1], in[2]) : torch::linear(in[0], in[1]);
  };
  const auto matmul = [](const variable_list& in) { return in[0].matmul(in[1]); };
  check_second_gradients("linear", linear, {sample({5, 3}), sample({4, 3}), sample({4})});
  check_second_gradients("linear of a vector", linear, {sample({3}), sample({4, 3})});
  check_second_gradients("linear of three dims", linear,
                         {sample({2, 5, 3}), sample({4, 3}), sample({4})});
  check_second_gradients("matmul", matmul, {sample({5, 3}), sample({3, 4})});
  check_second_gradients("matmul of a batch", matmul, {sample({2, 5, 3}), sample({3, 4})});
  check_second_gradients("matmul of vectors", matmul, {sample({3}), sample({2, 3, 4})});
}

TEST(Autograd, GradientsOfGradientsOfMoves) {
  const auto moves = [](const variable_list& in) {
    if (!has_layout(in[0])) return in[0] * in[0] * in[1];
    const DeviceMesh mesh = layout_of(in[0]).mesh();
    const auto moved = redistribute(in[0], Layout(mesh, {Shard{1}}));
    const auto part = to_local(moved);
    const auto back = from_local(part * part, Layout(mesh, {Shard{1}}), in[0].sizes());
    return distribute(full(back), Layout(mesh, {Shard{0}})) * in[1];
  };
  check_second_gradients("moves", moves, {sample({4, 3}), sample({4, 3}) + 1});
}

// A view folds or splits the dim that is cut, or takes a part beside it.
TEST(Autograd, InPlaceOnViewsThatFoldOrSplitACutDim) {
  using View = std::function<torch::Tensor(const torch::Tensor&)>;
  const std::vector<std::pair<std::string, View>> views = {
      {"fold", [](const torch::Tensor& x) { return x.view({8, 6}); }},
      {"fold all", [](const torch::Tensor& x) { return x.view({48}); }},
      {"split", [](const torch::Tensor& x) { return x.view({2, 2, 2, 6}); }},
      {"fold and take", [](const torch::Tensor& x) { return x.view({8, 6}).slice(1, 1, 5, 2); }},
      {"take and fold", [](const torch::Tensor& x) { return x.select(2, 3).view({8}); }},
      {"turn", [](const torch::Tensor& x) { return x.transpose(0, 2).slice(0, 2, 6); }},
      {"turn a fold", [](const torch::Tensor& x) { return x.view({8, 6}).t(); }}};
  run_ranks(2, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    for (const auto& [name, view] : views) {
      const auto plain = sample({4, 2, 6}).requires_grad_();
      const auto cut = distribute(plain.detach(), Layout(mesh, {Shard{0}})).requires_grad_();
      variable_list results;
      for (const torch::Tensor& leaf : {plain, cut}) {
        auto x = leaf * 1;
        view(x).mul_(2).add_(1);
        results.push_back(x);
        (x * x).sum().backward();
      }
      EXPECT_EQ(layout_of(results[1]), layout_of(cut)) << name;
      EXPECT_TRUE(torch::equal(full(results[1].detach()), results[0].detach())) << name;
      EXPECT_TRUE(torch::allclose(full(cut.grad()), plain.grad())) << name;
    }
  });
}

TEST(Autograd, StridesChangedInPlace) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto plain = sample({4, 6});
    auto tensor = distribute(plain, Layout(mesh, {Shard{0}}));
    tensor.as_strided_({4, 3}, {6, 2}, 1);
    EXPECT_EQ(layout_of(tensor), Layout(mesh, {Shard{0}}));
    EXPECT_TRUE(torch::equal(full(tensor), plain.as_strided({4, 3}, {6, 2}, 1)));
    auto columns = distribute(plain, Layout(mesh, {Shard{1}}));
    EXPECT_THAT(usage_error([&] { columns.as_strided_({24}, {1}, 0); }),
                HasSubstr("operator aten::as_strided_ cannot make a tensor of [4, 6], which is "
                          "[tensor: Shard(1)], one of [24] and strides [1] in place without "
                          "communication"));
    auto whole = distribute(plain, Layout(mesh, {Replicate{}}));
    whole.as_strided_({24}, {1}, 0);
    EXPECT_TRUE(torch::equal(full(whole), plain.view({24})));
  });
}

// Flat ranges are the only cut of a tensor, beside whatever cuts others along other axes.
TEST(Autograd, FlatRangesBesideOtherAxes) {
  run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}, {"tensor", 2}});
    const Placement flat = FlatShard{.ranges = {{0, 7}, {7, 5}}};
    const auto plain = sample({4, 3});
    const auto other = sample({4, 3}).flip(0);
    for (const int flat_axis : {0, 1}) {
      std::vector<Placement> placements = {Replicate{}, Replicate{}};
      placements[static_cast<std::size_t>(flat_axis)] = flat;
      const auto ranges = distribute(plain, Layout(mesh, placements));
      for (const Placement& data : {Placement(Replicate{}), Placement(Shard{0}),
                                    Placement(Shard{1}), Placement(Partial{})}) {
        for (const Placement& tensor : {Placement(Replicate{}), Placement(Shard{0})}) {
          const auto cut = distribute(other, Layout(mesh, {data, tensor}));
          const std::string what = describe(ranges) + " and " + describe(cut);
          EXPECT_TRUE(torch::equal(full(ranges * cut), plain * other)) << what;
          EXPECT_TRUE(torch::equal(full(cut + ranges), plain + other)) << what;
          auto written = ranges.clone();
          written.addcmul_(cut, ranges, 2);
          EXPECT_EQ(layout_of(written), layout_of(ranges)) << what;
          EXPECT_TRUE(torch::equal(full(written), plain + 2 * (other * plain))) << what;
        }
      }
    }
  });
}

}  // namespace
}  // namespace trireme
