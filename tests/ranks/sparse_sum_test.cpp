// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/gradients/sparse_sum.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <utility>

namespace trireme::detail {
namespace {

using comm::Group;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_catching;

struct Case {
  std::vector<std::int64_t> sizes;
  std::int64_t sparse_dims = 1;
  std::vector<std::int64_t> entries;  // of each rank; -1: it has none
  at::ScalarType dtype = at::kFloat;
};

// Entries at random places, many of them several times.
at::Tensor make_own(const Case& c, std::size_t rank) {
  const std::int64_t count = c.entries[rank];
  if (count < 0) return {};
  auto generator = at::detail::createCPUGenerator(1000 * rank + static_cast<std::size_t>(count));
  std::vector<at::Tensor> indices;
  for (std::int64_t dim = 0; dim < c.sparse_dims; ++dim) {
    indices.push_back(
        torch::randint(c.sizes[static_cast<std::size_t>(dim)], {count}, generator, torch::kLong));
  }
  std::vector<std::int64_t> shape = {count};
  shape.insert(shape.end(), c.sizes.begin() + c.sparse_dims, c.sizes.end());
  const at::Tensor values = torch::randn(shape, generator, torch::kFloat).to(c.dtype);
  return torch::sparse_coo_tensor(torch::stack(indices), values, c.sizes);
}

// What a dense all-reduce gives: each rank's own as a dense tensor, added in rank order.
at::Tensor folded(const Case& c) {
  const bool is_half = at::isReducedFloatingType(c.dtype);
  at::Tensor sum;
  for (std::size_t rank = 0; rank < c.entries.size(); ++rank) {
    const at::Tensor own = make_own(c, rank);
    at::Tensor term = own.defined() ? own.coalesce().to_dense() : torch::zeros(c.sizes, c.dtype);
    if (is_half) term = term.to(torch::kFloat);
    sum = sum.defined() ? sum + term : term;
  }
  return sum.to(c.dtype);
}

bool has_same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         torch::equal(a.contiguous().view({-1}).view(torch::kByte),
                      b.contiguous().view({-1}).view(torch::kByte));
}

void expect_bits_of_dense_fold(const Case& c) {
  const at::Tensor expected = folded(c);
  std::vector<at::Tensor> sums(c.entries.size());
  run_ranks(static_cast<int>(c.entries.size()), [&](const Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    sums[rank] = sum_sparse(make_own(c, rank), c.sizes, torch::dtype(c.dtype), group);
  });
  for (std::size_t rank = 0; rank < sums.size(); ++rank) {
    const at::Tensor& sum = sums[rank];
    ASSERT_TRUE(sum.defined());
    EXPECT_TRUE(sum.is_coalesced());
    EXPECT_FALSE(sum.requires_grad());
    EXPECT_EQ(sum.sparse_dim(), c.sparse_dims);
    EXPECT_EQ(sum._nnz(), torch::sparse_coo_tensor(sum.indices(), sum.values(), c.sizes)
                              .coalesce()
                              ._nnz());  // no index is there twice
    EXPECT_TRUE(torch::equal(sum.indices(), sums[0].indices())) << "rank " << rank;
    EXPECT_TRUE(has_same_bits(sum.values(), sums[0].values())) << "rank " << rank;
    EXPECT_TRUE(has_same_bits(sum.to_dense(), expected)) << "rank " << rank << "\n"
                                                         << sum.to_dense() << expected;
  }
}

TEST(SumSparse, GivesTheBitsOfADenseFoldInRankOrder) {
  for (const std::vector<std::int64_t>& entries :
       {std::vector<std::int64_t>{5}, {5, 9}, {20, 1, 7}, {8, 8, 8, 8}}) {
    expect_bits_of_dense_fold({.sizes = {12, 3}, .entries = entries});
    expect_bits_of_dense_fold({.sizes = {12, 3}, .entries = entries, .dtype = at::kDouble});
    expect_bits_of_dense_fold({.sizes = {12, 3}, .entries = entries, .dtype = at::kHalf});
    expect_bits_of_dense_fold({.sizes = {12, 3}, .entries = entries, .dtype = at::kBFloat16});
  }
}

TEST(SumSparse, TakesSeveralSparseAndSeveralDenseDimensions) {
  const std::vector<std::int64_t> entries = {9, 4, 13};
  expect_bits_of_dense_fold({.sizes = {7}, .entries = entries});
  expect_bits_of_dense_fold({.sizes = {7, 3, 2}, .entries = entries});
  expect_bits_of_dense_fold({.sizes = {4, 3, 2}, .sparse_dims = 2, .entries = entries});
  expect_bits_of_dense_fold({.sizes = {4, 3, 2}, .sparse_dims = 3, .entries = entries});
  expect_bits_of_dense_fold({.sizes = {7, 0}, .entries = entries});
}

TEST(SumSparse, TakesRanksThatHaveNoneOrNoEntries) {
  expect_bits_of_dense_fold({.sizes = {6, 2}, .entries = {-1, 5, 3}});
  expect_bits_of_dense_fold({.sizes = {6, 2}, .entries = {5, -1, -1}});
  expect_bits_of_dense_fold({.sizes = {6, 2}, .entries = {-1, 0, 4}});
  expect_bits_of_dense_fold({.sizes = {4, 3, 2}, .sparse_dims = 2, .entries = {0, -1}});
}

TEST(SumSparse, IsUndefinedWhereNoRankHasAny) {
  run_ranks(3, [](const Group& group) {
    EXPECT_FALSE(sum_sparse({}, {6, 2}, torch::kFloat, group).defined());
  });
  EXPECT_FALSE(sum_sparse({}, {6, 2}, torch::kFloat, Group::self()).defined());
}

TEST(SumSparse, KeepsWhatIsNotFinite) {
  run_ranks(2, [](const Group& group) {
    const float value = group.rank() == 1 ? std::numeric_limits<float>::infinity() : 1.0F;
    const at::Tensor own =
        torch::sparse_coo_tensor(torch::tensor({{3}}), torch::full({1, 2}, value), {5, 2});
    const at::Tensor sum = sum_sparse(own, {5, 2}, torch::kFloat, group);
    EXPECT_TRUE(torch::isinf(sum.values()).all().item<bool>());
  });
}

// As the options of a parameter are: with requires_grad.
TEST(SumSparse, AddsTheGradientsOfAnEmbedding) {
  const std::vector<at::Tensor> words = {torch::tensor({1, 4, 4, 0}), torch::tensor({4, 7}),
                                         at::Tensor()};
  const auto gradient = [&](std::size_t rank, bool is_sparse) {
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(9, 5).sparse(is_sparse));
    torch::nn::init::ones_(embedding->weight);
    if (words[rank].defined()) {
      (embedding(words[rank]).pow(2) * static_cast<double>(rank + 1)).sum().backward();
    }
    return embedding->weight;
  };
  at::Tensor expected = torch::zeros({9, 5});
  for (std::size_t rank = 0; rank < 2; ++rank) expected += gradient(rank, false).grad();
  run_ranks(3, [&](const Group& group) {
    const at::Tensor weight = gradient(static_cast<std::size_t>(group.rank()), true);
    const at::Tensor sum = sum_sparse(weight.grad(), weight.sizes(), weight.options(), group);
    EXPECT_TRUE(torch::equal(sum.to_dense(), expected));
    EXPECT_TRUE(torch::equal(sum.indices()[0], torch::tensor({0, 1, 4, 7})));
    at::Tensor parameter = weight;
    parameter.mutable_grad() = sum;  // what an optimizer takes
    torch::optim::SGD({parameter}, 1.0).step();
    EXPECT_TRUE(torch::equal(weight.detach(), 1 - expected));
  });
}

TEST(SumSparse, LeavesItsArgumentAsItIs) {
  run_ranks(2, [](const Group& group) {
    const Case c{.sizes = {3, 2}, .entries = {9, 9}};
    const at::Tensor own = make_own(c, static_cast<std::size_t>(group.rank()));
    sum_sparse(own, c.sizes, torch::kFloat, group);
    EXPECT_EQ(own._nnz(), 9);
    EXPECT_FALSE(own.is_coalesced());
  });
}

// Both ranks must throw, with the same message.
std::string refusal_of(const std::function<void(const Group&)>& body) {
  const auto thrown = run_ranks_catching(2, body);
  EXPECT_EQ(message_of<UsageError>(thrown[0]), message_of<UsageError>(thrown[1]));
  return message_of<UsageError>(thrown[1]);
}

at::Tensor one_entry(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return torch::zeros(sizes, dtype).index_fill(0, torch::tensor({1}), 2).to_sparse(1);
}

TEST(SumSparse, RefusesSizesAndDtypesThatDiffer) {
  EXPECT_THAT(refusal_of([](const Group& group) {
                const std::vector<std::int64_t> sizes = {6, 2 + group.rank()};
                sum_sparse(one_entry(sizes), sizes, torch::kFloat, group);
              }),
              AllOf(HasSubstr("rank 0 has sizes [6, 2]"), HasSubstr("rank 1 has sizes [6, 3]")));
  EXPECT_THAT(refusal_of([](const Group& group) {
                const at::ScalarType dtype = group.rank() == 0 ? at::kFloat : at::kDouble;
                sum_sparse({}, {6, 2}, dtype, group);
              }),
              AllOf(HasSubstr("of Float"), HasSubstr("of Double")));
  EXPECT_THAT(refusal_of([](const Group& group) {
                const at::Tensor own = torch::ones({6, 2}).to_sparse(1 + group.rank());
                sum_sparse(own, {6, 2}, torch::kFloat, group);
              }),
              HasSubstr("rank 0 has 1 sparse dimensions, rank 1 has 2"));
}

TEST(SumSparse, RefusesATensorOfItsOwnThatDoesNotFit) {
  const std::vector<std::pair<at::Tensor, const char*>> cases = {
      {torch::ones({6, 2}), "layout Strided"},
      {one_entry({5, 2}), "sizes [5, 2]"},
      {one_entry({6, 2}, at::kDouble), "of Double"}};
  for (const auto& [own, expected] : cases) {
    EXPECT_THAT(refusal_of([&](const Group& group) {
                  sum_sparse(group.rank() == 1 ? own : one_entry({6, 2}), {6, 2}, torch::kFloat,
                             group);
                }),
                AllOf(HasSubstr("rank 1 has"), HasSubstr(expected)));
    EXPECT_THAT(
        refusal_of([&](const Group& group) { sum_sparse(own, {6, 2}, torch::kFloat, group); }),
        HasSubstr(expected));
  }
}

}  // namespace
}  // namespace trireme::detail
