// SPDX-License-Identifier: Apache-2.0
// Calls that take the direct way: it begins with the second one of a kind, for the first is decided
// by the boxed kernel.
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/operators/operator_checks.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::check_operators;
using test::OperatorCase;
using test::sample;
using test::Tensors;
using test::usage_error;
using ::testing::HasSubstr;

// Both results of a function that is called twice.
OperatorCase twice(std::string name, const std::function<torch::Tensor(const Tensors&)>& function,
                   Tensors inputs) {
  return {.name = std::move(name),
          .function =
              [function](const Tensors& in) {
                auto first = function(in);
                return Tensors{std::move(first), function(in)};
              },
          .inputs = std::move(inputs)};
}

// All results of a function of lists that is called twice.
OperatorCase lists_twice(std::string name, const std::function<Tensors(const Tensors&)>& function,
                         Tensors inputs) {
  return {.name = std::move(name),
          .function =
              [function](const Tensors& in) {
                Tensors results = function(in);
                for (auto& result : function(in)) results.push_back(std::move(result));
                return results;
              },
          .inputs = std::move(inputs),
          .has_gradient = false};
}

TEST(DirectCalls, Pointwise) {
  check_operators({
      twice("add", [](const Tensors& in) { return torch::add(in[0], in[1], 2); },
            {sample({5, 3}), sample({5, 3})}),
      twice("sub of a row", [](const Tensors& in) { return in[0] - in[1]; },
            {sample({5, 3}), sample({3})}),
      twice("mul and div", [](const Tensors& in) { return in[0] * in[1] / (in[1] * in[1] + 1); },
            {sample({5, 3}), sample({5, 3})}),
      twice("numbers", [](const Tensors& in) { return (in[0] * 3 - 1) / 2; }, {sample({5, 3})}),
      twice("sqrt and relu", [](const Tensors& in) { return torch::relu(in[0] * in[0]).sqrt(); },
            {sample({5, 3})}),
      twice("addcmul", [](const Tensors& in) { return in[0].addcmul(in[1], in[0], 2); },
            {sample({5, 3}), sample({5, 3})}),
      twice("addcdiv", [](const Tensors& in) { return in[0].addcdiv(in[1], in[0] * in[0] + 1, 2); },
            {sample({5, 3}), sample({5, 3})}),
      twice("in place",
            [](const Tensors& in) {
              const auto result = in[0].clone();
              result.add_(in[1], 2).mul_(in[1]).sub_(in[0]).div_(in[1] * in[1] + 1);
              return result.addcmul_(in[0], in[1]).addcdiv_(in[0], in[1] * in[1] + 1);
            },
            {sample({5, 3}), sample({5, 3})}),
      twice("detach", [](const Tensors& in) { return in[0].detach() * in[0]; }, {sample({5, 3})}),
  });
}

TEST(DirectCalls, Products) {
  check_operators({
      twice("mm", [](const Tensors& in) { return in[0].mm(in[1]); },
            {sample({5, 3}), sample({3, 4})}),
      twice("linear", [](const Tensors& in) { return torch::linear(in[0], in[1], in[2]); },
            {sample({5, 3}), sample({4, 3}), sample({4})}),
      twice("linear without bias", [](const Tensors& in) { return torch::linear(in[0], in[1]); },
            {sample({2, 3, 3}), sample({4, 3})}),
  });
}

TEST(DirectCalls, Lists) {
  check_operators({
      lists_twice("new lists",
                  [](const Tensors& in) {
                    auto sums = torch::_foreach_add({in[0], in[1]}, {in[1], in[0]}, 2);
                    sums = torch::_foreach_mul(torch::_foreach_sub(sums, 1), {in[0], in[1]});
                    auto numbers = torch::_foreach_sqrt(torch::_foreach_abs(in));
                    numbers = torch::_foreach_addcmul(numbers, {in[0], in[1]}, {in[1], in[0]}, 3);
                    for (auto& number : torch::_foreach_neg(numbers)) sums.push_back(number);
                    return sums;
                  },
                  {sample({5, 3}), sample({5, 3})}),
      lists_twice("lists of two shapes in place",
                  [](const Tensors& in) {
                    Tensors list = {in[0].clone(), in[1].clone()};
                    torch::_foreach_add_(list, {in[0], in[1]}, 2);
                    torch::_foreach_mul_(list, {in[0], in[1]});
                    torch::_foreach_mul_(list, 0.5);
                    torch::_foreach_lerp_(list, {in[0], in[1]}, 0.25);
                    torch::_foreach_addcdiv_(list, {in[0], in[1]},
                                             torch::_foreach_add(torch::_foreach_mul(in, in), 1),
                                             2);
                    return list;
                  },
                  {sample({5, 3}), sample({4})}),
  });
}

// One call after another on two ranks, with a tensor [4, 3] cut along its rows.
void on_cut(const std::function<void(const torch::Tensor& tensor, const Layout& layout)>& body) {
  testing::run_ranks(2, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const Layout layout(mesh, {Shard{0}});
    body(distribute(sample({4, 3}), layout), layout);
  });
}

TEST(DirectCalls, RefuseWhatTheFirstWould) {
  on_cut([](const torch::Tensor& cut, const Layout& layout) {
    const auto plain = sample({4, 3});
    const auto sum = cut + plain;
    EXPECT_THAT(usage_error([&] { cut + plain.clone().requires_grad_(); }),
                HasSubstr("that requires a gradient"));
    EXPECT_THAT(usage_error([&] { plain.clone().add_(cut); }),
                HasSubstr("would write distributed values into a plain tensor"));
    const auto other = distribute(sample({4, 3}), Layout(layout.mesh(), {Shard{1}}));
    for (int call = 0; call < 2; ++call) {  // the first view decides that row 0 is gathered
      const auto row = other.select(0, 0).view({1, 3});
      row + row;
    }
    for (int call = 0; call < 2; ++call) {
      const auto row = cut.select(0, 0);
      EXPECT_THAT(usage_error([&] { row.mul_(2); }), HasSubstr("it is a copy"));
      EXPECT_THAT(usage_error([&] { row.detach().mul_(2); }), HasSubstr("it is a copy"));
    }
  });
}

TEST(DirectCalls, LeaveTensorsAsTheyWereWhereTheyThrow) {
  on_cut([](const torch::Tensor& /*cut*/, const Layout& layout) {
    const auto whole = distribute(sample({1, 3}), Layout::replicated(layout.mesh()));
    const auto expanded = whole.expand({4, 3});
    for (int call = 0; call < 3; ++call) {
      EXPECT_THROW(expanded.mul_(expanded), c10::Error);  // several elements in one place
    }
    EXPECT_TRUE(torch::equal(full(expanded), sample({1, 3}).expand({4, 3})));
  });
}

TEST(DirectCalls, ViewsAndVersionsFollow) {
  // A base whose view was written to, and its version then.
  const auto written = [](const torch::Tensor& tensor) {
    const auto base = tensor.clone();
    EXPECT_EQ(base._version(), 0);
    const auto view = base.detach();
    view.mul_(tensor);
    torch::_foreach_add_(Tensors{view}, Tensors{tensor});
    base.add_(view);
    return std::pair(base, base._version());
  };
  const auto [expected, version] = written(sample({4, 3}));
  on_cut([&](const torch::Tensor& cut, const Layout& /*layout*/) {
    for (int call = 0; call < 3; ++call) {
      const auto [base, its_version] = written(cut);
      EXPECT_EQ(its_version, version);
      EXPECT_TRUE(torch::equal(full(base), expected));
    }
  });
}

// What a wrapper was does not pass to the next one that takes its memory.
TEST(Wrappers, BeginAnew) {
  on_cut([](const torch::Tensor& cut, const Layout& /*layout*/) {
    for (int round = 0; round < 3; ++round) {
      {
        const auto copy = cut.select(0, 0);  // marked: not to be written to
        const c10::InferenceMode inference;
        const auto without_version = cut + cut;
        EXPECT_TRUE(without_version.is_inference());
        without_version.add_(1);
      }
      const auto sum = cut + cut;
      EXPECT_FALSE(sum.is_inference());
      EXPECT_EQ(sum._version(), 0);
      sum.add_(1);
      EXPECT_EQ(sum._version(), 1);
    }
  });
}

TEST(Wrappers, MayEndOnAnotherThread) {
  constexpr int kMany = 1000;  // more than a thread keeps for the next ones
  on_cut([](const torch::Tensor& cut, const Layout& layout) {
    Tensors made;
    std::jthread([&] {
      for (int i = 0; i < kMany; ++i) made.push_back(cut.detach());
    }).join();
    made.clear();
    for (int i = 0; i < kMany; ++i) made.push_back(cut.detach());
    std::jthread([list = std::move(made)]() mutable { list.clear(); }).join();
    EXPECT_EQ(layout_of(cut.detach()), layout);
    EXPECT_TRUE(torch::equal(full(cut.detach()), sample({4, 3})));
  });
}

}  // namespace
}  // namespace trireme
