// SPDX-License-Identifier: Apache-2.0
// What strategies of operators refuse, and in which words.
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/operator_strategy.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/tensor/per_call/strategy_checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace trireme::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;

TORCH_LIBRARY(trireme_test_strategies, library) { library.def("without_rule(Tensor x) -> Tensor"); }

TORCH_LIBRARY_IMPL(trireme_test_strategies, CPU, library) {
  library.impl("without_rule", [](const torch::Tensor& x) { return x.neg(); });
}

torch::Tensor call_without_rule(const torch::Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("trireme_test_strategies::without_rule", "")
                             .typed<torch::Tensor(const torch::Tensor&)>();
  return op.call(x);
}

// What a product of [8, 6] and [6, 4] says to a strategy.
std::string refusal(const DeviceMesh& mesh, const OperatorStrategy& strategy) {
  const auto x = full_batch(waves({8, 6}), mesh);
  const auto w = full_batch(waves({6, 4}), mesh);
  return usage_error([&] { with_strategy(strategy, [&] { return torch::matmul(x, w); }); });
}

TEST(OperatorStrategyErrors, NameTheOperatorAndWhatItTakes) {
  run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    EXPECT_THAT(
        refusal(mesh, {{4, 1}}),
        HasSubstr("operator aten::matmul on [8, 6], [6, 4] was given the strategy {{4, 1}}: "
                  "1 tuple where it takes 2 tensors"));
    EXPECT_THAT(refusal(mesh, {{4, 1}, {1, 1}, {1}}), HasSubstr("3 tuples where it takes 2"));
    EXPECT_THAT(refusal(mesh, {{4, 1}, {1}}),
                HasSubstr("tuple 1 has 1 numbers, and the tensor of [6, 4] has 2 dims"));
    EXPECT_THAT(refusal(mesh, {{4, 1}, {1, 0}}),
                HasSubstr("tuple 1 has a number of parts below one"));
  });
}

TEST(OperatorStrategyErrors, CountDevices) {
  run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    EXPECT_THAT(refusal(mesh, {{3, 1}, {1, 1}}),
                AllOf(HasSubstr("tuple 0 makes 3 parts of a tensor, which does not divide the 4 "
                                "devices"),
                      HasSubstr("give numbers whose product divides 4")));
    EXPECT_THAT(refusal(mesh, {{1, 1}, {4, 2}}),
                HasSubstr("tuple 1 makes more parts of a tensor than there are devices (4): those "
                          "that cut one dim cannot cut another as well"));
    const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
    EXPECT_THAT(refusal(mesh, {{huge, huge}, {1, 1}}), HasSubstr("more parts of a tensor than"));
    EXPECT_THAT(refusal(mesh, {{8, 1}, {1, 1}}),
                HasSubstr("tuple 0 makes more parts of a tensor than there are devices (4)\n"));
    const DeviceMesh line(group, {{"devices", 4}});
    EXPECT_THAT(refusal(line, {{2, 1}, {1, 1}}),
                AllOf(HasSubstr("tuple 0 is not what axes of the mesh devices=4 can cut"),
                      HasSubstr("trireme::devices_mesh(group)")));
    EXPECT_THAT(usage_error([&] { layout_of_parts(mesh, {3, 1}); }),
                HasSubstr("layout_of_parts: [3, 1] makes 3 parts"));
    EXPECT_THAT(usage_error([&] { layout_of_parts(mesh, {0}); }), HasSubstr("below one: [0]"));
  });
}

TEST(OperatorStrategyErrors, ListWhatTheRuleAllows) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    EXPECT_THAT(
        refusal(mesh, {{1, 2}, {1, 1}}),
        AllOf(HasSubstr("these cuts do not go together on 2 devices, or the operator cannot be cut "
                        "so"),
              HasSubstr("it can be cut as {{2, 1}, {1, 1}}, {{1, 2}, {2, 1}}, {{1, 1}, {1, 2}}, "
                        "{{1, 1}, {1, 1}}")));
    // Each could be, on two devices of its own.
    EXPECT_THAT(refusal(mesh, {{2, 1}, {1, 2}}), HasSubstr("do not go together on 2 devices"));
  });
  run_ranks(6, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    EXPECT_THAT(refusal(mesh, {{1, 2}, {3, 1}}), HasSubstr("{{6, 1}, {1, 1}}, {{2, 3}, {3, 1}}"));
  });
}

TEST(OperatorStrategyErrors, SayWhereAStrategyHasNoOperator) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto x = full_batch(waves({4, 4}), mesh);
    EXPECT_THAT(usage_error([&] { with_strategy({{2, 1}}, [] { return 1; }); }),
                HasSubstr("the strategy {{2, 1}} was given to no operator"));
    EXPECT_THAT(usage_error([&] { with_strategy({{2, 1}}, [&] { return torch::zeros_like(x); }); }),
                HasSubstr("was given to no operator"));
    // An operator after one that was refused is not given the strategy.
    const auto y = torch::relu(x);
    EXPECT_TRUE(layout_of(y).is_replicated());
  });
}

TEST(OperatorStrategyErrors, NamePartsOfCompositeOperators) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const auto images = full_batch(waves({4, 2, 5, 5}), mesh);
    const auto weight = full_batch(waves({4, 2, 3, 3}), mesh);
    EXPECT_THAT(usage_error([&] {
                  with_strategy({{2, 1, 1, 1}}, [&] { return torch::conv2d(images, weight); });
                }),
                HasSubstr("operator aten::convolution (of aten::conv2d) on [4, 2, 5, 5], [4, 2, 3, "
                          "3] was given the strategy {{2, 1, 1, 1}}: 1 tuple where it takes 2"));
  });
}

TEST(OperatorStrategyErrors, RefuseToMoveWhatIsWritten) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    auto x = full_batch(waves({4, 4}), mesh);
    EXPECT_THAT(
        usage_error([&] { with_strategy({{2, 1}}, [&] { return x.relu_(); }); }),
        HasSubstr("operator aten::relu_ writes to a tensor of [4, 4] that lies as [devices: "
                  "Replicate], and its strategy wants [devices: Shard(0)]"));
    auto cut = redistribute(x, layout_of_parts(mesh, {2, 1}));
    with_strategy({{2, 1}, {2, 1}}, [&] { return cut.add_(x); });
    expect_close(cut, waves({4, 4}) * 2, "added in place");
    // A view of what had to be moved is a copy.
    const auto view = with_strategy({{2, 1}}, [&] { return x.t(); });
    EXPECT_THAT(usage_error([&] { view.add_(1); }), HasSubstr("had to be gathered: it is a copy"));
  });
}

TEST(OperatorStrategyErrors, RefuseListsAndOperatorsWithoutARule) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = devices_mesh(group);
    const std::vector<torch::Tensor> list = {full_batch(waves({4}), mesh)};
    EXPECT_THAT(
        usage_error([&] { with_strategy({{2}}, [&] { return torch::_foreach_neg(list); }); }),
        HasSubstr("operator aten::_foreach_neg works on lists element by element and takes no "
                  "strategy"));
    EXPECT_THAT(
        usage_error([&] { with_strategy({{2}}, [&] { return call_without_rule(list[0]); }); }),
        HasSubstr("operator trireme_test_strategies::without_rule has no rule for distributed "
                  "tensors, which says how its inputs can be cut, and was given the strategy "
                  "{{2}}"));
    const DeviceMesh other(group, {{"other", 2}});
    EXPECT_THAT(usage_error([&] {
                  with_strategy({{2}, {2}},
                                [&] { return list[0] + full_batch(waves({4}), other); });
                }),
                HasSubstr("was given tensors of two meshes"));
    const auto parameter = leaf(waves({4}));
    EXPECT_THAT(
        usage_error([&] { with_strategy({{2}, {2}}, [&] { return list[0] + parameter; }); }),
        HasSubstr("mixes distributed tensors with a plain tensor of [4] that requires a gradient"));
  });
}

TEST(OperatorStrategyErrors, ReportSlicesThatAreNoParts) {
  const auto thrown = testing::run_ranks_catching(2, [](const comm::Group& group) {
    batch_of_slices(torch::ones({group.rank() == 0 ? 1 : 3, 2}), devices_mesh(group));
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(testing::message_of<UsageError>(exception), HasSubstr("from_local got a part of"));
  }
}

}  // namespace
}  // namespace trireme::test
