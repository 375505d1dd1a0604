// SPDX-License-Identifier: Apache-2.0
// Variances, norms, distances, counts, decompositions and Fourier transforms with every placement.
#include <tests/ranks/operators/operator_checks.h>

#include <limits>

namespace trireme {
namespace {

using test::check_operators;
using test::one;
using test::sample;
using test::Tensors;
using test::without_gradient;

torch::Tensor number(bool value) { return torch::tensor(value); }

TEST(StatisticsRules, CombineVariances) {
  check_operators({
      one("var of all", [](const Tensors& in) { return torch::var(in[0]); }, {sample({5, 3})}),
      one("var of rows", [](const Tensors& in) { return torch::var(in[0], 1, false); },
          {sample({5, 3})}),
      one("std of columns, kept",
          [](const Tensors& in) { return torch::std(in[0], 0, true, true); }, {sample({3, 4})}),
      one("var of few",
          [](const Tensors& in) {
            return torch::var(in[0], at::OptionalIntArrayRef(0), at::Scalar(0));
          },
          {sample({2, 3})}),
      {.name = "var_mean",
       .function =
           [](const Tensors& in) {
             const auto [variance, mean] = torch::var_mean(in[0], at::OptionalIntArrayRef({0, 2}),
                                                           at::Scalar(0), /*keepdim=*/true);
             return Tensors{variance, mean};
           },
       .inputs = {sample({3, 2, 4})}},
      {.name = "std_mean",
       .function =
           [](const Tensors& in) {
             const auto [deviation, mean] = torch::std_mean(in[0], /*unbiased=*/true);
             return Tensors{deviation, mean};
           },
       .inputs = {sample({3, 4})}},
  });
}

TEST(StatisticsRules, CombineNorms) {
  const double infinity = std::numeric_limits<double>::infinity();
  check_operators({
      one("norm", [](const Tensors& in) { return torch::norm(in[0]); }, {sample({5, 3})}),
      one("norm of rows", [](const Tensors& in) { return torch::norm(in[0], 2, {1}, true); },
          {sample({5, 3})}),
      one("vector norm", [](const Tensors& in) { return torch::linalg_vector_norm(in[0], 3, {0}); },
          {sample({2, 3})}),
      one("norm of order one",
          [](const Tensors& in) { return torch::linalg_vector_norm(in[0], 1); }, {sample({3, 4})}),
      one("largest",
          [=](const Tensors& in) { return torch::linalg_vector_norm(in[0], infinity, {0}); },
          {sample({5, 2})}),
      one("smallest",
          [=](const Tensors& in) { return torch::linalg_vector_norm(in[0], -infinity, {1}); },
          {sample({2, 3})}),
      without_gradient("how many",
                       [](const Tensors& in) { return torch::linalg_vector_norm(in[0], 0); },
                       {sample({5, 3}).relu()}),
      one("dist", [](const Tensors& in) { return torch::dist(in[0], in[1], 3); },
          {sample({4, 3}), sample({3}) * 2 + 1}),
      {.name = "norms of a list",
       .function = [](const Tensors& in) { return torch::_foreach_norm(in); },
       .inputs = {sample({5, 3}), sample({2})}},
  });
}

TEST(StatisticsRules, CountAndCompare) {
  check_operators({
      without_gradient("count_nonzero",
                       [](const Tensors& in) { return torch::count_nonzero(in[0]); },
                       {sample({4, 3}).relu()}),
      without_gradient(
          "count_nonzero of rows",
          [](const Tensors& in) { return torch::count_nonzero(in[0], torch::IntArrayRef(1)); },
          {sample({5, 2}).relu()}),
      without_gradient("equal",
                       [](const Tensors& in) { return number(torch::equal(in[0], in[1])); },
                       {sample({4, 3}), sample({4, 3})}),
      without_gradient("not equal",
                       [](const Tensors& in) { return number(torch::equal(in[0], in[1])); },
                       {sample({2, 3}), sample({2, 3}) + 1}),
      without_gradient("allclose",
                       [](const Tensors& in) { return number(torch::allclose(in[0], in[1])); },
                       {sample({4, 3}), sample({3})}),
      without_gradient("item",
                       [](const Tensors& in) { return torch::tensor(in[0].sum().item<double>()); },
                       {sample({4, 3})}),
      without_gradient("histc", [](const Tensors& in) { return torch::histc(in[0], 4); },
                       {sample({4, 3})}),
      without_gradient("bincount", [](const Tensors& in) { return torch::bincount(in[0]); },
                       {sample({7}, torch::kLong).abs()}),
  });
}

TEST(StatisticsRules, MeasureDistances) {
  check_operators({
      one("cdist", [](const Tensors& in) { return torch::cdist(in[0], in[1], 3); },
          {sample({5, 3}), sample({2, 3}) + 0.3}),
      one("cdist of a batch", [](const Tensors& in) { return torch::cdist(in[0], in[1], 1); },
          {sample({2, 3, 2}), sample({2, 2, 2}) + 0.3}),
      one("pdist", [](const Tensors& in) { return torch::pdist(in[0]); }, {sample({4, 3})}),
      one("renorm", [](const Tensors& in) { return torch::renorm(in[0], 2, 0, 1.5); },
          {sample({5, 3})}),
      one("cosine_similarity",
          [](const Tensors& in) { return torch::cosine_similarity(in[0], in[1], 1); },
          {sample({4, 3}), sample({4, 3}) + 1}),
  });
}

// Symmetric, positive and well away from singular.
torch::Tensor matrices(std::int64_t batch) {
  return sample({batch, 3, 3}) / 8 + 4 * torch::eye(3, torch::kDouble);
}

TEST(LinearAlgebraRules, CutTheBatch) {
  // LibTorch's backward of qr writes into diagonals of a gradient, which must not be cut.
  auto qr =
      one("qr", [](const Tensors& in) { return std::get<1>(torch::linalg_qr(in[0], "reduced")); },
          {matrices(2)});
  qr.cuts_gradients = false;
  check_operators({
      qr,
      one("inverse", [](const Tensors& in) { return torch::inverse(in[0]); }, {matrices(5)}),
      one("cholesky", [](const Tensors& in) { return torch::linalg_cholesky(in[0] + in[0].mT()); },
          {matrices(3)}),
      one("det", [](const Tensors& in) { return torch::linalg_det(in[0]); }, {matrices(2)}),
      one("slogdet", [](const Tensors& in) { return std::get<1>(torch::linalg_slogdet(in[0])); },
          {matrices(3)}),
      one("solve", [](const Tensors& in) { return torch::linalg_solve(in[0], in[1]); },
          {matrices(3), sample({3, 3, 2})}),
      one("eigenvalues",
          [](const Tensors& in) { return torch::linalg_eigvalsh(in[0] + in[0].mT()); },
          {matrices(3)}),
      one("singular values", [](const Tensors& in) { return torch::linalg_svdvals(in[0]); },
          {matrices(2)}),
      one("triangular",
          [](const Tensors& in) {
            return torch::linalg_solve_triangular(in[0].tril(), in[1], /*upper=*/false);
          },
          {matrices(2), sample({2, 3, 2})}),
      // Its backward writes into plain tensors.
      without_gradient("matrix_exp", [](const Tensors& in) { return torch::matrix_exp(in[0] / 8); },
                       {matrices(2)}),
      one("one matrix", [](const Tensors& in) { return torch::inverse(in[0][0]); }, {matrices(1)}),
  });
}

TEST(FourierRules, CutWhatIsNotTransformed) {
  const auto energy = [](const torch::Tensor& spectrum) { return torch::view_as_real(spectrum); };
  check_operators({
      one("rfft", [=](const Tensors& in) { return energy(torch::fft_rfft(in[0])); },
          {sample({3, 5})}),
      one("irfft",
          [=](const Tensors& in) { return torch::fft_irfft(torch::fft_rfft(in[0]) * 2, 4); },
          {sample({3, 4})}),
      one("fft of two dims",
          [=](const Tensors& in) { return energy(torch::fft_fft2(torch::complex(in[0], in[0]))); },
          {sample({3, 2, 4})}),
  });
}

}  // namespace
}  // namespace trireme
