// SPDX-License-Identifier: Apache-2.0
// What a hierarchy refuses, and what it says when a phase of a collective fails.
#include <trireme/base/error.h>
#include <trireme/comm/engines/hierarchy/hierarchical_connection.h>
#include <trireme/comm/monitor/dump.h>

#include <tests/ranks/fake_hosts.h>
#include <tests/temporary_folder.h>

#include <algorithm>
#include <atomic>
#include <numeric>

namespace trireme::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using trireme::testing::message_of;

TEST(HierarchyErrors, RefuseWhatCannotBe) {
  run({"", {0, 0, 1, 1}}, [](c10d::Backend& backend) {
    const auto message = [](const auto& call) {
      try {
        call();
      } catch (const UsageError& error) {
        return std::string(error.what());
      }
      return std::string("nothing was thrown");
    };
    at::Tensor two = at::zeros({2});
    at::Tensor seven = at::zeros({7});
    Tensors one = {two};
    Tensors both = {two, seven};
    std::vector<Tensors> lists = {both};
    std::vector<std::int64_t> none;
    std::vector<std::int64_t> splits = {1, 1, 1, 1};
    EXPECT_THAT(message([&] { backend.allreduce(both, {}); }),
                AllOf(HasSubstr("all-reduce"), HasSubstr("2 tensors"), HasSubstr("expected 1")));
    Tensors meta = {at::empty({2}, at::kMeta)};
    EXPECT_THAT(message([&] { backend.allreduce(meta, {}); }),
                AllOf(HasSubstr("on meta"), HasSubstr("CPU")));
    c10d::BroadcastOptions options;
    options.rootRank = 4;
    EXPECT_THAT(message([&] { backend.broadcast(one, options); }),
                AllOf(HasSubstr("4 ranks"), HasSubstr("the root is 4")));
    EXPECT_THAT(message([&] { backend._allgather_base(seven, two, {}); }),
                AllOf(HasSubstr("all-gather over 4 ranks"), HasSubstr("7 elements, expected 8")));
    EXPECT_THAT(message([&] { backend._reduce_scatter_base(two, seven, {}); }),
                AllOf(HasSubstr("reduce-scatter over 4 ranks"), HasSubstr("7 elements")));
    at::Tensor whole_numbers = at::zeros({8}, at::kInt);
    EXPECT_THAT(message([&] { backend._reduce_scatter_base(two, whole_numbers, {}); }),
                AllOf(HasSubstr("Int"), HasSubstr("Float")));
    EXPECT_THAT(message([&] { backend.allgather(lists, one, {}); }),
                HasSubstr("2 tensors for 4 ranks"));
    EXPECT_THAT(message([&] { backend.alltoall_base(seven, seven, none, none, {}); }),
                AllOf(HasSubstr("7 rows"), HasSubstr("no split sizes")));
    EXPECT_THAT(message([&] { backend.alltoall_base(seven, seven, splits, splits, {}); }),
                HasSubstr("4 split sizes that sum to 4"));
    EXPECT_THAT(message([&] { backend.send(one, backend.getRank(), 0); }), HasSubstr("send"));
    EXPECT_THAT(message([&] { backend.recvAnysource(one, 0); }), HasSubstr("receive_from_any"));
    // None of these broke the group.
    TRIREME_EXPECT_SAME(all_reduced(backend, at::ones({2})), at::full({2}, 4.0F));
  });
}

TEST(HierarchyErrors, NameTheStageInsideAHost) {
  std::atomic<int> failed = 0;
  const auto thrown = run_catching(
      {"", {0, 0, 1, 1}, 1},
      [&](c10d::Backend& backend) {
        if (backend.getRank() == 1) {
          for (int seen = failed; seen < 3; seen = failed) failed.wait(seen);
          return;
        }
        try {
          all_reduced(backend, at::ones({4}));
        } catch (...) {
          ++failed;
          failed.notify_all();
          // From now on every call says why.
          EXPECT_THROW(backend.barrier({}), CommError);
          throw;
        }
      },
      {}, std::chrono::milliseconds(500));
  EXPECT_THAT(message_of<CommError>(thrown[0]),
              AllOf(HasSubstr("all-reduce (number 1) failed inside host 0 (ranks 0, 1 by gloo)"),
                    HasSubstr("hint:")));
  EXPECT_THAT(message_of<CommError>(thrown[2]), HasSubstr("across hosts (ranks 0, 2 by gloo)"));
  EXPECT_THAT(message_of<CommError>(thrown[3]), HasSubstr("inside host 1 (ranks 2, 3 by gloo)"));
}

TEST(HierarchyErrors, CountForEveryLaterCollective) {
  const auto thrown = run_catching({"", {0, 0, 1, 1}}, [](c10d::Backend& backend) {
    if (backend.getRank() == 3) return;  // closes its connections
    Tensors first = {at::ones({4})};
    Tensors second = {at::ones({4})};
    const auto broken = backend.allreduce(first, {});
    c10::intrusive_ptr<c10d::Work> behind;
    try {
      behind = backend.allreduce(second, {});
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("hint:"));  // the first has failed already
    }
    EXPECT_THROW(broken->wait(), CommError);
    EXPECT_FALSE(broken->isSuccess());
    EXPECT_TRUE(broken->exception());
    EXPECT_TRUE(broken->getFuture()->hasError());
    if (behind) {
      EXPECT_THROW(behind->wait(), CommError);
    }
    backend.barrier({});
  });
  for (const std::size_t rank : {0U, 1U, 2U}) {
    EXPECT_THAT(message_of<CommError>(thrown[rank]),
                AllOf(HasSubstr("this group broke before: all-reduce (number 1) failed"),
                      HasSubstr("hint:")));
  }
}

TEST(HierarchyErrors, SayWhereAnUnfinishedCollectiveIs) {
  std::atomic<int> told = 0;
  const auto thrown = run_catching({"", {0, 0, 1, 1}}, [&](c10d::Backend& backend) {
    Tensors tensors = {at::ones({4})};
    if (backend.getRank() == 1) {
      while (told < 1) told.wait(0);
      backend.allreduce(tensors, {})->wait();
      return;
    }
    const auto work = backend.allreduce(tensors, {});
    if (backend.getRank() != 0) {
      work->wait();
      return;
    }
    try {
      work->wait(std::chrono::milliseconds(100));
    } catch (...) {
      ++told;
      told.notify_all();
      work->wait();  // it goes on, and ends well
      throw;
    }
  });
  EXPECT_THAT(message_of<CommError>(thrown[0]),
              HasSubstr("all-reduce (number 1) is not done after 0.1 s; it is inside host 0 (ranks "
                        "0, 1 by gloo)"));
  for (const std::size_t rank : {1U, 2U, 3U}) EXPECT_FALSE(thrown[rank]);
}

// Through Group, which records what every engine is asked for.
TEST(HierarchyErrors, LeaveADumpOfWhatEachRankDid) {
  const test::TemporaryFolder folder;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const Group group = connect(choose_engine("hierarchy", /*one_host=*/false),
                                  {.store = store,
                                   .rank = rank,
                                   .size = 4,
                                   .world_ranks = {0, 1, 2, 3},
                                   .machines = {"a", "a", "b", "b"},
                                   .dump_folder = folder.path(),
                                   .timeout = std::chrono::seconds(60)});
      if (rank != 3) {
        EXPECT_THROW(all_reduce(at::ones({4}), group, ReduceOp::kSum, "a bucket"), CommError);
      }
    });
  }
  threads.clear();  // joins
  const std::vector<Dump> dumps = read_dumps(folder.path());
  for (const int rank : {0, 1, 2}) {
    const auto own = std::ranges::find_if(
        dumps, [&](const Dump& dump) { return dump.group == "world" && dump.rank == rank; });
    ASSERT_NE(own, dumps.end()) << "rank " << rank;
    EXPECT_EQ(own->operations.back().label, "a bucket");
  }
}

TEST(HierarchyErrors, AbortEndsTheGroup) {
  run({"", {0, 0, 1, 1}}, [](c10d::Backend& backend) {
    backend.abort();
    EXPECT_THROW(backend.barrier({}), CommError);
    Tensors tensors = {at::ones({1})};
    EXPECT_THROW(backend.send(tensors, (backend.getRank() + 1) % 4, 0), CommError);
  });
}

TEST(HierarchyErrors, RefuseConnectionsThatDoNotFit) {
  const auto message = [](HierarchyConnections connections) {
    try {
      HierarchicalConnection(0, HostMap(std::vector<int>{0, 0, 1}, 0), std::move(connections), {});
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_THAT(message({}), AllOf(HasSubstr("the connection inside the host of rank 0 is missing"),
                                 HasSubstr("expected rank 0 of 2")));
  EXPECT_THROW(HierarchicalConnection(1, HostMap(std::vector<int>{0}, 0), {}, {}), UsageError);
}

// ---- Which ranks share a host

}  // namespace
}  // namespace trireme::comm
