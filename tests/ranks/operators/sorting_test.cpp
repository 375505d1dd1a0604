// SPDX-License-Identifier: Apache-2.0
// Sorting, selecting, searching and scanning with every placement.
#include <tests/ranks/operators/operator_checks.h>

#include <limits>

namespace trireme {
namespace {

using test::check_operators;
using test::one;
using test::OperatorCase;
using test::sample;
using test::Tensors;
using test::without_gradient;

template <typename Function>
OperatorCase pair(const std::string& name, Function function, const Tensors& inputs) {
  return {.name = std::move(name),
          .function =
              [function](const Tensors& in) {
                const auto [values, indices] = function(in);
                return Tensors{values, indices};
              },
          .inputs = std::move(inputs)};
}

TEST(SortingRules, Sort) {
  check_operators({
      pair("sort", [](const Tensors& in) { return torch::sort(in[0], 1); }, {sample({4, 5})}),
      pair("stable sort",
           [](const Tensors& in) { return torch::sort(in[0], /*stable=*/true, 0, true); },
           {sample({4, 3})}),
      pair("topk", [](const Tensors& in) { return torch::topk(in[0], 2, -1); }, {sample({5, 4})}),
      without_gradient("argsort",
                       [](const Tensors& in) { return torch::argsort(in[0], std::int64_t{0}); },
                       {sample({5, 2})}),
      one("msort", [](const Tensors& in) { return torch::msort(in[0]); }, {sample({3, 4})}),
      pair("kthvalue", [](const Tensors& in) { return torch::kthvalue(in[0], 2, 1); },
           {sample({3, 5})}),
      pair("median", [](const Tensors& in) { return torch::median(in[0], 0, true); },
           {sample({5, 3})}),
      pair("nanmedian", [](const Tensors& in) { return torch::nanmedian(in[0], 1); },
           {sample({2, 4})}),
      pair("mode", [](const Tensors& in) { return torch::mode(in[0].round(), 1); },
           {sample({3, 4})}),
      one("median of all", [](const Tensors& in) { return torch::median(in[0]); },
          {sample({3, 4})}),
  });
}

TEST(SortingRules, FindExtremes) {
  check_operators({
      pair("max of rows", [](const Tensors& in) { return torch::max(in[0], 1); }, {sample({4, 5})}),
      pair("max of columns, kept", [](const Tensors& in) { return torch::max(in[0], 0, true); },
           {sample({5, 2})}),
      pair("min of few", [](const Tensors& in) { return torch::min(in[0], 0); }, {sample({2, 3})}),
      pair("max of a batch", [](const Tensors& in) { return torch::max(in[0], -2); },
           {sample({2, 5, 3})}),
      without_gradient("argmax", [](const Tensors& in) { return torch::argmax(in[0], 1); },
                       {sample({4, 5})}),
      without_gradient("argmin of all", [](const Tensors& in) { return torch::argmin(in[0]); },
                       {sample({5, 3})}),
      without_gradient("argmax of all, kept",
                       [](const Tensors& in) { return torch::argmax(in[0], std::nullopt, true); },
                       {sample({2, 3, 2})}),
      without_gradient("argmax of ties", [](const Tensors& in) { return torch::argmax(in[0]); },
                       {torch::ones({4, 3}, torch::kDouble)}),
      {.name = "max of integers",
       .function =
           [](const Tensors& in) {
             const auto [values, indices] = torch::max(in[0], 0);
             return Tensors{values, indices};
           },
       .inputs = {sample({2, 3}, torch::kLong)},
       .has_gradient = false},
      pair("aminmax", [](const Tensors& in) { return torch::aminmax(in[0], 0); }, {sample({2, 3})}),
      pair("aminmax of all", [](const Tensors& in) { return torch::aminmax(in[0]); },
           {sample({5, 2})}),
  });
}

TEST(SortingRules, FindTheFirstNan) {
  auto values = sample({5, 3});
  values[3][1] = std::numeric_limits<double>::quiet_NaN();
  values[4][1] = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  check_operators({
      without_gradient("argmax", [](const Tensors& in) { return torch::argmax(in[0], 0); },
                       {values}),
      without_gradient("argmin of all", [](const Tensors& in) { return torch::argmin(in[0]); },
                       {values}),
      without_gradient("argmax of -inf", [](const Tensors& in) { return torch::argmax(in[0], 0); },
                       {torch::full({2, 2}, -infinity, torch::kDouble)}),
  });
}

TEST(SortingRules, Search) {
  const auto boundaries = torch::arange(-2, 3).to(torch::kDouble);
  check_operators({
      without_gradient("bucketize",
                       [](const Tensors& in) { return torch::bucketize(in[0], in[1]); },
                       {sample({4, 3}), boundaries}),
      without_gradient("searchsorted in one sequence",
                       [](const Tensors& in) { return torch::searchsorted(in[1], in[0], true); },
                       {sample({4, 3}), boundaries}),
      without_gradient("searchsorted in many",
                       [](const Tensors& in) { return torch::searchsorted(in[1], in[0]); },
                       {sample({3, 2}), std::get<0>(sample({3, 5}).sort(1))}),
  });
}

TEST(SortingRules, FindWhatIsUnique) {
  check_operators({
      without_gradient(
          "unique",
          [](const Tensors& in) { return std::get<0>(torch::_unique2(in[0], true, true)); },
          {sample({4, 3}).round()}),
      without_gradient("unique rows",
                       [](const Tensors& in) { return std::get<0>(torch::unique_dim(in[0], 0)); },
                       {sample({4, 2}).sign()}),
      without_gradient(
          "unique neighbours",
          [](const Tensors& in) { return std::get<0>(torch::unique_consecutive(in[0])); },
          {sample({7}).sign()}),
  });
}

TEST(ScanRules, Scan) {
  check_operators({
      one("cumsum", [](const Tensors& in) { return torch::cumsum(in[0], 1); }, {sample({5, 3})}),
      one("cumprod", [](const Tensors& in) { return torch::cumprod(in[0], 0); }, {sample({3, 4})}),
      pair("cummax", [](const Tensors& in) { return torch::cummax(in[0], 1); }, {sample({3, 4})}),
      pair("cummin", [](const Tensors& in) { return torch::cummin(in[0], 0); }, {sample({3, 2})}),
      one("logcumsumexp", [](const Tensors& in) { return torch::logcumsumexp(in[0], 1); },
          {sample({4, 3})}),
      one("cumsum in place", [](const Tensors& in) { return in[0].clone().cumsum_(0); },
          {sample({3, 4})}),
      one("diff", [](const Tensors& in) { return torch::diff(in[0]); }, {sample({3, 4})}),
      without_gradient("cumsum of integers",
                       [](const Tensors& in) { return torch::cumsum(in[0], 0); },
                       {sample({4, 3}, torch::kInt)}),
  });
}

// The dim that is reduced may be cut: nothing but (value, index) pairs is exchanged.
TEST(SortingRules, ExchangePairsAlongTheCutDim) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto plain = sample({4, 7});
    const auto cut = distribute(plain, Layout(mesh, {Shard{1}}));
    const auto [values, indices] = torch::max(cut, 1);
    EXPECT_TRUE(layout_of(values).is_replicated());
    EXPECT_TRUE(torch::equal(full(indices), std::get<1>(torch::max(plain, 1))));
  });
}

}  // namespace
}  // namespace trireme
