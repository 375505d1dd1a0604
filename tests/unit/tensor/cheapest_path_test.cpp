// SPDX-License-Identifier: Apache-2.0
// That paths are the cheapest there are, against a search of another kind.
#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/redistribution/path.h>
#include <trireme/tensor/redistribution/redistribution.h>

#include <gtest/gtest.h>
#include <tests/unit/tensor/every_layout.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace trireme::tensor {
namespace {

using Lengths = std::vector<std::int64_t>;

DeviceMesh mesh_of(const Lengths& lengths) {
  std::vector<MeshAxis> axes;
  for (std::size_t axis = 0; axis < lengths.size(); ++axis) {
    axes.push_back({std::string(1, static_cast<char>('a' + axis)), lengths[axis]});
  }
  return DeviceMesh::unconnected(axes);
}

// The same problem once more, by other means: all layouts as nodes, every step that changes one
// axis as an edge, and all shortest paths (Floyd, "Algorithm 97", 1962). An axis that is not
// Partial at either end is not on the way: what is copied is never added.
class EveryPath {
 public:
  EveryPath(const DeviceMesh& mesh, const Lengths& sizes, PartialOp op)
      : sizes_(sizes), mesh_(mesh), origin_(static_cast<std::size_t>(mesh.num_axes()), 0) {
    for (const auto& placements :
         test::every_layout(origin_.size(), static_cast<int>(sizes.size()), op)) {
      layouts_.emplace_back(mesh, placements);
    }
    const std::size_t count = layouts_.size();
    Table steps(count, std::vector<double>(count, kNever));
    for (std::size_t a = 0; a < count; ++a) {
      for (std::size_t b = 0; b < count; ++b) {
        steps[a][b] = a == b ? 0 : step_seconds(layouts_[a], layouts_[b]);
      }
    }
    for (unsigned axes = 0; axes < 1U << origin_.size(); ++axes) {
      Table seconds = steps;
      for (std::size_t via = 0; via < count; ++via) {
        if ((partial_axes(layouts_[via]) & ~axes) != 0) continue;
        for (std::size_t a = 0; a < count; ++a) {
          for (std::size_t b = 0; b < count; ++b) {
            seconds[a][b] = std::min(seconds[a][b], seconds[a][via] + seconds[via][b]);
          }
        }
      }
      seconds_.push_back(std::move(seconds));
    }
  }

  const std::vector<Layout>& layouts() const { return layouts_; }
  double seconds(std::size_t from, std::size_t to) const {
    return seconds_[partial_axes(layouts_[from]) | partial_axes(layouts_[to])][from][to];
  }

 private:
  using Table = std::vector<std::vector<double>>;
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  // A bit each.
  static unsigned partial_axes(const Layout& layout) {
    unsigned axes = 0;
    for (int axis = 0; axis < static_cast<int>(layout.placements().size()); ++axis) {
      if (layout[axis].is_partial()) axes |= 1U << static_cast<unsigned>(axis);
    }
    return axes;
  }

  bool is_last_cut(const Layout& layout, int axis) const {
    return !layout[axis].is_shard() || layout.axes_of(layout[axis].dim()).back() == axis;
  }

  double elements(const Layout& layout) const {
    const auto local = local_sizes(sizes_, layout, origin_);
    return std::accumulate(local.begin(), local.end(), 1.0, [](double product, std::int64_t size) {
      return product * static_cast<double>(size);
    });
  }

  // Whether the part of `cut` is one of equal stretches of the memory of `whole`.
  bool is_in_place(const Layout& whole, const Layout& cut, int dim) const {
    return cuts_evenly(sizes_[static_cast<std::size_t>(dim)], cut, dim) && is_outermost(whole, dim);
  }
  bool is_outermost(const Layout& layout, int dim) const {
    const auto local = local_sizes(sizes_, layout, origin_);
    return std::all_of(local.begin(), local.begin() + dim,
                       [](std::int64_t size) { return size == 1; });
  }

  double copy_seconds(double elements) const {
    return kCopySeconds + elements * 4 / kCopyBytesPerSecond;
  }

  // Of the step that changes one axis, if there is one.
  double step_seconds(const Layout& from, const Layout& to) const {
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (from.with(axis, Replicate{}) != to.with(axis, Replicate{})) continue;
      if (from[axis] == to[axis] && from != to) continue;
      if (!is_last_cut(from, axis) || !is_last_cut(to, axis)) continue;
      const double seconds = axis_seconds(from, to, axis);
      if (std::isfinite(seconds)) return seconds;
    }
    return kNever;
  }

  double axis_seconds(const Layout& from, const Layout& to, int axis) const {
    const Placement& old_placement = from[axis];
    const Placement& new_placement = to[axis];
    const std::int64_t ranks = mesh_.size(axis);
    const auto count = static_cast<double>(ranks);
    const bool is_empty = std::ranges::find(sizes_, 0) != sizes_.end();
    const auto collective = [&](Collective which, double all) {
      return kCallSeconds + seconds_along(*mesh_.state(), axis, which, is_empty ? 0 : all * 4);
    };
    const auto fold_seconds = [](double elements) { return elements * 4 / kCopyBytesPerSecond; };
    double seconds = kStepSeconds;
    if (old_placement.is_shard() && new_placement.is_shard()) {
      if (old_placement.dim() == new_placement.dim()) {
        return kNever;
      }
      const Layout both = from.with(axis, Replicate{});
      double slot = 1;
      const auto uncut = local_sizes(sizes_, both, origin_);
      for (int dim = 0; dim < static_cast<int>(uncut.size()); ++dim) {
        const std::int64_t size = uncut[static_cast<std::size_t>(dim)];
        const bool is_cut = old_placement.is_shard(dim) || new_placement.is_shard(dim);
        slot *= static_cast<double>(is_cut ? part_of(size, ranks, 0).size : size);
      }
      seconds += collective(Collective::kAllToAll, count * count * slot);
      if (!is_in_place(from, to, new_placement.dim())) seconds += copy_seconds(elements(from));
      if (!is_in_place(to, from, old_placement.dim())) seconds += copy_seconds(elements(to));
    } else if (old_placement.is_shard() && new_placement.is_replicate()) {
      seconds += collective(Collective::kAllGather, count * elements(from));
      if (!is_in_place(to, from, old_placement.dim())) seconds += copy_seconds(elements(to));
    } else if (old_placement.is_partial() && new_placement.is_replicate()) {
      seconds += collective(Collective::kAllReduce, elements(from)) + fold_seconds(elements(from));
    } else if (old_placement.is_partial() && new_placement.is_shard()) {
      seconds += collective(Collective::kReduceScatter, count * elements(to));
      seconds += fold_seconds(elements(from));
      if (!is_in_place(from, to, new_placement.dim())) {
        seconds += copy_seconds(count * elements(to));
      }
    } else if (old_placement.is_replicate() && new_placement.is_shard()) {
      if (!is_outermost(from, new_placement.dim())) seconds += copy_seconds(elements(to));
    } else if (new_placement.is_partial() &&
               (old_placement.is_replicate() || new_placement.op() != PartialOp::kAverage)) {
      seconds += copy_seconds(elements(to));
      if (old_placement.is_shard()) seconds += copy_seconds(elements(from));
    } else {
      return kNever;
    }
    return seconds;
  }

  Lengths sizes_;
  DeviceMesh mesh_;
  std::vector<std::int64_t> origin_;
  std::vector<Layout> layouts_;
  std::vector<Table> seconds_;  // by the axes that may be Partial
};

void expect_cheapest(const DeviceMesh& mesh, const Lengths& sizes, PartialOp op, int& num_pairs) {
  const EveryPath every(mesh, sizes, op);
  for (std::size_t a = 0; a < every.layouts().size(); ++a) {
    for (std::size_t b = 0; b < every.layouts().size(); ++b) {
      const Layout& from = every.layouts()[a];
      const Layout& to = every.layouts()[b];
      const double seconds = redistribution_seconds(sizes, at::kFloat, from, to);
      ++num_pairs;
      ASSERT_NEAR(seconds, every.seconds(a, b), 1e-9 * seconds)
          << c10::IntArrayRef(sizes) << " on " << mesh.to_string() << ": " << from.to_string()
          << " to " << to.to_string() << "\n"
          << Redistribution(sizes, at::kFloat, from, to).to_string();
    }
  }
}

TEST(CheapestPath, CostsWhatTheCheapestOfAllPathsCosts) {
  const std::vector<std::vector<std::int64_t>> meshes = {{2}, {3}, {2, 2}, {2, 3}, {4, 8}};
  const std::vector<Lengths> all_sizes = {{},        {5},         {8},          {4, 6},
                                          {0, 6},    {1, 7},      {3, 4, 5},    {64, 64, 64},
                                          {1000, 7}, {512, 2048}, {1, 96, 960}, {2, 300, 4, 50}};
  int num_pairs = 0;
  for (const auto& lengths : meshes) {
    const DeviceMesh mesh = mesh_of(lengths);
    for (const Lengths& sizes : all_sizes) {
      for (const PartialOp op : {PartialOp::kSum, PartialOp::kAverage}) {
        expect_cheapest(mesh, sizes, op, num_pairs);
      }
    }
  }
  EXPECT_GT(num_pairs, 10000);
}

// Axes with other links, of which each kind of collective sees another.
TEST(CheapestPath, FollowsTheLinksOfEachAxisAndKind) {
  cluster::CollectiveLinks within;
  within.set(Collective::kAllReduce, {.latency = 1e-6, .bytes_per_second = 40e9});
  within.set(Collective::kAllGather, {.latency = 1e-6, .bytes_per_second = 60e9});
  within.set(Collective::kAllToAll, {.latency = 4e-6, .bytes_per_second = 1e9});
  cluster::CollectiveLinks across;
  across.set(Collective::kAllReduce, {.latency = 50e-6, .bytes_per_second = 0.5e9});
  across.set(Collective::kReduceScatter, {.latency = 90e-6, .bytes_per_second = 0.5e9});
  int num_pairs = 0;
  for (const auto& lengths : {Lengths{2, 2}, Lengths{2, 3}, Lengths{4, 8}}) {
    for (const bool is_first_within : {false, true}) {
      const DeviceMesh mesh = mesh_of(lengths);
      set_axis_links(mesh, is_first_within ? AxisLinks{within, across} : AxisLinks{across, within});
      for (const Lengths& sizes : {Lengths{4, 6}, Lengths{512, 2048}, Lengths{2, 300, 4, 50}}) {
        expect_cheapest(mesh, sizes, PartialOp::kSum, num_pairs);
      }
    }
  }
  EXPECT_GT(num_pairs, 1000);
}

TEST(CheapestPath, NeverCostsMoreThanGatheringAll) {
  const DeviceMesh mesh = mesh_of({2, 2, 3});
  const Lengths matrix = {1024, 1024};
  const std::vector<Placement> choices = {Replicate{}, Shard{0}, Shard{1}, Partial{}};
  const std::size_t count = choices.size();
  std::vector<Layout> layouts;
  for (std::size_t index = 0; index < count * count * count; ++index) {
    layouts.emplace_back(
        mesh, std::vector<Placement>{choices[index % count], choices[index / count % count],
                                     choices[index / count / count]});
  }
  const Layout whole = Layout::replicated(mesh);
  std::vector<double> gathering;
  std::vector<double> cutting;
  for (const Layout& layout : layouts) {
    gathering.push_back(redistribution_seconds(matrix, at::kFloat, layout, whole));
    cutting.push_back(redistribution_seconds(matrix, at::kFloat, whole, layout));
  }
  for (std::size_t a = 0; a < layouts.size(); ++a) {
    for (std::size_t b = 0; b < layouts.size(); ++b) {
      EXPECT_LE(redistribution_seconds(matrix, at::kFloat, layouts[a], layouts[b]),
                (gathering[a] + cutting[b]) * (1 + 1e-12))
          << layouts[a].to_string() << " to " << layouts[b].to_string();
    }
  }
}

}  // namespace
}  // namespace trireme::tensor
