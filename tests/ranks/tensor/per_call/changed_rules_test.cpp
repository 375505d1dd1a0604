// SPDX-License-Identifier: Apache-2.0
// Rules that come late or replace others, rules whose strategies depend on a number, and rules that
// do not fit their operator.
#include <trireme/comm/collectives.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/operator_strategy.h>
#include <trireme/tensor/rules/rule_table.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace trireme {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;

// The norm of all elements: a sum where p is one, the largest where it is infinite.
torch::Tensor norm_of(const torch::Tensor& x, const at::Scalar& p) {
  return std::isinf(p.toDouble()) ? x.abs().amax() : x.abs().sum();
}

TORCH_LIBRARY(trireme_test_rules, library) {
  library.def("norm_of(Tensor x, Scalar p) -> Tensor");
  library.def("late(Tensor x) -> Tensor");
}

TORCH_LIBRARY_IMPL(trireme_test_rules, CPU, library) {
  library.impl("norm_of", &norm_of);
  library.impl("late", [](const torch::Tensor& x) { return x.neg(); });
}

torch::Tensor call_norm_of(const torch::Tensor& x, double p) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("trireme_test_rules::norm_of", "")
                             .typed<decltype(norm_of)>();
  return op.call(x, p);
}

torch::Tensor call_late(const torch::Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("trireme_test_rules::late", "")
                             .typed<torch::Tensor(const torch::Tensor&)>();
  return op.call(x);
}

// By rank 0, while no rank runs an operator.
void add_rule_together(const comm::Group& group, const char* name, const tensor::Rule& rule) {
  comm::barrier(group);
  if (group.rank() == 0) tensor::add_rule(name, rule);
  comm::barrier(group);
}

tensor::Rule rule_of_norm(bool scalars_matter) {
  return {
      .strategies =
          [](const tensor::AxisCall& axis, std::vector<tensor::Strategy>& strategies) {
            const bool is_largest = std::isinf(axis.call.argument(1).toScalar().toDouble());
            const PartialOp op = is_largest ? PartialOp::kMaximum : PartialOp::kSum;
            strategies.push_back({.inputs = {Shard{0}}, .outputs = {Partial{op}}});
          },
      .shapes = [](const tensor::Call& call) { return std::vector{call.input(0).new_empty({})}; },
      .scalars_matter = scalars_matter};
}

tensor::Rule rule_of_late(bool by_rows) {
  return {.strategies =
              [by_rows](const tensor::AxisCall&, std::vector<tensor::Strategy>& strategies) {
                const Placement cut = Shard{by_rows ? 0 : 1};
                strategies.push_back({.inputs = {cut}, .outputs = {cut}});
              },
          .shapes = [](const tensor::Call& call) { return std::vector{call.input(0)}; }};
}

TEST(ChangedRules, DecideAnewWhereNumbersMatter) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto plain = torch::tensor({1.0, -2.0, 3.0, -5.0});
    const auto x = distribute(plain, Layout(mesh, {Shard{0}}));
    const double infinity = std::numeric_limits<double>::infinity();
    // Without saying so, the second call would be taken for the first.
    add_rule_together(group, "trireme_test_rules::norm_of", rule_of_norm(false));
    EXPECT_EQ(layout_of(call_norm_of(x, 1)), Layout(mesh, {Partial{}}));
    EXPECT_EQ(layout_of(call_norm_of(x, infinity)), Layout(mesh, {Partial{}}));
    // The rule that says so replaces decisions and what was known of the operator, on all threads.
    add_rule_together(group, "trireme_test_rules::norm_of", rule_of_norm(true));
    EXPECT_EQ(layout_of(call_norm_of(x, infinity)), Layout(mesh, {Partial{PartialOp::kMaximum}}));
    EXPECT_EQ(layout_of(call_norm_of(x, 1)), Layout(mesh, {Partial{}}));
    EXPECT_EQ(full(call_norm_of(x, infinity)).item<double>(), 5);
    EXPECT_EQ(full(call_norm_of(x, 1)).item<double>(), 11);
  });
}

TEST(ChangedRules, ReplaceWhatWasDecidedAndChosen) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto rows = Layout(mesh, {Shard{0}});
    const auto columns = Layout(mesh, {Shard{1}});
    const auto x = distribute(torch::ones({4, 4}), rows);
    const auto by_strategy = [&](const OperatorStrategy& strategy) {
      return with_strategy(strategy, [&] { return call_late(x); });
    };
    if (group.rank() == 0) {
      EXPECT_THAT(test::usage_error([&] { call_late(x); }), HasSubstr("has no rule"));
    }
    add_rule_together(group, "trireme_test_rules::late", rule_of_late(true));
    EXPECT_EQ(layout_of(call_late(x)), rows);
    EXPECT_EQ(layout_of(by_strategy({{2, 1}})), rows);
    EXPECT_THAT(test::usage_error([&] { by_strategy({{1, 2}}); }), HasSubstr("cannot be cut so"));
    const std::uint64_t before = tensor::rules_version();
    add_rule_together(group, "trireme_test_rules::late", rule_of_late(false));
    EXPECT_GT(tensor::rules_version(), before);
    EXPECT_EQ(layout_of(call_late(x)), columns);
    EXPECT_EQ(layout_of(by_strategy({{1, 2}})), columns);
    EXPECT_THAT(test::usage_error([&] { by_strategy({{2, 1}}); }), HasSubstr("cannot be cut so"));
  });
}

TEST(WrongRules, AreToldByTheNameOfTheOperator) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto x = distribute(torch::ones({4, 6}), Layout(mesh, {Shard{0}}));
    using Shapes = std::function<std::vector<at::Tensor>(const tensor::Call&)>;
    const auto refusal = [&](const tensor::Strategy& strategy, const Shapes& shapes) {
      add_rule_together(
          group, "trireme_test_rules::late",
          {.strategies = [strategy](
                             const tensor::AxisCall&,
                             std::vector<tensor::Strategy>& all) { all.push_back(strategy); },
           .shapes = shapes});
      return test::usage_error([&] { call_late(x); });
    };
    const Shapes same = [](const tensor::Call& call) { return std::vector{call.input(0)}; };
    const Shapes none = [](const tensor::Call&) { return std::vector<at::Tensor>(); };
    const Shapes two = [](const tensor::Call& call) {
      return std::vector{call.input(0), call.input(0)};
    };
    const std::string rule = "the rule of operator trireme_test_rules::late ";
    const auto places = [](const std::vector<Placement>& inputs,
                           const std::vector<Placement>& outputs) {
      tensor::Strategy strategy;
      for (const Placement& placement : inputs) strategy.inputs.push_back(placement);
      for (const Placement& placement : outputs) strategy.outputs.push_back(placement);
      return strategy;
    };
    EXPECT_THAT(refusal(places({}, {Shard{0}}), same),
                HasSubstr(rule + "lists the strategy {} -> {Shard(0)}, which places 0 inputs; the "
                                 "call has 1 tensors"));
    EXPECT_THAT(refusal(places({Shard{0}}, {}), same),
                HasSubstr("which places 0 results; the call has 1"));
    EXPECT_THAT(refusal(places({Shard{0}}, {Shard{0}, Shard{1}}), same),
                HasSubstr("which places 2 results; the call has 1"));
    EXPECT_THAT(refusal(places({Shard{0}}, {Shard{2}}), same),
                HasSubstr("which cuts a dim that result 0 of shape [4, 6] does not have"));
    EXPECT_THAT(refusal(places({Shard{0}}, {Shard{0}}), none),
                HasSubstr("but a result whose shape only values say is whole on every rank"));
    EXPECT_THAT(refusal(places({Shard{0}}, {Shard{0}}), two),
                HasSubstr(rule + "gives the shapes of 2 results; the operator has 1"));
  });
}

}  // namespace
}  // namespace trireme
