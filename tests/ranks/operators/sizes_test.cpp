// SPDX-License-Identifier: Apache-2.0
// Operators of every family over sizes from one to beyond the tails of vectors, in several types:
// what is copied has equal bits, what works element by element is within two units in the last
// place, and sums within what their length allows.
#include <tests/ranks/operators/operator_checks.h>

#include <limits>

namespace trireme {
namespace {

using test::one;
using test::OperatorCase;
using test::sample;
using test::Tensors;

std::vector<std::int64_t> sizes() {
  if (!test::is_thorough()) return {1, 17};
  if (!test::is_exhaustive()) return {1, 4, 17};
  return {1, 2, 3, 4, 5, 6, 7, 15, 16, 17, 31, 33, 63, 65};
}

std::vector<torch::ScalarType> dtypes() {
  if (!test::is_exhaustive()) return {torch::kDouble, torch::kFloat};
  return {torch::kDouble, torch::kFloat, torch::kBFloat16};
}

double unit(torch::ScalarType dtype) {
  if (dtype == torch::kDouble) return std::numeric_limits<double>::epsilon();
  return dtype == torch::kFloat ? std::numeric_limits<float>::epsilon() : 0x1p-7;
}

using Function = std::function<torch::Tensor(const Tensors&)>;

// Makes cases of one size and type.
class Cases {
 public:
  Cases(std::int64_t size, torch::ScalarType dtype) : size_(size), dtype_(dtype) {}

  // @param units in the last place that a result may differ by; 0: not at all.
  void add(const std::string& name, const Function& function,
           const std::vector<std::vector<std::int64_t>>& shapes, double units) {
    OperatorCase made =
        one(join_message(name, " of ", size_, ", ", torch::toString(dtype_), ","), function, {});
    for (const auto& shape : shapes) made.inputs.push_back(sample(shape, dtype_));
    made.bound = units * unit(dtype_);
    // Parts of a sum that are not exact would make another sum.
    made.takes_partial = dtype_ != torch::kBFloat16;
    all.push_back(std::move(made));
  }

  std::vector<OperatorCase> all;

 private:
  std::int64_t size_;
  torch::ScalarType dtype_;
};

void check(const std::function<void(Cases&, std::int64_t)>& add_cases) {
  const test::Reach reach = test::is_exhaustive() ? test::thorough_reach() : test::fast_reach();
  for (const std::int64_t size : sizes()) {
    for (const torch::ScalarType dtype : dtypes()) {
      Cases cases(size, dtype);
      add_cases(cases, size);
      EXPECT_EQ(test::failures_of(cases.all, reach), "");
    }
  }
}

TEST(Sizes, CopiesHaveEqualBits) {
  check([](Cases& cases, std::int64_t n) {
    cases.add("transpose", [](const Tensors& in) { return in[0].t().contiguous(); }, {{n, 3}}, 0);
    cases.add("fold", [n](const Tensors& in) { return in[0].reshape({2 * n, 3}); }, {{n, 2, 3}}, 0);
    cases.add(
        "split", [n](const Tensors& in) { return in[0].reshape({2, n, 2}); }, {{2 * n, 2}}, 0);
    cases.add(
        "cat", [](const Tensors& in) { return torch::cat({in[0], in[1]}, 0); }, {{n, 2}, {3, 2}},
        0);
    cases.add("slice", [n](const Tensors& in) { return in[0].slice(0, n / 2, n); }, {{n, 2}}, 0);
    cases.add("flip", [](const Tensors& in) { return in[0].flip(0); }, {{n, 2}}, 0);
    cases.add(
        "index_select",
        [n](const Tensors& in) {
          return torch::index_select(in[0], 0, torch::tensor({n - 1, std::int64_t{0}}));
        },
        {{n, 3}}, 0);
  });
}

TEST(Sizes, ElementsAreWithinTwoUnits) {
  check([](Cases& cases, std::int64_t n) {
    cases.add("exp", [](const Tensors& in) { return in[0].exp(); }, {{n, 3}}, 2);
    cases.add("tanh", [](const Tensors& in) { return in[0].tanh(); }, {{3, n}}, 2);
    cases.add("gelu", [](const Tensors& in) { return torch::gelu(in[0]); }, {{n}}, 4);
    cases.add("product", [](const Tensors& in) { return in[0] * in[1]; }, {{n, 3}, {n, 3}}, 2);
    cases.add("sum", [](const Tensors& in) { return in[0] + in[1]; }, {{3, n}, {3, n}}, 2);
  });
}

TEST(Sizes, SumsAreWithinWhatTheirLengthAllows) {
  check([](Cases& cases, std::int64_t n) {
    const auto units = 16 + 4 * static_cast<double>(n);
    cases.add("sum", [](const Tensors& in) { return in[0].sum(0); }, {{n, 3}}, units);
    cases.add("mean", [](const Tensors& in) { return in[0].mean(); }, {{3, n}}, units);
    cases.add("largest", [](const Tensors& in) { return in[0].amax(1); }, {{2, n}}, units);
    cases.add("mm", [](const Tensors& in) { return in[0].mm(in[1]); }, {{3, n}, {n, 4}}, units);
    cases.add(
        "rows of mm", [](const Tensors& in) { return in[0].mm(in[1]); }, {{n, 3}, {3, n}}, units);
    cases.add(
        "linear", [](const Tensors& in) { return torch::linear(in[0], in[1], in[2]); },
        {{2, n, 3}, {n, 3}, {n}}, units);
    cases.add("softmax", [](const Tensors& in) { return in[0].softmax(1); }, {{3, n}}, units);
    cases.add(
        "layer_norm",
        [](const Tensors& in) {
          return torch::layer_norm(in[0], {in[0].size(1)}, in[1], in[1], 0.1);
        },
        {{3, n}, {n}}, 8 * units);
  });
}

}  // namespace
}  // namespace trireme
