// SPDX-License-Identifier: Apache-2.0
#include <trireme/mesh/device_mesh.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <tests/ranks/thread_ranks.h>

#include <functional>
#include <optional>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using trireme::testing::message_of;
using trireme::testing::run_ranks;
using trireme::testing::run_ranks_catching;

// What every rank of `group` gives for `number`, by rank.
std::vector<std::int64_t> gathered(std::int64_t number, const comm::Group& group) {
  std::vector<std::int64_t> numbers;
  for (const std::string& text : comm::all_gather_text(std::to_string(number), group)) {
    numbers.push_back(std::stoll(text));
  }
  return numbers;
}

std::int64_t summed(std::int64_t number, const comm::Group& group) {
  const at::Tensor sum = at::full({1}, number, at::kLong);
  comm::all_reduce(sum, group);
  return sum.item<std::int64_t>();
}

// The ranks of the mesh whose coordinate is that of this rank but on `axis`, in order.
std::vector<std::int64_t> expected_line(const DeviceMesh& mesh, int axis) {
  std::vector<std::int64_t> line;
  std::vector<std::int64_t> coordinate = mesh.coordinate().vec();
  for (std::int64_t place = 0; place < mesh.size(axis); ++place) {
    coordinate[static_cast<std::size_t>(axis)] = place;
    line.push_back(mesh.rank_at(coordinate));
  }
  return line;
}

void expect_groups(const DeviceMesh& mesh) {
  const int rank = mesh.group().rank();
  EXPECT_EQ(mesh.rank_at(mesh.coordinate()), rank);
  EXPECT_EQ(summed(1, mesh.group()), mesh.size());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const comm::Group& group = mesh.group(axis);
    EXPECT_EQ(group.rank(), mesh.coordinate(axis));
    EXPECT_EQ(gathered(rank, group), expected_line(mesh, axis)) << mesh.to_string();
    // Coordinates on this axis add up along it; those on others are alike.
    const std::int64_t ranks = mesh.size(axis);
    for (int other = 0; other < mesh.num_axes(); ++other) {
      EXPECT_EQ(summed(mesh.coordinate(other), group),
                other == axis ? ranks * (ranks - 1) / 2 : ranks * mesh.coordinate(other));
    }
  }
}

TEST(DeviceMeshOfRanks, ConnectsTheRanksThatDifferAlongAnAxis) {
  for (const std::vector<MeshAxis>& axes :
       std::vector<std::vector<MeshAxis>>{{{"data", 1}},
                                          {{"data", 2}},
                                          {{"data", 3}},
                                          {{"data", 1}, {"tensor", 2}},
                                          {{"data", 2}, {"tensor", 2}},
                                          {{"data", 2}, {"tensor", 3}},
                                          {{"data", 3}, {"pipe", 1}, {"tensor", 2}},
                                          {{"data", 2}, {"pipe", 2}, {"tensor", 2}}}) {
    const auto ranks = static_cast<int>(DeviceMesh::unconnected(axes).size());
    run_ranks(ranks, [&](const comm::Group& group) {
      const DeviceMesh mesh(group, axes);
      EXPECT_TRUE(mesh.contains_this_rank());
      EXPECT_EQ(mesh.group().rank(), group.rank());
      expect_groups(mesh);
    });
  }
}

TEST(DeviceMeshOfRanks, ConnectsNothingTwice) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}, {"tensor", 1}});
    EXPECT_EQ(mesh.group().backend().get(), group.backend().get());
    EXPECT_EQ(mesh.group(0).backend().get(), group.backend().get());
    EXPECT_EQ(mesh.group(1).backend().get(), nullptr);
    DeviceMesh copy;
    copy = mesh;
    EXPECT_EQ(&copy.group(0), &mesh.group(0));
  });
}

TEST(DeviceMeshOfRanks, ArrangesSomeRanksInTheOrderGiven) {
  run_ranks(6, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {5, 1, 4, 0}, {{"data", 2}, {"tensor", 2}});
    EXPECT_EQ(mesh.size(), 4);
    EXPECT_THAT(mesh.ranks(), ElementsAre(5, 1, 4, 0));
    const bool is_in = group.rank() != 2 && group.rank() != 3;
    EXPECT_EQ(mesh.contains_this_rank(), is_in);
    if (is_in) {
      expect_groups(mesh);
      EXPECT_EQ(mesh.ranks()[static_cast<std::size_t>(mesh.group().rank())], group.rank());
      return;
    }
    EXPECT_EQ(mesh.group().rank(), -1);
    for (const auto& call : std::vector<void (*)(const DeviceMesh&)>{
             [](const DeviceMesh& it) { it.coordinate(); },
             [](const DeviceMesh& it) { it.group(0); },
             [](const DeviceMesh& it) { it.submesh({"data"}); }}) {
      try {
        call(mesh);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr("over ranks [5, 1, 4, 0], to which this rank does not belong"),
                          HasSubstr("contains_this_rank()")));
      }
    }
  });
}

TEST(DeviceMeshOfRanks, ArrangesAllRanksInAnotherOrder) {
  run_ranks(3, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {2, 0, 1}, {{"data", 3}});
    EXPECT_THAT(gathered(group.rank(), mesh.group()), ElementsAre(2, 0, 1));
    expect_groups(mesh);
  });
}

TEST(SubMesh, OfOneAxisSharesItsGroup) {
  run_ranks(6, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}, {"tensor", 3}});
    // Not collective: ranks may ask at different times, or not at all.
    if (group.rank() % 2 == 0) {
      const DeviceMesh tensor = mesh.submesh({"tensor"});
      EXPECT_EQ(tensor.to_string(), "tensor=3");
      EXPECT_EQ(tensor.group().backend().get(), mesh.group(1).backend().get());
      EXPECT_EQ(tensor.group(0).backend().get(), mesh.group(1).backend().get());
      EXPECT_THAT(tensor.coordinate(), ElementsAre(mesh.coordinate(1)));
      const int first = 3 * static_cast<int>(mesh.coordinate(0));
      EXPECT_THAT(tensor.ranks(), ElementsAre(first, first + 1, first + 2));
      EXPECT_EQ(mesh.submesh({"tensor"}), tensor);
      EXPECT_EQ(tensor.submesh({"tensor"}), tensor);
    }
    EXPECT_EQ(mesh.submesh({"data", "tensor"}), mesh);
  });
}

TEST(SubMesh, OfSeveralAxesConnectsThem) {
  run_ranks(8, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}, {"pipe", 2}, {"tensor", 2}});
    for (const std::vector<std::string>& names :
         std::vector<std::vector<std::string>>{{"data", "tensor"},
                                               {"tensor", "data"},
                                               {"pipe", "tensor"},
                                               {"tensor", "pipe", "data"}}) {
      const DeviceMesh part = mesh.submesh(names);
      EXPECT_EQ(mesh.submesh(names), part);
      ASSERT_EQ(part.num_axes(), static_cast<int>(names.size()));
      expect_groups(part);
      for (int axis = 0; axis < part.num_axes(); ++axis) {
        const int whole_axis = mesh.axis(names[static_cast<std::size_t>(axis)]);
        EXPECT_EQ(part.axis_name(axis), names[static_cast<std::size_t>(axis)]);
        EXPECT_EQ(part.coordinate(axis), mesh.coordinate(whole_axis));
        EXPECT_EQ(part.group(axis).backend().get(), mesh.group(whole_axis).backend().get());
      }
      const std::vector<std::int64_t> ranks(part.ranks().begin(), part.ranks().end());
      EXPECT_EQ(gathered(group.rank(), part.group()), ranks);
    }
  });
}

TEST(SubMesh, OfAMeshOverSomeRanksNamesThoseOfItsGroup) {
  run_ranks(5, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {4, 3, 1, 0}, {{"data", 2}, {"tensor", 2}});
    if (!mesh.contains_this_rank()) return;
    const DeviceMesh data = mesh.submesh({"data"});
    EXPECT_THAT(data.ranks(), mesh.coordinate(1) == 0 ? ElementsAre(4, 1) : ElementsAre(3, 0));
    expect_groups(data);
    const DeviceMesh turned = mesh.submesh({"tensor", "data"});
    EXPECT_THAT(turned.ranks(), ElementsAre(4, 1, 3, 0));
    expect_groups(turned);
  });
}

TEST(SubMesh, OutlivesItsMeshAndDoesNotKeepIt) {
  run_ranks(4, [](const comm::Group& group) {
    DeviceMesh tensor;
    DeviceMesh turned;
    std::optional<c10::weak_intrusive_ptr<DeviceMesh::State>> whole;
    {
      const DeviceMesh mesh(group, {{"data", 2}, {"tensor", 2}});
      tensor = mesh.submesh({"tensor"});
      turned = mesh.submesh({"tensor", "data"});
      whole.emplace(mesh.state());
      EXPECT_EQ(whole->use_count(), 1U);
    }
    EXPECT_TRUE(whole->expired());
    expect_groups(tensor);
    expect_groups(turned);
  });
}

std::vector<std::string> errors_of(int ranks, const std::function<void(comm::Group)>& body) {
  std::vector<std::string> errors;
  for (const std::exception_ptr& thrown : run_ranks_catching(ranks, body)) {
    errors.push_back(message_of<UsageError>(thrown));
  }
  return errors;
}

TEST(DeviceMeshErrors, AreTheSameOnAllRanksThatGiveDifferentAxes) {
  const std::vector<std::string> errors = errors_of(4, [](const comm::Group& group) {
    const std::int64_t data = group.rank() == 2 ? 4 : 2;
    (void)DeviceMesh(group, {{"data", data}, {"tensor", 4 / data}});
  });
  EXPECT_THAT(errors, Each(errors.front()));
  EXPECT_THAT(errors.front(), AllOf(HasSubstr("differ in the axes of a mesh"),
                                    HasSubstr("ranks 0, 1, 3 gave \"data\"=2, \"tensor\"=2; "
                                              "rank 2 gave \"data\"=4, \"tensor\"=1"),
                                    HasSubstr("hint:")));
}

TEST(DeviceMeshErrors, TellNamesApartThatPrintTheSame) {
  EXPECT_THAT(errors_of(2,
                        [](const comm::Group& group) {
                          std::vector<MeshAxis> axes = {{"a=1, b", 2}};
                          if (group.rank() == 1) axes = {{"a", 1}, {"b", 2}};
                          (void)DeviceMesh(group, axes);
                        }),
              Each(HasSubstr("differ in the axes")));
}

TEST(DeviceMeshErrors, ShortenLongListsOfRanks) {
  EXPECT_THAT(errors_of(11,
                        [](const comm::Group& group) {
                          const char* name = group.rank() == 10 ? "model" : "data";
                          (void)DeviceMesh(group, {{name, 11}});
                        }),
              Each(AllOf(HasSubstr("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more gave \"data\"=11"),
                         HasSubstr("rank 10 gave \"model\"=11"))));
}

TEST(DeviceMeshErrors, CoverListsOfRanks) {
  EXPECT_THAT(errors_of(3,
                        [](const comm::Group& group) {
                          (void)DeviceMesh(group, {0, group.rank() == 1 ? 2 : 1}, {{"data", 2}});
                        }),
              Each(AllOf(HasSubstr("axes and ranks of a mesh"),
                         HasSubstr("rank 1 gave \"data\"=2 over ranks [0, 2]"))));
  EXPECT_THAT(
      errors_of(2,
                [](const comm::Group& group) { (void)DeviceMesh(group, {0, 0}, {{"data", 2}}); }),
      Each(HasSubstr("with rank 0 of group 'threads' twice: [0, 0]")));
  EXPECT_THAT(
      errors_of(2,
                [](const comm::Group& group) { (void)DeviceMesh(group, {0, 2}, {{"data", 2}}); }),
      Each(HasSubstr("over rank 2 of group 'threads', which has ranks 0 to 1")));
}

TEST(DeviceMeshErrors, LeaveNoRankWaitingWhereAxesAreWrongEverywhere) {
  EXPECT_THAT(
      errors_of(3, [](const comm::Group& group) { (void)DeviceMesh(group, {{"data", 2}}); }),
      Each(HasSubstr("has places for 2 ranks and is made of 3 of group 'threads'")));
  EXPECT_THAT(
      errors_of(
          2, [](const comm::Group& group) { (void)DeviceMesh(group, {{"data", 2}, {"data", 1}}); }),
      Each(HasSubstr("two axes 'data'")));
}

TEST(DeviceMeshErrors, CoverRanksThatAskForDifferentSubMeshes) {
  EXPECT_THAT(errors_of(4,
                        [](const comm::Group& group) {
                          const DeviceMesh mesh(group, {{"a", 2}, {"b", 2}, {"c", 1}});
                          mesh.submesh({"c", group.rank() == 3 ? "a" : "b"});
                        }),
              Each(AllOf(HasSubstr("differ in the axes of a sub-mesh"),
                         HasSubstr("rank 3 gave \"c\"=1, \"a\"=2"))));
}

TEST(DeviceMeshOfRanks, ArrangedAlikeIsTheSameMesh) {
  run_ranks(4, [](const comm::Group& group) {
    const std::vector<MeshAxis> axes = {{"data", 2}, {"tensor", 2}};
    const DeviceMesh mesh(group, axes);
    EXPECT_EQ(DeviceMesh(group, axes), mesh);
    EXPECT_EQ(DeviceMesh(group, {0, 1, 2, 3}, axes), mesh);
    EXPECT_EQ(DeviceMesh(group, axes).submesh({"tensor"}), mesh.submesh({"tensor"}));
    EXPECT_NE(DeviceMesh(group, {{"tensor", 2}, {"data", 2}}), mesh);
    EXPECT_NE(DeviceMesh(group, {1, 0, 2, 3}, axes), mesh);
    EXPECT_NE(DeviceMesh(group.subgroup(std::vector<int>{0, 1, 2, 3}), axes), mesh);
  });
}

TEST(DeviceMeshOfRanks, ThatSomeRanksHaveLetGoIsMadeAnew) {
  run_ranks(2, [](const comm::Group& group) {
    std::optional<DeviceMesh> kept = DeviceMesh(group, {{"tensor", 2}});
    if (group.rank() == 1) kept.reset();
    const DeviceMesh again(group, {{"tensor", 2}});
    EXPECT_EQ(summed(1, again.group(0)), 2);
    if (kept) {
      EXPECT_NE(again, *kept);
    }
    // Rank 0 has two by now, of which rank 1 knows the later one alone.
    const DeviceMesh once_more(group, {{"tensor", 2}});
    EXPECT_EQ(once_more, again);
    EXPECT_EQ(summed(1, once_more.group(0)), 2);
  });
}

TEST(DeviceMeshOfRanks, OfWhichRanksKeepDifferentOnesIsMadeAnew) {
  run_ranks(2, [](const comm::Group& group) {
    std::optional<DeviceMesh> first = DeviceMesh(group, {{"tensor", 2}});
    if (group.rank() == 1) first.reset();
    std::optional<DeviceMesh> second = DeviceMesh(group, {{"tensor", 2}});
    if (group.rank() == 0) second.reset();
    const DeviceMesh third(group, {{"tensor", 2}});
    EXPECT_NE(third, first ? *first : *second);
    EXPECT_EQ(summed(1, third.group(0)), 2);
  });
}

}  // namespace
}  // namespace trireme
