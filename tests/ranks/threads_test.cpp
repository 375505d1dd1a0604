// SPDX-License-Identifier: Apache-2.0
// The engine between threads of one process: what it does beside what every engine does
// (collectives_test.cpp).
#include <trireme/comm/engines/threads/threads.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/temporary_folder.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <unistd.h>

#include <array>
#include <latch>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using trireme::testing::message_of;
using trireme::testing::run_ranks;
using trireme::testing::run_ranks_catching;

class Threads : public ::testing::Test {
 protected:
  void SetUp() override { trireme::testing::engine_of_ranks = "threads"; }
  void TearDown() override { trireme::testing::engine_of_ranks = "shm"; }
};

using ThreadsMessages = Threads;
using ThreadsCollectives = Threads;
using ThreadsFailures = Threads;

std::chrono::milliseconds short_deadline() { return std::chrono::milliseconds(300); }

TEST_F(Threads, AreNoChoiceOfALauncherAndAddInRankOrder) {
  EXPECT_THROW(choose_engine("threads", true), ConfigError);
  run_ranks(3, [](const Group& group) {
    EXPECT_EQ(group.engine(), "threads");
    EXPECT_EQ(group.summation_order(), SummationOrder::kRank);
    EXPECT_EQ(group.subgroup(std::array{2, 0}).engine(), group.rank() == 1 ? "none" : "threads");
  });
}

TEST_F(ThreadsMessages, AreSentWithoutTheReceiverAndMeetInTheirOrder) {
  std::latch is_sent(1);
  run_ranks(2, [&](const Group& group) {
    constexpr int kMessages = 50;
    if (group.rank() == 0) {
      std::vector<Work> works;
      for (int i = 0; i < kMessages; ++i) {
        works.push_back(send_async(at::full({10}, i), 1, group, i % 3));
      }
      EXPECT_FALSE(works.front().is_completed());
      is_sent.count_down();
      for (Work& work : works) work.wait();
    } else {
      is_sent.wait();
      std::vector<std::pair<at::Tensor, int>> received;
      for (const int tag : {2, 0, 1}) {
        for (int i = tag; i < kMessages; i += 3) {
          received.emplace_back(at::empty({10}, at::kLong), i);
          receive(received.back().first, 0, group, tag);
        }
      }
      for (const auto& [tensor, value] : received) {
        EXPECT_TRUE(at::equal(tensor, at::full({10}, value)));
      }
    }
  });
}

TEST_F(ThreadsMessages, GoToReceivesThatHaveBegunBefore) {
  std::latch is_received(1);
  run_ranks(2, [&](const Group& group) {
    const at::Tensor tensor = at::zeros({1000});
    if (group.rank() == 0) {
      is_received.wait();
      send(at::ones({1000}), 1, group, 7);
      return;
    }
    Work work = receive_async(tensor, 0, group, 7);
    EXPECT_FALSE(work.is_completed());
    is_received.count_down();
    while (!work.is_completed()) std::this_thread::yield();
    EXPECT_TRUE(at::equal(tensor, at::ones({1000})));
    work.wait();
  });
}

// The last rank to come carries a message out: it must not need what its sender dropped.
TEST_F(ThreadsMessages, ArriveThoughNobodyKeepsTensorOrWork) {
  std::latch is_sent(1);
  run_ranks(2, [&](Group group) {
    if (group.rank() == 0) {
      static_cast<void>(send_async(at::arange(1000), 1, group));
      group = Group::self();
      is_sent.count_down();
      return;
    }
    is_sent.wait();
    const at::Tensor tensor = at::empty({1000}, at::kLong);
    receive(tensor, 0, group);
    EXPECT_TRUE(at::equal(tensor, at::arange(1000)));
  });
}

TEST_F(ThreadsMessages, TakeTensorsWithGapsByC10d) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor whole =
        group.rank() == 0 ? at::arange(12).view({3, 4}) : at::zeros({3, 4}, at::kLong);
    std::vector<at::Tensor> part = {whole.select(1, 2)};
    if (group.rank() == 0) {
      group.backend()->send(part, 1, 0)->wait();
    } else {
      group.backend()->recv(part, 0, 0)->wait();
      EXPECT_EQ(whole.sum().item<std::int64_t>(), 2 + 6 + 10);
      EXPECT_EQ(whole[2][2].item<std::int64_t>(), 10);
    }
  });
}

TEST_F(ThreadsMessages, OfManyThreadsOfARankDoNotMix) {
  run_ranks(2, [](const Group& group) {
    std::vector<std::jthread> threads;
    for (int tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&group, tag] {
        for (int i = 0; i < 100; ++i) {
          const at::Tensor tensor = at::full({3}, group.rank() == 0 ? 1000 * tag + i : -1);
          if (group.rank() == 0) {
            send(tensor, 1, group, tag);
          } else {
            receive(tensor, 0, group, tag);
            EXPECT_TRUE(at::equal(tensor, at::full({3}, 1000 * tag + i)));
          }
        }
      });
    }
  });
}

TEST_F(ThreadsCollectives, WaitForNobodyWhenTheyStart) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor tensor = at::full({4}, group.rank() + 1);
    const at::Tensor message = at::full({1}, group.rank());
    if (group.rank() == 0) {
      Work sum = all_reduce_async(tensor, group);
      send(message, 1, group);  // which the other receives before it comes to the sum
      sum.wait();
    } else {
      receive(message, 0, group);
      EXPECT_EQ(message.item<int>(), 0);
      all_reduce(tensor, group);
    }
    EXPECT_TRUE(at::equal(tensor, at::full({4}, 3)));
  });
}

TEST_F(ThreadsCollectives, GiveTheBitsOfSharedMemory) {
  constexpr int kRanks = 4;
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kInt, at::kBool}) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct, ReduceOp::kMinimum,
          ReduceOp::kMaximum, ReduceOp::kAnd, ReduceOp::kOr, ReduceOp::kXor}) {
      const bool is_bitwise = op >= ReduceOp::kAnd;
      if (is_bitwise && at::isFloatingType(dtype)) continue;
      if (op == ReduceOp::kAverage && dtype == at::kBool) continue;
      std::array<at::Tensor, kRanks> inputs;
      for (at::Tensor& input : inputs) input = at::randn({4, 101}).mul(10).to(dtype);
      std::array<at::Tensor, 2> reduced;
      std::array<std::array<at::Tensor, kRanks>, 2> scattered;
      const std::array engines = {"shm", "threads"};
      for (std::size_t engine = 0; engine < 2; ++engine) {
        trireme::testing::engine_of_ranks = engines[engine];
        run_ranks(kRanks, [&](const Group& group) {
          const auto rank = static_cast<std::size_t>(group.rank());
          const at::Tensor sum = inputs[rank].clone();
          all_reduce(sum, group, op);
          if (rank == 1) reduced[engine] = sum;
          const at::Tensor at_root = inputs[rank].clone();
          reduce(at_root, 3, group, op);
          EXPECT_TRUE(rank != 3 || at::equal(at_root, sum));
          scattered[engine][rank] = at::empty({101}, dtype);
          reduce_scatter(scattered[engine][rank], inputs[rank], group, op);
        });
      }
      EXPECT_TRUE(at::equal(reduced[0], reduced[1])) << dtype << " " << static_cast<int>(op);
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        EXPECT_TRUE(at::equal(scattered[0][rank], scattered[1][rank])) << dtype;
      }
    }
  }
}

TEST_F(ThreadsCollectives, OfListsAndUnequalPartsMoveWhatC10dAsks) {
  run_ranks(2, [](const Group& group) {
    const std::int64_t rank = group.rank();
    std::vector<at::Tensor> inputs = {at::full({2}, rank)};
    std::vector<std::vector<at::Tensor>> lists = {
        {at::zeros({2}, at::kLong), at::zeros({2}, at::kLong)}};
    group.backend()->allgather(lists, inputs)->wait();
    EXPECT_TRUE(at::equal(lists[0][0], at::full({2}, 0)));
    EXPECT_TRUE(at::equal(lists[0][1], at::full({2}, 1)));

    // Rank 0 gives one row to itself and two to the other; rank 1 three and none.
    at::Tensor from = at::arange(3).add(10 * rank);
    at::Tensor to = at::zeros({rank == 0 ? 4 : 2}, at::kLong);
    std::vector<std::int64_t> given =
        rank == 0 ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{3, 0};
    std::vector<std::int64_t> expected =
        rank == 0 ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{2, 0};
    group.backend()->alltoall_base(to, from, expected, given)->wait();
    const std::vector<std::int64_t> values =
        rank == 0 ? std::vector<std::int64_t>{0, 10, 11, 12} : std::vector<std::int64_t>{1, 2};
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(to[static_cast<std::int64_t>(i)].item<std::int64_t>(), values[i]);
    }
  });
}

TEST_F(ThreadsFailures, NameTheMessageThatNobodySends) {
  const auto thrown = run_ranks_catching(
      2,
      [](const Group& group) {
        const at::Tensor tensor = at::zeros({4});
        if (group.rank() == 0) {
          receive(tensor, 1, group, 5);
        } else {
          Work other = receive_async(tensor, 0, group, 9);
          other.wait();  // ends when the other misses its deadline, or here
        }
      },
      short_deadline());
  EXPECT_THAT(message_of<CommError>(thrown[0]),
              AllOf(HasSubstr("receive from rank 1 with tag 5"), HasSubstr("16 bytes"),
                    HasSubstr("did not come within the timeout of 0.3 s"),
                    HasSubstr("what each rank did last")));
  // One of the two, whichever was first, has a line for each rank.
  const std::string both = message_of<CommError>(thrown[0]) + message_of<CommError>(thrown[1]);
  const std::string lines =
      "\nwhat each rank did last:\n    rank 0: receive from rank 1 with tag 5";
  EXPECT_NE(both.find(lines), std::string::npos) << both;
  EXPECT_EQ(both.find(lines), both.rfind(lines)) << both;
  EXPECT_THAT(message_of<CommError>(thrown[1]),
              AllOf(HasSubstr("tag 9"), HasSubstr("did not come within the timeout of 0.3 s")));
}

TEST_F(ThreadsFailures, NameTheMessageThatNobodyReceives) {
  std::latch has_failed(1);
  const auto thrown = run_ranks_catching(
      2,
      [&](const Group& group) {
        if (group.rank() == 0) {
          has_failed.wait();
          return;
        }
        try {
          send(at::zeros({2}), 0, group, 1);
        } catch (...) {
          has_failed.count_down();
          throw;
        }
      },
      short_deadline());
  EXPECT_THAT(message_of<CommError>(thrown[1]),
              AllOf(HasSubstr("send to rank 0 with tag 1"), HasSubstr("8 bytes"),
                    HasSubstr("rank 0 did not come within the timeout of 0.3 s")));
}

TEST_F(ThreadsFailures, OfMessagesThatDoNotFitAreTheSameOnBothSides) {
  for (const bool by_dtype : {false, true}) {
    const auto thrown = run_ranks_catching(2, [&](const Group& group) {
      std::vector<at::Tensor> tensors = {group.rank() == 0 ? at::zeros({4})
                                         : by_dtype        ? at::zeros({4}, at::kInt)
                                                           : at::zeros({3})};
      if (group.rank() == 0) {
        group.backend()->send(tensors, 1, 2)->wait();
      } else {
        group.backend()->recv(tensors, 0, 2)->wait();
      }
    });
    for (const auto& exception : thrown) {
      EXPECT_THAT(message_of<CommError>(exception),
                  AllOf(HasSubstr("does not fit"), HasSubstr("4 elements of Float, 16 bytes"),
                        HasSubstr(by_dtype ? "4 elements of Int" : "3 elements of Float")));
    }
  }
}

TEST_F(ThreadsFailures, OfDifferentCallsNameBothOnAllRanks) {
  const auto thrown = run_ranks_catching(3, [](const Group& group) {
    const at::Tensor tensor = at::zeros({group.rank() == 2 ? 5 : 4});
    all_reduce(tensor, group);
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(
        message_of<CommError>(exception),
        AllOf(HasSubstr("different calls"), HasSubstr("number 2 (sum, 4 elements of Float)"),
              HasSubstr("number 2 (sum, 5 elements of Float) on rank 2")));
  }
  const auto other = run_ranks_catching(2, [](const Group& group) {
    if (group.rank() == 0) {
      barrier(group);
    } else {
      broadcast(at::zeros({2}), 1, group);
    }
  });
  for (const auto& exception : other) {
    EXPECT_THAT(
        message_of<CommError>(exception),
        AllOf(HasSubstr("barrier, number 2 on rank 0"),
              HasSubstr("broadcast, number 2 (from rank 1, 2 elements of Float) on rank 1")));
  }
}

TEST_F(ThreadsFailures, OfWhatCannotBeComputedComeToAllRanks) {
  const auto thrown = run_ranks_catching(2, [](const Group& group) {
    all_reduce(at::zeros({2}, at::kComplexFloat), group, ReduceOp::kMinimum);
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(message_of<CommError>(exception),
                AllOf(HasSubstr("could not be done"), HasSubstr("minimum")));
  }
}

TEST_F(ThreadsFailures, OfUnequalPartsThatDoNotFitNameBothRanks) {
  const auto thrown = run_ranks_catching(2, [](const Group& group) {
    at::Tensor from = at::zeros({2});
    at::Tensor to = at::zeros({2});
    std::vector<std::int64_t> given = {group.rank() == 0 ? 0 : 1, group.rank() == 0 ? 2 : 1};
    std::vector<std::int64_t> expected = {1, 1};
    group.backend()->alltoall_base(to, from, expected, given)->wait();
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(message_of<CommError>(exception),
                HasSubstr("rank 0 gives rank 0 0 elements, which expects 1"));
  }
}

TEST_F(ThreadsFailures, TellWhoLeftAtOnce) {
  const auto thrown = run_ranks_catching(3, [](Group group) {
    if (group.rank() == 1) return;
    barrier(group);
  });
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_THAT(message_of<CommError>(thrown[rank]), HasSubstr("rank 1 left the group"));
  }
}

TEST_F(ThreadsFailures, EndAllRanksWithTheFirstReason) {
  std::latch are_waiting(2);
  const auto thrown = run_ranks_catching(3, [&](const Group& group) {
    if (group.rank() == 2) {
      are_waiting.wait();
      group.abort("the loss is a banana");
      group.abort("another reason");
      group.backend()->abort();
      barrier(group);  // later calls too
      return;
    }
    Work work = receive_async(at::zeros({1}), 2, group, group.rank());
    are_waiting.count_down();
    while (!work.is_completed()) std::this_thread::yield();
    work.wait();
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(message_of<CommError>(exception),
                AllOf(HasSubstr("the loss is a banana"), Not(HasSubstr("another reason"))));
  }
}

TEST_F(ThreadsFailures, RefuseARankTwice) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::latch is_refused(1);
  std::vector<std::jthread> threads;
  for (const int rank : {0, 1, 1}) {
    threads.emplace_back([&, rank] {
      try {
        const Group group =
            trireme::testing::connect_thread(store, rank, 2, std::chrono::seconds(60));
        is_refused.wait();
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), HasSubstr("two threads connect as rank 1 of 'threads'"));
        is_refused.count_down();
      }
    });
  }
}

TEST_F(ThreadsFailures, RefuseRanksOfAnotherProcess) {
  const test::TemporaryFolder folder;
  const std::string file = folder.path() / "store";
  const auto message_of_rank = [&](int rank) -> std::string {
    try {
      const Group group = trireme::testing::connect_thread(
          c10::make_intrusive<c10d::FileStore>(file, 2), rank, 2, std::chrono::seconds(60));
    } catch (const ConfigError& error) {
      return error.what();
    } catch (const std::exception& error) {
      return std::string("(another type of exception) ") + error.what();
    }
    return "(nothing was thrown)";
  };
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(message_of_rank(1).find("is in process") == std::string::npos ? 1 : 0);
  }
  EXPECT_THAT(message_of_rank(0),
              AllOf(HasSubstr("rank 1 of 'threads' is in process"), HasSubstr("shm or gloo")));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the other process was not refused";
}

}  // namespace
}  // namespace trireme::comm
