// SPDX-License-Identifier: Apache-2.0
// Joining, repeating and rearranging with every placement.
#include <tests/ranks/operators/operator_checks.h>

namespace trireme {
namespace {

using test::check_operators;
using test::one;
using test::sample;
using test::Tensors;

TEST(JoiningRules, Join) {
  check_operators({
      one("cat", [](const Tensors& in) { return torch::cat({in[0], in[1]}, 1); },
          {sample({5, 3}), sample({5, 2})}),
      one("cat along the cut dim", [](const Tensors& in) { return torch::cat({in[0], in[1]}, 0); },
          {sample({5}), sample({2})}),
      one("cat with nothing",
          [](const Tensors& in) {
            return torch::cat({torch::empty({0}, torch::kDouble), in[0]}, -1);
          },
          {sample({2, 3})}),
      one("stack", [](const Tensors& in) { return torch::stack({in[0], in[1]}, 1); },
          {sample({3, 2}), sample({3, 2})}),
      one("stack of numbers", [](const Tensors& in) { return torch::stack({in[0], in[1]}); },
          {sample({}), sample({})}),
      one("hstack", [](const Tensors& in) { return torch::hstack({in[0], in[1]}); },
          {sample({2, 3}), sample({2, 1})}),
      one("block_diag", [](const Tensors& in) { return torch::block_diag({in[0], in[1]}); },
          {sample({2, 3}), sample({1, 2})}),
      {.name = "cat of integers",
       .function = [](const Tensors& in) { return Tensors{torch::cat({in[0], in[1]}, 0)}; },
       .inputs = {sample({2, 3}, torch::kLong), sample({3, 3}, torch::kLong)},
       .has_gradient = false},
      {.name = "unsafe_chunk",
       .function = [](const Tensors& in) { return torch::unsafe_chunk(in[0], 3, 1); },
       .inputs = {sample({3, 6})}},
  });
}

TEST(JoiningRules, Repeat) {
  check_operators({
      one("repeat", [](const Tensors& in) { return in[0].repeat({2, 1, 3}); }, {sample({5, 3})}),
      one("tile", [](const Tensors& in) { return torch::tile(in[0], {2}); }, {sample({3, 2})}),
      one("repeat_interleave",
          [](const Tensors& in) { return torch::repeat_interleave(in[0], 2, 0); },
          {sample({3, 2})}),
      one("kron", [](const Tensors& in) { return torch::kron(in[0], in[1]); },
          {sample({2, 3}), sample({2, 2})}),
  });
}

TEST(JoiningRules, Rearrange) {
  check_operators({
      one("roll", [](const Tensors& in) { return torch::roll(in[0], 2, 0); }, {sample({5, 3})}),
      one("roll of all", [](const Tensors& in) { return torch::roll(in[0], 2); }, {sample({2, 3})}),
      one("flip", [](const Tensors& in) { return torch::flip(in[0], {1}); }, {sample({5, 3})}),
      one("rot90", [](const Tensors& in) { return torch::rot90(in[0], 1, {0, 2}); },
          {sample({2, 3, 4})}),
      one("linalg_cross", [](const Tensors& in) { return torch::linalg_cross(in[0], in[1]); },
          {sample({5, 3}), sample({5, 3}) + 1}),
      one("unfold", [](const Tensors& in) { return in[0].unfold(1, 2, 1) * 2; }, {sample({3, 5})}),
  });
}

TEST(JoiningRules, KeepTrianglesAndDiagonals) {
  check_operators({
      one("tril", [](const Tensors& in) { return torch::tril(in[0], 1); }, {sample({5, 4})}),
      one("triu of a batch", [](const Tensors& in) { return torch::triu(in[0], -1); },
          {sample({2, 3, 5})}),
      one("tril in place", [](const Tensors& in) { return in[0].clone().tril_(); },
          {sample({4, 5})}),
      one("trace", [](const Tensors& in) { return torch::trace(in[0]); }, {sample({5, 4})}),
      {.name = "trace of integers",
       .function = [](const Tensors& in) { return Tensors{torch::trace(in[0])}; },
       .inputs = {sample({3, 5}, torch::kLong)},
       .has_gradient = false},
      one("diag_embed", [](const Tensors& in) { return torch::diag_embed(in[0], 1, 0, 2); },
          {sample({3, 2})}),
      one("diagonal", [](const Tensors& in) { return torch::diagonal(in[0], 0, 0, 2) * 2; },
          {sample({3, 2, 3})}),
      one("diag", [](const Tensors& in) { return torch::diag(in[0]); }, {sample({4})}),
      one("diagonal_scatter",
          [](const Tensors& in) { return torch::diagonal_scatter(in[0], in[1], 0, 1, 2); },
          {sample({3, 2, 2}), sample({3, 2})}),
      one("slice_scatter",
          [](const Tensors& in) { return torch::slice_scatter(in[0], in[1], 1, 1, 3); },
          {sample({3, 4}), sample({3, 2})}),
      one("select_scatter",
          [](const Tensors& in) { return torch::select_scatter(in[0], in[1], 1, 2); },
          {sample({3, 4}), sample({3})}),
  });
}

}  // namespace
}  // namespace trireme
