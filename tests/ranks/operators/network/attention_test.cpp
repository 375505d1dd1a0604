// SPDX-License-Identifier: Apache-2.0
// Scaled dot product attention with every placement.
#include <tests/ranks/operators/operator_checks.h>

#include <cstdint>

namespace trireme {
namespace {

using test::check_in_both_precisions;
using test::check_operators;
using test::OperatorCase;
using test::sample;
using test::Tensors;

// Queries, keys and values; sums are of few kinds here, for there are many placements.
OperatorCase attention_case(const std::string& name, torch::IntArrayRef query,
                            torch::IntArrayRef key,
                            const std::function<torch::Tensor(const Tensors&)>& function) {
  auto one_case =
      test::one(name, function, {sample(query), sample(key).flip(0), sample(key).flip(2)});
  one_case.takes_partial = false;
  return one_case;
}

torch::Tensor attention(const Tensors& in, bool is_causal) {
  return torch::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0.0, is_causal);
}

TEST(AttentionRules, WithoutMask) {
  check_in_both_precisions(
      {attention_case("attention", {2, 3, 5, 4}, {2, 3, 4, 4},
                      [](const Tensors& in) { return attention(in, false); }),
       attention_case("scaled", {1, 2, 3, 4}, {1, 2, 5, 4}, [](const Tensors& in) {
         return torch::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0.0, false, 0.3);
       })});
}

TEST(AttentionRules, CausalMaskKnowsWhereQueriesBegin) {
  check_in_both_precisions({attention_case("causal", {2, 2, 5, 4}, {2, 2, 5, 4},
                                           [](const Tensors& in) { return attention(in, true); }),
                            attention_case("more queries than keys", {1, 3, 7, 2}, {1, 3, 3, 2},
                                           [](const Tensors& in) { return attention(in, true); }),
                            attention_case("more keys than queries", {2, 1, 2, 4}, {2, 1, 6, 4},
                                           [](const Tensors& in) { return attention(in, true); })});
}

TEST(AttentionRules, MaskIsCutWithTheScores) {
  auto of_rows =
      attention_case("mask of queries and keys", {1, 2, 5, 4}, {1, 2, 3, 4}, [](const Tensors& in) {
        return torch::scaled_dot_product_attention(in[0], in[1], in[2], in[3].detach());
      });
  of_rows.inputs.push_back(sample({5, 3}));
  const auto plain = sample({2, 1, 3, 3});
  check_operators({of_rows, attention_case("plain mask of a batch", {2, 2, 3, 4}, {2, 2, 3, 4},
                                           [plain](const Tensors& in) {
                                             return torch::scaled_dot_product_attention(
                                                 in[0], in[1], in[2], plain);
                                           })});
}

TEST(AttentionRules, TakenApart) {
  check_in_both_precisions(
      {attention_case("math", {2, 2, 3, 4}, {2, 2, 3, 4}, [](const Tensors& in) {
        return std::get<0>(at::_scaled_dot_product_attention_math(in[0], in[1], in[2], {}, 0.0,
                                                                  /*is_causal=*/true));
      })});
}

TEST(AttentionRules, TakeHalfPrecision) {
  auto bf16 = attention_case("bf16", {2, 2, 5, 8}, {2, 2, 5, 8},
                             [](const Tensors& in) { return attention(in, true); });
  for (torch::Tensor& input : bf16.inputs) input = input.to(torch::kBFloat16);
  bf16.bound = 6e-2;
  check_operators({bf16});
}

TEST(AttentionRules, CutHeadsStayCut) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    for (const int dim : {0, 1, 2}) {
      const Layout cut(mesh, {Shard{dim}});
      const auto query = distribute(sample({2, 4, 6, 4}), cut).requires_grad_(true);
      const Layout of_keys = dim < 2 ? cut : Layout::replicated(mesh);
      const auto key = distribute(sample({2, 4, 6, 4}), of_keys).requires_grad_(true);
      const auto output = torch::scaled_dot_product_attention(query, key, key, {}, 0.0, true);
      EXPECT_EQ(layout_of(output), cut) << dim;
      output.sum().backward();
      EXPECT_EQ(layout_of(query.grad()), cut) << dim;
    }
  });
}

}  // namespace
}  // namespace trireme
