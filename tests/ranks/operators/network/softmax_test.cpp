// SPDX-License-Identifier: Apache-2.0
// softmax, log_softmax and logsumexp with every placement, the dim they run over included.
#include <tests/ranks/operators/operator_checks.h>

#include <cmath>
#include <cstdint>

namespace trireme {
namespace {

using test::check_operators;
using test::one;
using test::sample;
using test::Tensors;

TEST(SoftmaxRules, GiveTheRowsOfOneProcess) {
  check_operators({
      one("softmax of the last dim", [](const Tensors& in) { return in[0].softmax(-1); },
          {sample({5, 3})}),
      one("softmax of the first dim", [](const Tensors& in) { return in[0].softmax(0); },
          {sample({4, 2, 3})}),
      one("softmax of rows shorter than the ranks",
          [](const Tensors& in) { return in[0].softmax(1); }, {sample({3, 2})}),
      one("softmax of a number", [](const Tensors& in) { return in[0].softmax(0); }, {sample({})}),
      one("log_softmax of the last dim", [](const Tensors& in) { return in[0].log_softmax(-1); },
          {sample({5, 7})}),
      one("log_softmax of the middle dim", [](const Tensors& in) { return in[0].log_softmax(1); },
          {sample({2, 5, 3})}),
      one("log_softmax of one class", [](const Tensors& in) { return in[0].log_softmax(1); },
          {sample({4, 1})}),
  });
}

TEST(SoftmaxRules, ReduceByLogsumexp) {
  check_operators({
      one("a dim", [](const Tensors& in) { return in[0].logsumexp(1); }, {sample({5, 3})}),
      one("a dim that is kept", [](const Tensors& in) { return in[0].logsumexp(0, true); },
          {sample({2, 3, 4})}),
      one("two dims", [](const Tensors& in) { return in[0].logsumexp({0, 2}); },
          {sample({2, 5, 3})}),
  });
  auto of_integers = one("integers", [](const Tensors& in) { return in[0].logsumexp(0); },
                         {sample({5, 2}, torch::kLong)});
  of_integers.bound = 1e-5;
  check_operators({of_integers});
}

TEST(SoftmaxRules, KeepRowsThatAreInfinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto mask = torch::zeros({4, 5}, torch::kBool);
  mask[1].fill_(true);
  mask[2][0] = true;
  const auto masked = [=](const Tensors& in) { return in[0].masked_fill(mask, -infinity); };
  check_operators({
      one("rows of -inf", [=](const Tensors& in) { return at::_safe_softmax(masked(in), -1); },
          {sample({4, 5})}),
      one("logsumexp of -inf", [=](const Tensors& in) { return masked(in).detach().logsumexp(1); },
          {sample({4, 5})}),
      one("softmax gives NaN", [=](const Tensors& in) { return masked(in).detach().softmax(1); },
          {sample({4, 5})}),
  });
}

TEST(SoftmaxRules, TakeHalfPrecision) {
  auto bf16 = one("bf16", [](const Tensors& in) { return in[0].softmax(1); },
                  {sample({3, 5}, torch::kBFloat16)});
  auto log_bf16 = one("bf16, log", [](const Tensors& in) { return in[0].log_softmax(0); },
                      {sample({3, 5}, torch::kBFloat16)});
  bf16.bound = log_bf16.bound = 2e-2;
  bf16.takes_partial = log_bf16.takes_partial = false;
  check_operators({bf16, log_bf16});
}

TEST(SoftmaxRules, LeaveScoresCutAlongTheirClasses) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const Layout by_class(mesh, {Shard{1}});
    const auto scores = distribute(sample({4, 6}), by_class).requires_grad_(true);
    const auto logarithms = scores.log_softmax(1);
    EXPECT_EQ(layout_of(logarithms), by_class);
    EXPECT_EQ(layout_of(scores.softmax(1)), by_class);
    logarithms.sum().backward();
    EXPECT_EQ(layout_of(scores.grad()), by_class);
  });
}

}  // namespace
}  // namespace trireme
