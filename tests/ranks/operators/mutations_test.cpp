// SPDX-License-Identifier: Apache-2.0
// Rules that are wrong on purpose: the checker must find each of them, and nothing in the right
// rule of the same operator.
#include <tests/ranks/operators/made_up_operators.h>
#include <tests/ranks/operators/operator_checks.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace trireme::test::made_up {
namespace {

const Placement kRows = Shard{0};
const Placement kColumns = Shard{1};
const Placement kWhole = Replicate{};
const Placement kSum = Partial{};
const Placement kAverage = Partial{PartialOp::kAverage};
const Placement kMaximum = Partial{PartialOp::kMaximum};

template <typename Signature, typename... Arguments>
auto call(const std::string& name, Arguments&&... arguments) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(("made_up::" + name).c_str(), "")
      .template typed<Signature>()
      .call(std::forward<Arguments>(arguments)...);
}

OperatorCase of_one(const std::string& name, const Tensors& inputs) {
  return without_gradient(
      name, [name](const Tensors& in) { return call<at::Tensor(const at::Tensor&)>(name, in[0]); },
      inputs);
}

// Uneven on two and three ranks, and too few rows or columns for seven.
const std::map<std::string, OperatorCase>& cases() {
  using Powers = at::Tensor(const at::Tensor&, double);
  const auto powers = [](const std::string& name) {
    return without_gradient(name,
                            [name](const Tensors& in) {
                              // The first call's decision must not serve the second.
                              const auto sum = call<Powers>(name, in[0], 1.0);
                              return sum + call<Powers>(name, in[0], 2.0);
                            },
                            {sample({5, 3})});
  };
  static const std::map<std::string, OperatorCase> all = {
      {"row_sums", of_one("row_sums", {sample({5, 3})})},
      {"row_means", of_one("row_means", {sample({4, 3})})},
      {"row_maxima", of_one("row_maxima", {-sample({3, 2}).abs() - 1})},
      {"row_extremes",
       {.name = "row_extremes",
        .function =
            [](const Tensors& in) {
              const auto [largest, smallest] =
                  call<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&)>("row_extremes",
                                                                              in[0]);
              return Tensors{largest, smallest};
            },
        .inputs = {sample({4, 3})},
        .has_gradient = false}},
      {"swapped", of_one("swapped", {sample({4, 4})})},
      {"upside_down", of_one("upside_down", {sample({4, 4})})},
      {"scaled", without_gradient("scaled",
                                  [](const Tensors& in) {
                                    return call<at::Tensor(const at::Tensor&, const at::Tensor&)>(
                                        "scaled", in[0], in[1]);
                                  },
                                  {sample({4, 3}), sample({4, 3}).flip(0)})},
      {"reshaped", without_gradient("reshaped",
                                    [](const Tensors& in) {
                                      return call<at::Tensor(const at::Tensor&, at::IntArrayRef)>(
                                          "reshaped", in[0],
                                          std::vector<std::int64_t>{in[0].size(0), 2, 3});
                                    },
                                    {sample({5, 6})})},
      {"length", of_one("length", {sample({5, 3})})},
      {"numbered", of_one("numbered", {sample({5, 3})})},
      {"sum_of_powers", powers("sum_of_powers")},
      {"forgetful_sum_of_powers", powers("forgetful_sum_of_powers")},
      {"square_", without_gradient("square_",
                                   [](const Tensors& in) {
                                     auto x = in[0].clone();
                                     call<at::Tensor&(at::Tensor&)>("square_", x);
                                     return x;
                                   },
                                   {sample({5, 3})})},
      {"cubes",
       one("cubes",
           [](const Tensors& in) { return call<at::Tensor(const at::Tensor&)>("cubes", in[0]); },
           {sample({5, 3})})},
  };
  return all;
}

// What an operator of these is checked with.
const OperatorCase& case_of(const std::string& name) {
  return cases().at(name == "cubes_backward" ? "cubes" : name);
}

std::string failures_with(const std::string& name, const Rule& its_rule) {
  tensor::add_rule("made_up::" + name, its_rule);
  const std::string failures = failures_of({case_of(name)}, exhaustive_reach());
  tensor::add_rule("made_up::" + name, right_rule(name));
  return failures;
}

class Mutations : public ::testing::Test {
 protected:
  // Before the first distributed tensor.
  static void SetUpTestSuite() { give_right_rules(); }

  static void expect_found(const std::string& name, const std::string& what, const Rule& wrong) {
    EXPECT_NE(failures_with(name, wrong), "") << name << ": " << what << " was not found";
  }
  // Wrong strategies before those of the right rule.
  static void expect_found(const std::string& name, const std::string& what,
                           const Strategies& wrong) {
    expect_found(name, what, preferring(right_rule(name), wrong));
  }
};

TEST_F(Mutations, RightRulesPass) {
  for (const auto& [name, its_case] : cases()) {
    if (name == "forgetful_sum_of_powers") continue;
    EXPECT_EQ(failures_of({its_case}, exhaustive_reach()), "");
  }
}

TEST_F(Mutations, PlacementsOfResults) {
  expect_found("row_sums", "a part of a sum as the whole", {strategy({kColumns}, {kWhole})});
  expect_found("row_sums", "a sum as a maximum", {strategy({kColumns}, {kMaximum})});
  expect_found("row_sums", "a sum as an average", {strategy({kColumns}, {kAverage})});
  expect_found("row_sums", "what is cut as whole", {strategy({kRows}, {kWhole})});
  expect_found("row_sums", "a summand as the whole", {strategy({kSum}, {kWhole})});
  expect_found("row_sums", "a whole as a summand", {strategy({kWhole}, {kSum})});
  expect_found("row_sums", "what is whole as cut", {strategy({kWhole}, {kRows})});
  expect_found("row_maxima", "a maximum as a sum", {strategy({kColumns}, {kSum})});
  expect_found("row_extremes", "a minimum as a maximum",
               {strategy({kColumns}, {kMaximum, kMaximum})});
  expect_found("row_extremes", "results in the other order",
               {strategy({kColumns}, {Partial{PartialOp::kMinimum}, kMaximum})});
  expect_found("swapped", "the wrong dim", {strategy({kRows}, {kRows})});
  expect_found("upside_down", "rows that change places", {strategy({kRows}, {kRows})});
}

TEST_F(Mutations, WhatIsLinear) {
  expect_found("scaled", "linear in the other input", {strategy({kWhole, kSum}, {kSum})});
  expect_found("scaled", "linear in both at once", {strategy({kSum, kSum}, {kSum})});
  expect_found("row_maxima", "not linear", {strategy({kSum}, {kSum})});
  expect_found("row_sums", "sums of maxima", {strategy({kMaximum}, {kMaximum})});
  expect_found("swapped", "another partial result",
               {strategy({kMaximum}, {Partial{PartialOp::kMinimum}})});
  expect_found("square_", "not linear, in place", {strategy({kSum}, {kSum})});
  expect_found("square_", "partial on the way back only",
               {strategy({Partial{PartialOp::kProduct}}, {kSum})});
}

TEST_F(Mutations, LocalArguments) {
  Rule without = right_rule("reshaped");
  without.local_arguments = nullptr;
  expect_found("reshaped", "global sizes", without);
  Rule even = right_rule("reshaped");
  even.local_arguments = [](const Call& its_call, c10::ArrayRef<Layout> outputs,
                            c10::IntArrayRef /*coordinate*/,
                            std::vector<std::pair<int, c10::IValue>>& replaced) {
    std::vector<std::int64_t> sizes = its_call.output(0).sizes().vec();
    for (const int axis : outputs[0].axes_of(0)) sizes[0] /= outputs[0].mesh().size(axis);
    replaced.emplace_back(1, tensor::as_list(sizes));
  };
  expect_found("reshaped", "right for even parts only", even);
  Rule of_first = right_rule("reshaped");
  of_first.local_arguments = [](const Call& its_call, c10::ArrayRef<Layout> outputs,
                                c10::IntArrayRef coordinate,
                                std::vector<std::pair<int, c10::IValue>>& replaced) {
    const std::vector<std::int64_t> zeros(coordinate.size());
    sizes_of_part(its_call, outputs, zeros, replaced);
  };
  expect_found("reshaped", "sizes of the first rank", of_first);
}

TEST_F(Mutations, Shapes) {
  const auto with_shapes = [](const std::string& name, std::function<Shapes(const Call&)> shapes) {
    Rule made = right_rule(name);
    made.shapes = std::move(shapes);
    return made;
  };
  expect_found("row_sums", "columns for rows", with_shapes("row_sums", [](const Call& its_call) {
                 return Shapes{its_call.input(0).new_empty({its_call.input(0).size(1)})};
               }));
  expect_found("reshaped", "the shape before", with_shapes("reshaped", like_input));
  expect_found("row_sums", "another type", with_shapes("row_sums", [](const Call& its_call) {
                 return Shapes{one_a_row(its_call)[0].to(at::kFloat)};
               }));
  expect_found("row_sums", "a dim too many", with_shapes("row_sums", [](const Call& its_call) {
                 return Shapes{one_a_row(its_call)[0].unsqueeze(1)};
               }));
}

TEST_F(Mutations, Kernels) {
  expect_found("length", "no kernel", {strategy({kRows}, {kWhole}), strategy({kColumns}, {kSum})});
  expect_found("length", "along one axis of two",
               {strategy({kRows}, {kWhole}, [](LocalCall& its_call) {
                 const Layout& layout = its_call.input_layout(0);
                 const int axis = layout.axes_of(0).front();
                 const at::Tensor own = its_call.tensor(0).square().sum();
                 its_call.give({tensor::reduced_across(own, layout.mesh(), axis).sqrt()});
               })});
  expect_found("length", "ranks without elements do not take part",
               {strategy({kRows}, {kWhole}, [](LocalCall& its_call) {
                 if (its_call.tensor(0).numel() == 0) {
                   its_call.give({at::zeros({}, its_call.tensor(0).options())});
                 } else {
                   length_across(its_call);
                 }
               })});
  expect_found("row_maxima", "the largest of nothing is zero",
               {strategy({kColumns}, {kMaximum}, [](LocalCall& its_call) {
                 const at::Tensor part = its_call.tensor(0);
                 its_call.give(
                     {part.size(1) > 0 ? part.amax(1) : at::zeros({part.size(0)}, part.options())});
               })});
  expect_found("row_maxima", "nothing for parts without elements",
               {strategy({kColumns}, {kMaximum})});
  expect_found("row_means", "right for even parts only", {strategy({kColumns}, {kAverage})});
  expect_found("row_sums", "another type", {strategy({kRows}, {kRows}, [](LocalCall& its_call) {
                 its_call.give({its_call.tensor(0).sum(1).to(at::kFloat)});
               })});
}

TEST_F(Mutations, Offsets) {
  expect_found("numbered", "no offset", {strategy({kRows}, {kRows})});
  expect_found("numbered", "off by one", {strategy({kRows}, {kRows}, [](LocalCall& its_call) {
                 const std::int64_t first = first_row(its_call);
                 give_numbered(its_call, first > 0 ? first - 1 : 0);
               })});
  expect_found("numbered", "as if parts were even",
               {strategy({kRows}, {kRows}, [](LocalCall& its_call) {
                 const Layout& layout = its_call.input_layout(0);
                 const int axis = layout.axes_of(0).front();
                 const std::int64_t length = its_call.input_sizes(0)[0] / layout.mesh().size(axis);
                 give_numbered(its_call, layout.mesh().coordinate(axis) * length);
               })});
  expect_found("numbered", "along the first of two axes",
               {strategy({kRows}, {kRows}, [](LocalCall& its_call) {
                 const Layout& layout = its_call.input_layout(0);
                 const int axis = layout.axes_of(0).front();
                 const Extent own = part_of(its_call.input_sizes(0)[0], layout.mesh().size(axis),
                                            layout.mesh().coordinate(axis));
                 give_numbered(its_call, own.offset);
               })});
}

TEST_F(Mutations, Axes) {
  Rule second = right_rule("row_sums");
  second.strategies = [own = second.strategies](const AxisCall& axis, Strategies& all) {
    if (axis.axis == 1) all.push_back(strategy({kColumns}, {kWhole}));
    own(axis, all);
  };
  expect_found("row_sums", "wrong on the second axis", second);
  Rule both = right_rule("row_sums");
  both.strategies = [own = both.strategies](const AxisCall& axis, Strategies& all) {
    const bool is_cut_twice = axis.layouts[0].axes_of(1).size() > 1;
    if (is_cut_twice && axis.axis == 0) all.push_back(strategy({kColumns}, {kWhole}));
    own(axis, all);
  };
  expect_found("row_sums", "wrong where two axes cut one dim", both);
}

TEST_F(Mutations, Gradients) {
  expect_found("cubes_backward", "linear in the input", {strategy({kWhole, kSum}, {kSum})});
  expect_found("cubes_backward", "linear in both at once", {strategy({kSum, kSum}, {kSum})});
  expect_found("cubes_backward", "a summand as the whole", {strategy({kSum, kWhole}, {kWhole})});
  expect_found("cubes_backward", "another cut than the gradient's",
               {strategy({kRows, kWhole}, {kWhole})});
  expect_found("cubes_backward", "maxima", {strategy({kMaximum, kWhole}, {kSum})});
}

// Strategies that depend on a number that is not part of what tells calls apart.
TEST_F(Mutations, NumbersThatMatter) {
  EXPECT_NE(failures_of({case_of("forgetful_sum_of_powers")}, thorough_reach()), "");
}

}  // namespace
}  // namespace trireme::test::made_up
