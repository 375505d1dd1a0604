// SPDX-License-Identifier: Apache-2.0
// Embeddings and one_hot with every placement, the rows of the weight included.
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/operators/operator_checks.h>

#include <cstdint>

namespace trireme {
namespace {

using test::check_operators;
using test::one;
using test::sample;
using test::Tensors;
using ::testing::HasSubstr;

torch::Tensor indices(torch::IntArrayRef sizes, std::int64_t rows) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return (torch::arange(count) * 3 + 1).remainder(rows).reshape(sizes);
}

TEST(EmbeddingRules, LookUpRows) {
  check_operators({
      one("matrix of indices", [](const Tensors& in) { return torch::embedding(in[0], in[1]); },
          {sample({7, 3}), indices({4, 2}, 7)}),
      one("rows fewer than ranks", [](const Tensors& in) { return torch::embedding(in[0], in[1]); },
          {sample({2, 3}), indices({5}, 2)}),
      one("indices fewer than ranks",
          [](const Tensors& in) { return torch::embedding(in[0], in[1]); },
          {sample({5, 1}), indices({1}, 5)}),
      one("one index", [](const Tensors& in) { return torch::embedding(in[0], in[1]); },
          {sample({5, 4}), torch::tensor(3)}),
      one("with padding", [](const Tensors& in) { return torch::embedding(in[0], in[1], 4); },
          {sample({7, 3}), indices({3, 3}, 7)}),
      one("gradients by frequency",
          [](const Tensors& in) { return torch::embedding(in[0], in[1], -1, true); },
          {sample({4, 3}), indices({3, 3}, 4)}),
      one("a row that every rank asks for",
          [](const Tensors& in) { return torch::embedding(in[0], in[1]); },
          {sample({6, 2}), torch::full({5}, 5, torch::kLong)}),
  });
}

TEST(EmbeddingRules, ScaleRowsThatAreTooLong) {
  auto renorm = one("renorm",
                    [](const Tensors& in) {
                      auto weight = in[0].clone();
                      at::embedding_renorm_(weight, in[1], 1.5, 2.0);
                      return weight;
                    },
                    {sample({7, 3}), indices({4}, 7)});
  renorm.has_gradient = false;
  check_operators({renorm});
}

TEST(EmbeddingRules, LookUpBags) {
  for (const std::int64_t mode : {0, 1, 2}) {
    auto bags = one("bags, mode " + std::to_string(mode),
                    [mode](const Tensors& in) {
                      const auto offsets = torch::tensor({0, 2, 5}, torch::kLong);
                      return std::get<0>(torch::embedding_bag(in[0], in[1], offsets, false, mode));
                    },
                    {sample({7, 3}), indices({7}, 7)});
    check_operators({bags});
  }
}

TEST(EmbeddingRules, OneHot) {
  auto known = one("classes known", [](const Tensors& in) { return torch::one_hot(in[0], 6); },
                   {indices({3, 4}, 6)});
  auto found = one("classes found", [](const Tensors& in) { return torch::one_hot(in[0]); },
                   {indices({5}, 6)});
  known.has_gradient = found.has_gradient = false;
  check_operators({known, found});
}

TEST(EmbeddingRules, KeepAParallelVocabularyWhereItIs) {
  testing::run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}, {"tensor", 2}});
    const Layout by_row(mesh, {{"tensor", Shard{0}}});
    const auto weight = distribute(sample({10, 4}), by_row).requires_grad_(true);
    const auto words = distribute(indices({4, 3}, 10), Layout(mesh, {{"data", Shard{0}}}));
    const auto features = torch::embedding(weight, words);
    EXPECT_EQ(layout_of(features), Layout(mesh, {Shard{0}, Partial{}}));
    (features * 2).sum().backward();
    // The sum over the data axis is still to be made; over the tensor axis every rank has its rows.
    EXPECT_EQ(layout_of(weight.grad()), Layout(mesh, {Partial{}, Shard{0}}));
  });
}

TEST(EmbeddingRules, MakeTheGradientOfAParallelVocabularyWhereItIs) {
  testing::run_ranks(3, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 3}});
    for (const Placement placement : {Placement(Shard{0}), Placement(Replicate{})}) {
      // Of different sizes: what is known of how a weight is cut is known by its shape.
      const std::int64_t rows = placement.is_replicate() ? 9 : 10;
      const Layout layout(mesh, {placement});
      const auto weight = distribute(sample({rows, 4}), layout).requires_grad_(true);
      torch::embedding(weight, indices({5}, 9)).square().sum().backward();
      EXPECT_EQ(layout_of(weight.grad()), layout);
    }
  });
}

TEST(EmbeddingRules, NameAnIndexThatIsNoRow) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto weight = distribute(sample({4, 2}), Layout(mesh, {Shard{0}}));
    try {
      torch::embedding(weight, torch::tensor({1, -1}));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::IndexError& error) {
      EXPECT_STREQ(error.what_without_backtrace(),
                   "index -1 is out of range for an embedding of 4 rows");
    }
  });
}

TEST(EmbeddingRules, RefuseSparseGradients) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto weight = distribute(sample({4, 2}), Layout(mesh, {Shard{0}})).requires_grad_(true);
    EXPECT_THAT(test::usage_error([&] {
                  torch::embedding(weight, torch::tensor({1, 3}), -1, false, /*sparse=*/true)
                      .sum()
                      .backward();
                }),
                HasSubstr("the gradient of a distributed embedding cannot be sparse"));
  });
}

}  // namespace
}  // namespace trireme
