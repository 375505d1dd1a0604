// SPDX-License-Identifier: Apache-2.0
#include <trireme/mesh/device_mesh.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <atomic>
#include <set>
#include <thread>

namespace trireme {
namespace {

using test::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(const std::vector<MeshAxis>& axes) {
  return message_of<UsageError>([&] { DeviceMesh::unconnected(axes); });
}

TEST(DeviceMesh, IsNothingByDefault) {
  const DeviceMesh none;
  EXPECT_FALSE(none.defined());
  EXPECT_EQ(none.num_axes(), 0);
  EXPECT_EQ(none.size(), 0);
  EXPECT_FALSE(none.contains_this_rank());
  EXPECT_EQ(none.to_string(), "no mesh");
  EXPECT_EQ(none, DeviceMesh());
  for (const auto& call : std::vector<void (*)(const DeviceMesh&)>{
           [](const DeviceMesh& mesh) { mesh.group(); },
           [](const DeviceMesh& mesh) { mesh.group(0); },
           [](const DeviceMesh& mesh) { mesh.size(0); },
           [](const DeviceMesh& mesh) { mesh.axis_name(0); },
           [](const DeviceMesh& mesh) { mesh.axis("data"); },
           [](const DeviceMesh& mesh) { mesh.coordinate(); },
           [](const DeviceMesh& mesh) { mesh.coordinate_of(0); },
           [](const DeviceMesh& mesh) { mesh.ranks(); },
           [](const DeviceMesh& mesh) { mesh.rank_at({0}); },
           [](const DeviceMesh& mesh) { mesh.submesh({"data"}); },
           [](const DeviceMesh& mesh) { mesh.attachment(nullptr); }}) {
    EXPECT_THAT(message_of<UsageError>([&] { call(none); }), HasSubstr("default DeviceMesh"));
  }
}

TEST(DeviceMesh, OfOneRankNeedsNoEngine) {
  const DeviceMesh mesh(comm::Group::self(), {{"data", 1}, {"tensor", 1}});
  EXPECT_TRUE(mesh.contains_this_rank());
  EXPECT_THAT(mesh.coordinate(), ElementsAre(0, 0));
  EXPECT_EQ(mesh.coordinate(1), 0);
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.group(1).size(), 1);
  EXPECT_EQ(mesh.to_string(), "data=1, tensor=1");
  EXPECT_EQ(mesh.submesh({"tensor", "data"}).to_string(), "tensor=1, data=1");
}

TEST(DeviceMesh, MayHaveNoAxes) {
  const DeviceMesh mesh(comm::Group::self(), {});
  EXPECT_TRUE(mesh.defined());
  EXPECT_TRUE(mesh.contains_this_rank());
  EXPECT_EQ(mesh.num_axes(), 0);
  EXPECT_TRUE(mesh.coordinate().empty());
  EXPECT_EQ(mesh.rank_at({}), 0);
  EXPECT_EQ(mesh.to_string(), "no axes");
}

TEST(DeviceMesh, CountsTheLastAxisFastest) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"data", 2}, {"pipe", 1}, {"tensor", 3}});
  EXPECT_EQ(mesh.num_axes(), 3);
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.size(2), 3);
  EXPECT_EQ(mesh.axis_name(1), "pipe");
  EXPECT_EQ(mesh.axis("tensor"), 2);
  EXPECT_THAT(mesh.ranks(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(mesh.rank_at({0, 0, 2}), 2);
  EXPECT_EQ(mesh.rank_at({1, 0, 0}), 3);
  for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(mesh.rank_at(mesh.coordinate_of(rank)), rank);
  EXPECT_EQ(mesh.to_string(), "data=2, pipe=1, tensor=3");
}

TEST(DeviceMesh, EqualsItsCopiesAlone) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"data", 2}});
  DeviceMesh copy;
  copy = mesh;
  EXPECT_EQ(copy, mesh);
  EXPECT_FALSE(DeviceMesh::unconnected({{"data", 2}}) == mesh);
}

TEST(DeviceMesh, HasNoGroupsWhereItIsUnconnected) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"data", 2}, {"tensor", 2}});
  EXPECT_FALSE(mesh.contains_this_rank());
  for (const auto& call : std::vector<void (*)(const DeviceMesh&)>{
           [](const DeviceMesh& it) { it.group(); }, [](const DeviceMesh& it) { it.group(0); },
           [](const DeviceMesh& it) { it.coordinate(); },
           [](const DeviceMesh& it) { it.submesh({"data"}); }}) {
    EXPECT_THAT(message_of<UsageError>([&] { call(mesh); }),
                AllOf(HasSubstr("data=2, tensor=2"), HasSubstr("no ranks stand behind")));
  }
}

TEST(DeviceMesh, ExplainsAxesThatCannotBe) {
  EXPECT_THAT(error_of({{"data", 2}, {"", 2}}), HasSubstr("axis 1 of mesh data=2, =2 has no name"));
  EXPECT_THAT(error_of({{"data", 2}, {"data", 3}}), HasSubstr("two axes 'data'"));
  EXPECT_THAT(error_of({{"data", 0}}), HasSubstr("axis 'data' of mesh data=0 has size 0"));
  EXPECT_THAT(error_of({{"data", -2}}), HasSubstr("has size -2, expected at least 1"));
  EXPECT_THAT(error_of({{"data", 1L << 40}, {"tensor", 1L << 40}}),
              HasSubstr("more than 2147483647 ranks"));
}

TEST(DeviceMesh, ExplainsAGroupOfAnotherSize) {
  EXPECT_THAT(
      message_of<UsageError>([] { DeviceMesh(comm::Group::self(), {{"data", 2}}); }),
      AllOf(HasSubstr("mesh data=2 has places for 2 ranks and is made of 1 of group 'self'"),
            HasSubstr("hint:")));
  EXPECT_THAT(
      message_of<UsageError>([] { DeviceMesh(comm::Group::self(), {0, 0}, {{"data", 2}}); }),
      HasSubstr("rank 0 of group 'self' twice"));
  EXPECT_THAT(message_of<UsageError>([] { DeviceMesh(comm::Group::self(), {1}, {{"data", 1}}); }),
              HasSubstr("rank 1 of group 'self', which has ranks 0 to 0"));
  EXPECT_THAT(message_of<UsageError>([] { DeviceMesh(comm::Group::self(), {-1}, {{"data", 1}}); }),
              HasSubstr("rank -1 of group"));
  EXPECT_THAT(message_of<UsageError>(
                  [] { DeviceMesh(comm::Group::self(), std::vector<int>{}, {{"data", 1}}); }),
              HasSubstr("is made of 0 of group"));
}

TEST(DeviceMesh, NamesWhatIsNotThere) {
  const DeviceMesh mesh(comm::Group::self(), {{"data", 1}, {"tensor", 1}});
  const auto error = [&](const auto& call) { return message_of<UsageError>(call); };
  EXPECT_THAT(error([&] { mesh.axis("model"); }),
              HasSubstr("mesh data=1, tensor=1 has no axis 'model'"));
  EXPECT_THAT(error([&] { mesh.size(2); }), HasSubstr("axis 2 of mesh data=1, tensor=1"));
  EXPECT_THAT(error([&] { mesh.axis_name(-1); }), HasSubstr("axis -1"));
  EXPECT_THAT(error([&] { mesh.coordinate(5); }), HasSubstr("axis 5"));
  EXPECT_THAT(error([&] { mesh.group(2); }), HasSubstr("axis 2"));
  EXPECT_THAT(error([&] { mesh.rank_at({0, 1}); }), HasSubstr("coordinate [0, 1] is not in mesh"));
  EXPECT_THAT(error([&] { mesh.rank_at({-1, 0}); }), HasSubstr("[-1, 0]"));
  EXPECT_THAT(error([&] { mesh.rank_at({0}); }), HasSubstr("[0]"));
  EXPECT_THAT(error([&] { mesh.coordinate_of(1); }), HasSubstr("rank 1 is not in mesh"));
  EXPECT_THAT(error([&] { mesh.submesh({"model"}); }), HasSubstr("no axis 'model'"));
  EXPECT_THAT(error([&] { mesh.submesh({"data", "data"}); }), HasSubstr("'data' twice"));
  EXPECT_THAT(error([&] { mesh.submesh({}); }), HasSubstr("without axes"));
}

struct Counted final : DeviceMesh::Attachment {
  Counted() { ++made; }
  ~Counted() override { ++ended; }
  static inline std::atomic<int> made = 0;
  static inline std::atomic<int> ended = 0;
};

TEST(DeviceMesh, MakesItsAttachmentOnceForAllThreads) {
  const int made_before = Counted::made;
  const int ended_before = Counted::ended;
  {
    const DeviceMesh mesh = DeviceMesh::unconnected({{"data", 2}});
    std::vector<DeviceMesh::Attachment*> seen(8);
    std::atomic<int> ready = 0;
    {
      std::vector<std::jthread> threads;
      for (auto& slot : seen) {
        threads.emplace_back([&, own = mesh] {
          ++ready;
          while (ready < static_cast<int>(seen.size())) std::this_thread::yield();
          slot = &own.attachment([]() -> std::unique_ptr<DeviceMesh::Attachment> {
            return std::make_unique<Counted>();
          });
        });
      }
    }
    EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), 1U);
    EXPECT_EQ(Counted::made - made_before, 1);
    EXPECT_EQ(Counted::ended - ended_before, 0);
  }
  EXPECT_EQ(Counted::ended - ended_before, 1);
}

}  // namespace
}  // namespace trireme
