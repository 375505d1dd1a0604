// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/layout.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <atomic>
#include <thread>
#include <unordered_set>

namespace trireme {
namespace {

using test::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<FlatRange> kTwelve = {{0, 5}, {5, 7}};

DeviceMesh mesh_2x3() { return DeviceMesh::unconnected({{"data", 2}, {"tensor", 3}}); }

std::string error_of(const DeviceMesh& mesh, const std::vector<Placement>& placements) {
  return message_of<UsageError>([&] { (void)Layout(mesh, placements); });
}

TEST(Layout, IsPlainByDefault) {
  const Layout plain;
  EXPECT_FALSE(plain.defined());
  EXPECT_FALSE(plain.mesh().defined());
  EXPECT_EQ(plain.mesh_state(), nullptr);
  EXPECT_TRUE(plain.placements().empty());
  EXPECT_FALSE(plain.is_replicated() || plain.has_partial() || plain.has_flat_shard());
  EXPECT_TRUE(plain.axes_of(0).empty());
  EXPECT_EQ(plain.to_string(), "plain");
  EXPECT_EQ(plain, Layout());
  EXPECT_THAT(message_of<UsageError>([&] { (void)plain.with(0, Replicate{}); }),
              HasSubstr("default DeviceMesh"));
}

TEST(Layout, PrintsAxesWithTheirPlacements) {
  const DeviceMesh mesh = mesh_2x3();
  EXPECT_EQ(Layout(mesh, {Shard{0}, Replicate{}}).to_string(),
            "[data: Shard(0), tensor: Replicate]");
  EXPECT_EQ(Layout(mesh, {Shard{0, 1}, Shard{0}}).to_string(),
            "[data: Shard(0, level 1), tensor: Shard(0, level 0)]");
  EXPECT_EQ(Layout(mesh, {FlatShard{kTwelve}, Partial{}}).to_string(),
            "[data: FlatShard(0+5, 5+7), tensor: Partial(sum)]");
  EXPECT_EQ(Layout::replicated(DeviceMesh(comm::Group::self(), {})).to_string(), "[]");
}

TEST(Layout, SaysWhatItHas) {
  const DeviceMesh mesh = mesh_2x3();
  const Layout replicated = Layout::replicated(mesh);
  EXPECT_TRUE(replicated.is_replicated());
  EXPECT_FALSE(replicated.has_partial());
  EXPECT_EQ(replicated.mesh(), mesh);
  const Layout partial(mesh, {Shard{1}, Partial{PartialOp::kMaximum}});
  EXPECT_FALSE(partial.is_replicated());
  EXPECT_TRUE(partial.has_partial());
  EXPECT_TRUE(partial[0].is_shard(1));
  EXPECT_TRUE(partial["tensor"].is_partial(PartialOp::kMaximum));
  EXPECT_THAT(partial.placements(),
              ElementsAre(Placement(Shard{1}), Placement(Partial{PartialOp::kMaximum})));
  EXPECT_TRUE(Layout(mesh, {FlatShard{kTwelve}, Replicate{}}).has_flat_shard());
  EXPECT_THAT(message_of<UsageError>([&] { (void)partial["model"]; }),
              HasSubstr("has no axis 'model'"));
}

TEST(Layout, TakesPlacementsByName) {
  const DeviceMesh mesh = mesh_2x3();
  EXPECT_EQ(Layout(mesh, {{"tensor", Shard{1}}}), Layout(mesh, {Replicate{}, Shard{1}}));
  EXPECT_EQ(Layout(mesh, {{"tensor", Shard{1}}, {"data", Partial{}}}),
            Layout(mesh, {Partial{}, Shard{1}}));
  EXPECT_THAT(message_of<UsageError>([&] { (void)Layout(mesh, {{"model", Shard{1}}}); }),
              HasSubstr("mesh data=2, tensor=3 has no axis 'model'"));
  EXPECT_THAT(
      message_of<UsageError>([&] { (void)Layout(mesh, {{"data", Shard{1}}, {"data", Shard{0}}}); }),
      HasSubstr("axis 'data' twice"));
}

TEST(Layout, ExistsOnceForEveryMeaning) {
  const DeviceMesh mesh = mesh_2x3();
  const Layout sharded(mesh, {Shard{0}, Replicate{}});
  EXPECT_EQ(sharded, Layout(mesh, {Shard{0, 0}, Replicate{}}));
  EXPECT_EQ(sharded[0].level(), -1);
  const Layout both(mesh, {Shard{0}, Shard{0}});
  EXPECT_EQ(both, Layout(mesh, {Shard{0, 0}, Shard{0, 1}}));
  EXPECT_EQ(both, Layout(mesh, {Shard{0, 0}, Shard{0}}));
  EXPECT_EQ(both, Layout(mesh, {Shard{0}, Shard{0, 1}}));
  EXPECT_EQ(both[1].level(), 1);
  const Layout other_order(mesh, {Shard{0, 1}, Shard{0, 0}});
  EXPECT_FALSE(both == other_order);
  EXPECT_EQ(other_order, Layout(mesh, {Shard{0}, Shard{0, 0}}));
  EXPECT_EQ(both.hash(), Layout(mesh, {Shard{0}, Shard{0}}).hash());
  EXPECT_EQ((std::unordered_set<Layout>{both, sharded, other_order, both}).size(), 3U);
  EXPECT_FALSE(sharded == Layout(mesh_2x3(), {Shard{0}, Replicate{}}));
}

TEST(Layout, ExistsOnceForAllThreads) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"a", 2}, {"b", 2}, {"c", 2}});
  constexpr int kDims = 6;
  std::vector<std::vector<Layout>> seen(8);
  std::atomic<int> ready = 0;
  {
    std::vector<std::jthread> threads;
    for (auto& own : seen) {
      threads.emplace_back([&] {
        ++ready;
        while (ready < static_cast<int>(seen.size())) std::this_thread::yield();
        for (int a = 0; a < kDims; ++a) {
          for (int b = 0; b < kDims; ++b) {
            for (int c = 0; c < kDims; ++c) {
              own.push_back(Layout(mesh, {Shard{a}, Shard{b}, Replicate{}}).with(2, Shard{c}));
            }
          }
        }
      });
    }
  }
  for (const std::vector<Layout>& own : seen) EXPECT_EQ(own, seen.front());
  EXPECT_EQ(std::unordered_set<Layout>(seen.front().begin(), seen.front().end()).size(),
            kDims * kDims * kDims);
}

TEST(Layout, KeepsItsMeshAliveAndNothingElseDoes) {
  c10::weak_intrusive_ptr<DeviceMesh::State> state(c10::intrusive_ptr<DeviceMesh::State>{});
  {
    Layout layout;
    {
      const DeviceMesh mesh = mesh_2x3();
      state = c10::weak_intrusive_ptr<DeviceMesh::State>(mesh.state());
      layout = Layout(mesh, {Shard{0}, Partial{}});
    }
    EXPECT_FALSE(state.expired());
    EXPECT_EQ(state.use_count(), 1U);
    const Layout copy = layout;
    EXPECT_EQ(state.use_count(), 2U);
    EXPECT_EQ(copy.mesh().to_string(), "data=2, tensor=3");
    Layout moved = std::move(layout);
    EXPECT_FALSE(layout.defined());  // NOLINT(bugprone-use-after-move): what is left of it
    layout = std::move(moved);
    EXPECT_EQ(layout, copy);
    EXPECT_EQ(state.use_count(), 2U);
  }
  EXPECT_TRUE(state.expired());
}

TEST(Layout, NamesTheAxesOfADimInTheOrderOfTheirCuts) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"a", 2}, {"b", 3}, {"c", 2}});
  const auto axes_of = [](const Layout& layout, std::int64_t dim) {
    const auto axes = layout.axes_of(dim);
    return std::vector<int>(axes.begin(), axes.end());
  };
  const Layout layout(mesh, {Shard{0, 2}, Shard{0, 0}, Shard{0, 1}});
  EXPECT_THAT(axes_of(layout, 0), ElementsAre(1, 2, 0));
  EXPECT_THAT(axes_of(layout, 1), ElementsAre());
  const Layout mixed(mesh, {Shard{0}, Shard{1}, Shard{0}});
  EXPECT_THAT(axes_of(mixed, 0), ElementsAre(0, 2));
  EXPECT_THAT(axes_of(mixed, 1), ElementsAre(1));
}

TEST(Layout, ChangesOnOneAxis) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"a", 2}, {"b", 3}, {"c", 2}});
  const Layout layout(mesh, {Shard{0, 2}, Shard{0, 0}, Shard{0, 1}});
  // Levels close up where a cut goes away.
  EXPECT_EQ(layout.with(1, Replicate{}), Layout(mesh, {Shard{0, 1}, Replicate{}, Shard{0, 0}}));
  EXPECT_EQ(layout.with(0, Shard{1}), Layout(mesh, {Shard{1}, Shard{0, 0}, Shard{0, 1}}));
  EXPECT_EQ(layout.with(0, Partial{}).with(2, Partial{}),
            Layout(mesh, {Partial{}, Shard{0}, Partial{}}));
  // Without a level, a new cut goes inside the others, and one that is there stays.
  const Layout two(mesh, {Replicate{}, Shard{0, 1}, Shard{0, 0}});
  EXPECT_EQ(two.with(0, Shard{0}), Layout(mesh, {Shard{0, 2}, Shard{0, 1}, Shard{0, 0}}));
  EXPECT_EQ(layout.with(1, Shard{0}), layout);
  EXPECT_EQ(layout.with(1, layout[1]), layout);
  EXPECT_EQ(Layout(mesh, {Replicate{}, Replicate{}, Shard{1}}).with(0, Shard{1}),
            Layout(mesh, {Shard{1, 1}, Replicate{}, Shard{1, 0}}));
  // With one, it goes between them.
  EXPECT_EQ(two.with(0, Shard{0, 1}), Layout(mesh, {Shard{0, 1}, Shard{0, 2}, Shard{0, 0}}));
  EXPECT_EQ(two.with(0, Shard{0, 0}), Layout(mesh, {Shard{0, 0}, Shard{0, 2}, Shard{0, 1}}));
  EXPECT_EQ(layout.with(1, Shard{0, 2}), Layout(mesh, {Shard{0, 1}, Shard{0, 2}, Shard{0, 0}}));

  const auto error = [&](int axis, const Placement& placement) {
    return message_of<UsageError>([&] { (void)two.with(axis, placement); });
  };
  EXPECT_THAT(error(3, Replicate{}), HasSubstr("axis 3 of mesh a=2, b=3, c=2"));
  EXPECT_THAT(error(0, Shard{0, 3}), HasSubstr("levels are not 0 to 2"));
  EXPECT_THAT(error(0, Shard{-1}), HasSubstr("axis 'a' cuts dim -1"));
}

TEST(Layout, ExplainsPlacementsThatDoNotFitTheMesh) {
  const DeviceMesh mesh = mesh_2x3();
  EXPECT_THAT(message_of<UsageError>([] { (void)Layout::replicated(DeviceMesh()); }),
              HasSubstr("default DeviceMesh"));
  EXPECT_THAT(error_of(mesh, {Shard{0}}),
              AllOf(HasSubstr("1 placements [data: Shard(0)]"), HasSubstr("has 2 axes")));
  EXPECT_THAT(error_of(mesh, {Shard{0}, Replicate{}, Partial{}}),
              HasSubstr("[data: Shard(0), tensor: Replicate, Partial(sum)]"));
  EXPECT_THAT(error_of(mesh, {Replicate{}, Shard{-1}}),
              AllOf(HasSubstr("axis 'tensor' cuts dim -1"), HasSubstr("from the front")));
  EXPECT_THAT(error_of(mesh, {Shard{0, 1}, Replicate{}}),
              HasSubstr("dim 0 is cut by 1 axis, whose levels are not 0 to 0"));
  EXPECT_THAT(error_of(mesh, {Shard{1, 0}, Shard{1, 0}}),
              HasSubstr("dim 1 is cut by 2 axes, whose levels are not 0 to 1, each once"));
  EXPECT_THAT(error_of(mesh, {Shard{1, 0}, Shard{1, 2}}), HasSubstr("Shard(1, level 2)"));
  EXPECT_THAT(error_of(mesh, {Shard{1, -2}, Shard{1}}), HasSubstr("levels are not 0 to 1"));
}

TEST(Layout, ExplainsFlatRangesThatDoNotCoverOnce) {
  const DeviceMesh mesh = mesh_2x3();
  const auto error = [&](const std::vector<FlatRange>& ranges, const Placement& other) {
    return error_of(mesh, {FlatShard{ranges}, other});
  };
  EXPECT_THAT(error({{0, 12}}, Replicate{}), HasSubstr("1 ranges for 2 coordinates"));
  EXPECT_THAT(error({{0, 6}, {5, 7}}, Replicate{}), HasSubstr("has elements twice from element 5"));
  EXPECT_THAT(error({{7, 5}, {0, 6}}, Replicate{}),
              HasSubstr("leaves elements out from element 6"));
  EXPECT_THAT(error({{1, 5}, {6, 6}}, Replicate{}),
              HasSubstr("leaves elements out from element 0"));
  EXPECT_THAT(error({{-2, 2}, {0, 6}}, Replicate{}), HasSubstr("a range of 2 elements at -2"));
  EXPECT_THAT(error({{0, 6}, {6, -1}}, Replicate{}), HasSubstr("a range of -1 elements at 6"));
  EXPECT_THAT(error(kTwelve, Shard{0}), HasSubstr("not the only placement that cuts"));
  EXPECT_THAT(error(kTwelve, FlatShard{{{0, 4}, {4, 4}, {8, 4}}}), HasSubstr("not the only"));
  // Ranges in any order, and empty ones anywhere.
  EXPECT_TRUE(Layout(mesh, {FlatShard{{{7, 5}, {0, 7}}}, Replicate{}}).has_flat_shard());
  EXPECT_TRUE(Layout(mesh, {FlatShard{{{99, 0}, {0, 7}}}, Partial{}}).has_flat_shard());
}

TEST(Layout, WithoutPartialIsReplicatedThere) {
  const DeviceMesh mesh = mesh_2x3();
  const Layout cut(mesh, {Shard{0}, Replicate{}});
  EXPECT_EQ(Layout(mesh, {Shard{0}, Partial{}}).without_partial(), cut);
  EXPECT_EQ(cut.without_partial(), cut);
  EXPECT_EQ(Layout().without_partial(), Layout());
}

}  // namespace
}  // namespace trireme
