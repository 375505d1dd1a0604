// SPDX-License-Identifier: Apache-2.0
// Which elements a rank holds, by brute force over meshes, placements and sizes.
#include <trireme/base/error.h>
#include <trireme/tensor/layout.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <algorithm>
#include <set>

namespace trireme {
namespace {

using test::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<FlatRange> kTwelve = {{0, 5}, {5, 7}};

DeviceMesh mesh_2x3() { return DeviceMesh::unconnected({{"data", 2}, {"tensor", 3}}); }

TEST(PartOf, CutsIntoPartsThatDifferByOneAtMost) {
  for (std::int64_t size = 0; size < 20; ++size) {
    for (std::int64_t parts = 1; parts < 9; ++parts) {
      std::int64_t next = 0;
      const std::int64_t longest = part_of(size, parts, 0).size;
      std::int64_t before = longest;
      for (std::int64_t index = 0; index < parts; ++index) {
        const Extent part = part_of(size, parts, index);
        EXPECT_EQ(part.offset, next);
        EXPECT_LE(part.size, before);
        EXPECT_GE(part.size, longest - 1);
        next += part.size;
        before = part.size;
      }
      EXPECT_EQ(next, size);
    }
  }
}

TEST(PartOf, RefusesPartsThatAreNotThere) {
  const auto error = [](std::int64_t size, std::int64_t parts, std::int64_t index) {
    return message_of<UsageError>([&] { (void)part_of(size, parts, index); });
  };
  EXPECT_THAT(error(5, 2, 2), HasSubstr("part 2 of 5 elements cut into 2"));
  EXPECT_THAT(error(5, 2, -1), HasSubstr("part -1"));
  EXPECT_THAT(error(5, 0, 0), HasSubstr("cut into 0"));
  EXPECT_THAT(error(-5, 2, 0), HasSubstr("-5 elements"));
}

// Deals `size` elements to `parts` one by one, then reads off where part `index` lies.
Extent dealt(std::int64_t size, std::int64_t parts, std::int64_t index) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(parts));
  for (std::int64_t element = 0; element < size; ++element) {
    ++counts[static_cast<std::size_t>(element % parts)];
  }
  Extent part;
  for (std::int64_t before = 0; before < index; ++before) {
    part.offset += counts[static_cast<std::size_t>(before)];
  }
  part.size = counts[static_cast<std::size_t>(index)];
  return part;
}

// All combinations of Replicate, Partial, Shard(0) and Shard(1) on so many axes, with every order
// of the cuts.
std::vector<std::vector<Placement>> all_placements(std::size_t num_axes) {
  std::vector<std::vector<Placement>> all = {{}};
  for (std::size_t axis = 0; axis < num_axes; ++axis) {
    std::vector<std::vector<Placement>> longer;
    for (const std::vector<Placement>& start : all) {
      std::vector<Placement> choices = {Replicate{}, Partial{}};
      for (int level = 0; level < static_cast<int>(num_axes); ++level) {
        choices.insert(choices.end(), {Shard{0, level}, Shard{1, level}});
      }
      for (const Placement& choice : choices) {
        longer.push_back(start);
        longer.back().push_back(choice);
      }
    }
    all = std::move(longer);
  }
  return all;
}

bool is_layout(const DeviceMesh& mesh, const std::vector<Placement>& placements) {
  try {
    (void)Layout(mesh, placements);
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

// Over all ranks that agree on the axes that do not cut, the extents must hold each element once,
// and each extent must be what cutting axis by axis gives.
void expect_tiles(const Layout& layout, const std::vector<std::int64_t>& sizes) {
  const DeviceMesh mesh = layout.mesh();
  std::set<std::vector<std::int64_t>> copies;
  std::multiset<std::vector<std::int64_t>> held;  // copy, then element
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<std::int64_t> coordinate = mesh.coordinate_of(rank);
    std::vector<std::int64_t> copy;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      if (!layout[axis].is_shard()) copy.push_back(coordinate[static_cast<std::size_t>(axis)]);
    }
    copies.insert(copy);
    const auto extents = local_extents(sizes, layout, coordinate);
    const auto local = local_sizes(sizes, layout, coordinate);
    ASSERT_EQ(extents.size(), sizes.size());
    for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
      Extent expected{.offset = 0, .size = sizes[dim]};
      for (int level = 0; level < mesh.num_axes(); ++level) {
        for (int axis = 0; axis < mesh.num_axes(); ++axis) {
          if (!layout[axis].is_shard(static_cast<std::int64_t>(dim)) ||
              std::max(layout[axis].level(), 0) != level) {
            continue;
          }
          const Extent part =
              dealt(expected.size, mesh.size(axis), coordinate[static_cast<std::size_t>(axis)]);
          expected = {.offset = expected.offset + part.offset, .size = part.size};
        }
      }
      ASSERT_EQ(extents[dim], expected) << layout.to_string() << " at " << rank;
      ASSERT_EQ(local[dim], expected.size);
    }
    for (std::int64_t row = 0; row < extents[0].size; ++row) {
      for (std::int64_t column = 0; column < extents[1].size; ++column) {
        std::vector<std::int64_t> element = copy;
        element.insert(element.end(), {extents[0].offset + row, extents[1].offset + column});
        held.insert(element);
      }
    }
  }
  ASSERT_EQ(held.size(), copies.size() * static_cast<std::size_t>(sizes[0] * sizes[1]));
  ASSERT_EQ(std::set(held.begin(), held.end()).size(), held.size()) << layout.to_string();
}

TEST(LocalExtents, TileTheTensorForAllPlacements) {
  const std::vector<std::vector<MeshAxis>> meshes = {{{"a", 1}},
                                                     {{"a", 2}},
                                                     {{"a", 3}},
                                                     {{"a", 2}, {"b", 2}},
                                                     {{"a", 2}, {"b", 3}},
                                                     {{"a", 3}, {"b", 2}},
                                                     {{"a", 2}, {"b", 1}, {"c", 3}}};
  int layouts = 0;
  for (const std::vector<MeshAxis>& axes : meshes) {
    const DeviceMesh mesh = DeviceMesh::unconnected(axes);
    for (const std::vector<Placement>& placements : all_placements(axes.size())) {
      if (!is_layout(mesh, placements)) continue;
      const Layout layout(mesh, placements);
      ++layouts;
      for (const std::vector<std::int64_t>& sizes : std::vector<std::vector<std::int64_t>>{
               {0, 3}, {1, 1}, {2, 5}, {4, 4}, {5, 2}, {6, 7}, {7, 6}}) {
        ASSERT_NO_FATAL_FAILURE(expect_tiles(layout, sizes)) << axes.size();
      }
    }
  }
  // Four kinds an axis, times the orders in which axes that share a dim may cut it.
  EXPECT_EQ(layouts, 3 * 4 + 3 * 18 + 92);
}

TEST(LocalExtents, LeaveRanksEmptyWhereThereAreTooFewElements) {
  const Layout layout(mesh_2x3(), {Shard{0}, Shard{0}});
  std::vector<std::int64_t> sizes;
  for (int rank = 0; rank < 6; ++rank) {
    sizes.push_back(local_sizes({4}, layout, layout.mesh().coordinate_of(rank))[0]);
  }
  EXPECT_THAT(sizes, ElementsAre(1, 1, 0, 1, 1, 0));
}

TEST(LocalExtents, ExplainWhatDoesNotFit) {
  const DeviceMesh mesh = mesh_2x3();
  const Layout layout(mesh, {Shard{0}, Shard{2}});
  const auto error = [](const Layout& of, c10::ArrayRef<std::int64_t> coordinate) {
    return message_of<UsageError>([&] { (void)local_extents({4, 3}, of, coordinate); });
  };
  EXPECT_THAT(error(layout, {0, 0}), AllOf(HasSubstr("cuts dim 2"), HasSubstr("sizes [4, 3]")));
  EXPECT_THAT(error(layout, {2, 0}), HasSubstr("coordinate [2, 0] is not in mesh"));
  EXPECT_THAT(error(layout, {0}), HasSubstr("coordinate [0] is not in mesh"));
  EXPECT_THAT(error(Layout(), {0}), HasSubstr("without a layout"));
  EXPECT_THAT(error(Layout(mesh, {FlatShard{kTwelve}, Replicate{}}), {0, 0}),
              HasSubstr("a range of the flattened tensor"));
}

TEST(LocalSizes, AreOfOneDimForFlatShard) {
  const Layout layout(mesh_2x3(), {FlatShard{kTwelve}, Replicate{}});
  EXPECT_THAT(local_sizes({4, 3}, layout, {0, 2}), ElementsAre(5));
  EXPECT_THAT(local_sizes({4, 3}, layout, {1, 0}), ElementsAre(7));
  EXPECT_THAT(message_of<UsageError>([&] { (void)local_sizes({4, 4}, layout, {1, 0}); }),
              HasSubstr("covers 12 elements of a tensor of sizes [4, 4], which has 16"));
  EXPECT_THAT(message_of<UsageError>([&] { (void)local_sizes({4, 3}, layout, {2, 0}); }),
              HasSubstr("coordinate [2, 0]"));
  EXPECT_THAT(message_of<UsageError>([&] { (void)local_sizes({4, 3}, Layout(), {0, 0}); }),
              HasSubstr("without a layout"));
}

TEST(CutsEvenly, IsWhereAllPartsAreEqual) {
  for (const std::vector<Placement>& placements : all_placements(2)) {
    const DeviceMesh mesh = mesh_2x3();
    if (!is_layout(mesh, placements)) continue;
    const Layout layout(mesh, placements);
    for (std::int64_t size = 0; size < 14; ++size) {
      std::set<std::int64_t> lengths;
      for (int rank = 0; rank < mesh.size(); ++rank) {
        lengths.insert(local_sizes({size, 1}, layout, mesh.coordinate_of(rank))[0]);
      }
      EXPECT_EQ(cuts_evenly(size, layout, 0), lengths.size() == 1) << layout.to_string();
    }
  }
}

}  // namespace
}  // namespace trireme
