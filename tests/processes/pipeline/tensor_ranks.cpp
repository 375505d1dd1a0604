// SPDX-License-Identifier: Apache-2.0
// Ranks along `tensor` that share the work on a stage: within rounding what one process does.
#include <trireme/comm/world.h>

#include <gtest/gtest.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/pipeline/tensor_loops.h>

#include <cstddef>

namespace trireme {
namespace {

using test::Outcome;
using test::Shared;

class TensorAxisOnProcesses : public ::testing::TestWithParam<Shared> {};

TEST_P(TensorAxisOnProcesses, TrainsLikeOneProcess) {
  const comm::Group group = init().group;
  const Shared& setting = GetParam();
  ASSERT_EQ(group.size(), ranks_of(setting));
  const Outcome expected =
      test::Alone(test::language_model_in_double(setting.is_tied)).train(arranged_of(setting));
  const Outcome got = train(test::language_model_in_double(setting.is_tied), setting, group);
  test::expect_close(got.parameters, expected.parameters, "parameter");
  for (std::size_t rank = 0; rank < got.losses.size(); ++rank) {
    if (got.losses[rank].empty()) continue;
    test::expect_close(got.losses[rank], expected.losses[rank], "loss of step");
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, TensorAxisOnProcesses,
                         ::testing::Values(Shared{.mesh = {{"pipe", 2}, {"tensor", 2}}},
                                           Shared{.mesh = {{"tensor", 2}, {"pipe", 2}},
                                                  .schedule = "zb-h1",
                                                  .is_tied = true},
                                           Shared{.mesh = {{"pipe", 1}, {"data", 2}, {"tensor", 2}},
                                                  .zero_level = 3}));

}  // namespace
}  // namespace trireme
