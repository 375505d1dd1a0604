// SPDX-License-Identifier: Apache-2.0
#include <trireme/mesh/mesh_axis.h>

#include <gtest/gtest.h>

#include <vector>

namespace trireme {
namespace {

TEST(MeshAxis, ListsHaveATextAndANumberOfRanks) {
  const std::vector<MeshAxis> axes = {{"data", 2}, {"tensor", 4}};
  EXPECT_EQ(to_string(axes), "data=2, tensor=4");
  EXPECT_EQ(num_ranks(axes), 8);
  EXPECT_EQ(to_string(std::vector<MeshAxis>()), "");
  EXPECT_EQ(num_ranks(std::vector<MeshAxis>()), 1);
}

}  // namespace
}  // namespace trireme
