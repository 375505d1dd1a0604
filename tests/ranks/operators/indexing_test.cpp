// SPDX-License-Identifier: Apache-2.0
// Reading and writing at indices with every placement of tensors and indices.
#include <tests/ranks/operators/operator_checks.h>

namespace trireme {
namespace {

using test::check_operators;
using test::one;
using test::sample;
using test::Tensors;

torch::Tensor integers(const std::vector<std::int64_t>& values) { return torch::tensor(values); }

c10::List<std::optional<torch::Tensor>> places(std::vector<std::optional<torch::Tensor>> given) {
  c10::List<std::optional<torch::Tensor>> list;
  for (auto& place : given) list.push_back(std::move(place));
  return list;
}

TEST(IndexingRules, ReadAtIndices) {
  check_operators({
      one("first dim", [](const Tensors& in) { return torch::index(in[0], places({in[1]})); },
          {sample({5, 3}), integers({4, 0, 2, 2})}),
      one("last dim",
          [](const Tensors& in) { return torch::index(in[0], places({std::nullopt, in[1]})); },
          {sample({5, 3}), integers({2, 0})}),
      one("two dims side by side",
          [](const Tensors& in) {
            return torch::index(in[0], places({std::nullopt, in[1], in[2]}));
          },
          {sample({3, 4, 2}), integers({3, 0, 1}).view({3, 1}), integers({1, 0})}),
      one("two dims apart",
          [](const Tensors& in) {
            return torch::index(in[0], places({in[1], std::nullopt, in[2]}));
          },
          {sample({3, 4, 2}), integers({2, 0, 1}), integers({1, 0, 1})}),
      one("negative indices",
          [](const Tensors& in) { return torch::index(in[0], places({in[1]})); },
          {sample({5, 3}), integers({-1, 2})}),
      {.name = "mask",
       .function = [](const Tensors& in) { return Tensors{torch::index(in[0], places({in[1]}))}; },
       .inputs = {sample({4, 3}), sample({4, 3}) > 0}},
      {.name = "mask of rows",
       .function = [](const Tensors& in) { return Tensors{torch::index(in[0], places({in[1]}))}; },
       .inputs = {sample({4, 3}), sample({4}) > 0}},
  });
}

TEST(IndexingRules, WriteAtIndices) {
  check_operators({
      one("rows", [](const Tensors& in) { return in[0].index_put(places({in[1]}), in[2]); },
          {sample({5, 3}), integers({4, 0}), sample({2, 3})}),
      one("columns from a number",
          [](const Tensors& in) { return in[0].index_put(places({std::nullopt, in[1]}), in[2]); },
          {sample({5, 3}), integers({2, 0}), sample({})}),
      one("added up",
          [](const Tensors& in) { return in[0].index_put(places({in[1]}), in[2], true); },
          {sample({5, 3}), integers({4, 0, 4}), sample({3, 3})}),
      one("in place",
          [](const Tensors& in) {
            auto copy = in[0].clone();
            copy.index_put_(places({in[1]}), in[2], true);
            return copy * 2;
          },
          {sample({4, 3}), integers({1, 1}), sample({3})}),
      one("where masked", [](const Tensors& in) { return in[0].index_put(places({in[1]}), in[2]); },
          {sample({4, 3}), sample({4, 3}) > 0, sample({})}),
      one("rows where masked",
          [](const Tensors& in) { return in[0].index_put(places({in[1]}), in[2]); },
          {sample({4, 3}), sample({4}) > 0, sample({3})}),
  });
}

TEST(IndexingRules, Gather) {
  const auto places_in_rows = (sample({4, 2}, torch::kLong)).remainder(3);
  check_operators({
      one("gather of the last dim",
          [](const Tensors& in) { return torch::gather(in[0], 1, in[1]); },
          {sample({4, 3}), places_in_rows}),
      one("gather of the first dim",
          [](const Tensors& in) { return torch::gather(in[0], 0, in[1]); },
          {sample({3, 3}), sample({5, 2}, torch::kLong).remainder(3)}),
      one("take_along_dim",
          [](const Tensors& in) { return torch::take_along_dim(in[0], in[1], 1); },
          {sample({4, 3}), places_in_rows}),
      one("take", [](const Tensors& in) { return torch::take(in[0], in[1]); },
          {sample({3, 2}), integers({5, 0, 0})}),
      {.name = "gather of integers",
       .function = [](const Tensors& in) { return Tensors{torch::gather(in[0], 1, in[1])}; },
       .inputs = {sample({4, 3}, torch::kLong), places_in_rows},
       .has_gradient = false},
  });
}

TEST(IndexingRules, Scatter) {
  const auto distinct = integers({2, 0, 1, 2, 0, 1, 2, 0}).view({4, 2});
  check_operators({
      one("scatter", [](const Tensors& in) { return torch::scatter(in[0], 1, in[1], in[2]); },
          {sample({4, 3}), distinct, sample({4, 2})}),
      one("scatter of a number",
          [](const Tensors& in) { return torch::scatter(in[0], 1, in[1], 2.5); },
          {sample({4, 3}), distinct}),
      {.name = "scatter with a product",
       .function =
           [](const Tensors& in) {
             return Tensors{torch::scatter(in[0], 1, in[1], in[2], "multiply")};
           },
       .inputs = {sample({4, 3}), distinct, sample({4, 2})},
       .has_gradient = false},
      one("scatter_add",
          [](const Tensors& in) { return torch::scatter_add(in[0], 0, in[1], in[2]); },
          {sample({3, 2}), sample({5, 2}, torch::kLong).remainder(3), sample({5, 2})}),
      one("scatter_add in place",
          [](const Tensors& in) { return in[0].clone().scatter_add_(1, in[1], in[2]) * 2; },
          {sample({4, 3}), distinct, sample({4, 2})}),
      one("scatter_reduce",
          [](const Tensors& in) { return torch::scatter_reduce(in[0], 1, in[1], in[2], "amax"); },
          {sample({4, 3}), distinct, sample({4, 2})}),
  });
}

TEST(IndexingRules, SelectAlongADim) {
  check_operators({
      one("index_select", [](const Tensors& in) { return torch::index_select(in[0], 0, in[1]); },
          {sample({5, 3}), integers({4, 0, 2, 2})}),
      one("index_select of few",
          [](const Tensors& in) { return torch::index_select(in[0], 1, in[1]); },
          {sample({3, 2}), integers({1})}),
      one("index_add",
          [](const Tensors& in) { return torch::index_add(in[0], 0, in[1], in[2], 2); },
          {sample({4, 3}), integers({3, 0, 3}), sample({3, 3})}),
      one("index_add in place",
          [](const Tensors& in) { return in[0].clone().index_add_(1, in[1], in[2]) * 2; },
          {sample({4, 3}), integers({2, 2}), sample({4, 2})}),
      one("index_copy", [](const Tensors& in) { return torch::index_copy(in[0], 0, in[1], in[2]); },
          {sample({4, 3}), integers({3, 0}), sample({2, 3})}),
      one("index_fill", [](const Tensors& in) { return torch::index_fill(in[0], 1, in[1], 2.5); },
          {sample({4, 3}), integers({2, 0})}),
      {.name = "index_reduce",
       .function =
           [](const Tensors& in) {
             return Tensors{torch::index_reduce(in[0], 0, in[1], in[2], "prod")};
           },
       .inputs = {sample({4, 3}), integers({3, 0}), sample({2, 3})},
       .has_gradient = false},
  });
}

TEST(IndexingRules, SelectWhereMasked) {
  check_operators({
      one("masked_select", [](const Tensors& in) { return torch::masked_select(in[0], in[1]); },
          {sample({4, 3}), sample({4, 3}) > 0}),
      one("masked_scatter",
          [](const Tensors& in) { return torch::masked_scatter(in[0], in[1], in[2]); },
          {sample({2, 3}), sample({2, 3}) > 0, sample({6})}),
      {.name = "nonzero",
       .function = [](const Tensors& in) { return Tensors{torch::nonzero(in[0])}; },
       .inputs = {sample({4, 3}).relu()},
       .has_gradient = false},
      {.name = "isin",
       .function = [](const Tensors& in) { return Tensors{torch::isin(in[0], in[1])}; },
       .inputs = {sample({4, 3}, torch::kLong), sample({4}, torch::kLong)},
       .has_gradient = false},
  });
}

// Calls that differ only in which dim the index is for are not taken for each other.
TEST(IndexingRules, TellDimsApart) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto plain = sample({3, 3});
    const auto cut = distribute(plain, Layout(mesh, {Shard{0}}));
    const auto index = integers({2, 0, 1});
    for (int round = 0; round < 2; ++round) {
      const auto rows = torch::index(cut, places({index}));
      EXPECT_TRUE(torch::equal(full(rows), torch::index(plain, places({index}))));
      const auto columns = torch::index(cut, places({std::nullopt, index}));
      EXPECT_TRUE(torch::equal(full(columns), torch::index(plain, places({std::nullopt, index}))));
    }
  });
}

// A table that is cut along the dim looked up is not gathered: each rank gives what it has.
TEST(IndexingRules, LookUpInCutTables) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto table = sample({5, 3});
    const auto cut = distribute(table, Layout(mesh, {Shard{0}}));
    const auto index = integers({4, 0, 3});
    const auto found = torch::index_select(cut, 0, index);
    EXPECT_TRUE(layout_of(found)[0].is_partial());
    EXPECT_TRUE(torch::equal(full(found), torch::index_select(table, 0, index)));
    EXPECT_THROW(torch::index_select(cut, 0, integers({5})), c10::IndexError);
    EXPECT_THROW(torch::gather(cut, 0, integers({5, 0, 0}).view({1, 3})), c10::IndexError);
  });
}

}  // namespace
}  // namespace trireme
