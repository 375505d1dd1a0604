// SPDX-License-Identifier: Apache-2.0
// TRIREME_CHECK=values compares what tensors made whole, or distributed, claim to be equal.
#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/thread_ranks.h>

#include <cstdlib>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Read once by the library: set before any test.
const int is_set = ::setenv("TRIREME_CHECK", "values", 1);

TEST(CheckedValues, GradientsOfFullThatDifferAreAnError) {
  ASSERT_EQ(is_set, 0);
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}});
    const auto rows = distribute(torch::rand({4, 3}).zero_(), Layout(mesh, {Shard{0}}));
    const auto own = rows.detach().requires_grad_();
    full(own).sum().backward();
    EXPECT_TRUE(torch::equal(full(own.grad()), torch::ones({4, 3})));
    // Own rows against all: each rank has another gradient.
    const auto all = full(own);
    EXPECT_THAT(
        test::usage_error([&] { (all * static_cast<double>(group.rank() + 1)).sum().backward(); }),
        AllOf(HasSubstr("gradients that arrive at trireme::full"),
              HasSubstr("comm::functional::all_gather")));
  });
}

TEST(CheckedValues, TensorsGivenToDistributeThatDifferAreAnError) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}});
    const auto own = torch::full({4}, static_cast<double>(group.rank()));
    EXPECT_THAT(test::usage_error([&] { distribute(own, Layout(mesh, {Shard{0}})); }),
                HasSubstr("tensors given to trireme::distribute"));
  });
}

TEST(CheckedValues, PlainTensorsBesideDistributedOnesThatDifferAreAnError) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto weight = distribute(torch::ones({4, 3}), Layout(mesh, {Shard{0}}));
    const auto bias = distribute(torch::ones({3}), Layout::replicated(mesh));
    const auto same = torch::ones({3});
    EXPECT_TRUE(torch::equal(full(weight + same), torch::full({4, 3}, 2.0F)));
    const auto own = torch::full({3}, static_cast<double>(group.rank()));
    for (const auto& distributed : {weight, bias}) {
      EXPECT_THAT(test::usage_error([&] { static_cast<void>(distributed + own); }),
                  AllOf(HasSubstr("plain tensors given to operators on distributed ones"),
                        HasSubstr("operator aten::add")));
    }
  });
}

// Each was taken as equal.
TEST(CheckedValues, GradientsOfToLocalThatDifferAreAnError) {
  testing::run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}, {"tensor", 2}});
    const auto rows = distribute(torch::zeros({4, 3}), Layout(mesh, {Shard{0}, Replicate{}}));
    const auto own = rows.detach().requires_grad_();
    (to_local(own) * static_cast<double>(mesh.coordinate(0) + 1)).sum().backward();
    EXPECT_THAT(test::usage_error([&] {
                  (to_local(own) * static_cast<double>(mesh.coordinate(1) + 1)).sum().backward();
                }),
                AllOf(HasSubstr("gradients that arrive at trireme::to_local"),
                      HasSubstr("comm::functional::all_reduce")));
  });
}

TEST(CheckedValues, PartsGivenToFromLocalAsReplicasThatDifferAreAnError) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}});
    const auto own = torch::full({4}, static_cast<double>(group.rank()));
    EXPECT_NO_THROW(static_cast<void>(from_local(own, Layout(mesh, {Shard{0}}))));
    EXPECT_THAT(test::usage_error([&] { from_local(own, Layout(mesh, {Replicate{}})); }),
                HasSubstr("parts given to trireme::from_local"));
  });
}

}  // namespace
}  // namespace trireme
