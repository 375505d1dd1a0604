// SPDX-License-Identifier: Apache-2.0
// What the ranks of a group learn when one of them makes another call, leaves or does not come.
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <tests/ranks/shm/thread_ranks.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <array>
#include <latch>
#include <string>
#include <vector>

namespace trireme::shm {
namespace {

using std::chrono::milliseconds;
using test::run_ranks;
using test::run_ranks_catching;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using trireme::test::message_of;

using Thrown = std::vector<std::exception_ptr>;

// The failure that a rank was told of; a failure of the test where it was another one or none.
struct Told {
  std::string message = "(nothing was thrown)";
  CommFailure failure = {};
};
Told told(const std::exception_ptr& exception) {
  if (!exception) return {};
  try {
    std::rethrow_exception(exception);
  } catch (const CommError& error) {
    return {error.what(), error.failure()};
  } catch (const std::exception& error) {
    return {join_message("(another type of exception) ", error.what())};
  }
}

// A call of the group, with lengths that do not matter unless given.
using Action = void (*)(Communicator&);
struct Mismatch {
  std::string name;
  Action most;
  Action rank_1;
  std::string most_text;
  std::string rank_1_text;
};

template <std::size_t Count, DataType Type = DataType::kFloat32, ReduceOp Op = ReduceOp::kSum>
void all_reduce(Communicator& group) {
  std::vector<std::byte> data(Count * size_of(Type));
  group.all_reduce(data.data(), data.data(), Count, Type, {Op});
}
template <int Root>
void reduce(Communicator& group) {
  std::array<float, 4> data = {};
  group.reduce(data.data(), data.data(), 4, DataType::kFloat32, {}, Root);
}
template <std::size_t Bytes, int Root = 0>
void broadcast(Communicator& group) {
  std::vector<std::byte> data(Bytes);
  group.broadcast(data.data(), Bytes, Root);
}
template <std::size_t Bytes>
void all_gather(Communicator& group) {
  std::vector<std::byte> input(Bytes);
  std::vector<std::vector<std::byte>> pieces(3, input);
  const std::array<void*, 3> outputs = {pieces[0].data(), pieces[1].data(), pieces[2].data()};
  group.all_gather(input.data(), outputs, std::array<std::size_t, 3>{Bytes, Bytes, Bytes});
}
template <int Root>
void gather(Communicator& group) {
  std::array<std::byte, 3> data = {};
  const std::array<void*, 3> outputs = {&data[0], &data[1], &data[2]};
  std::byte input{};
  group.gather(&input, outputs, std::array<std::size_t, 3>{1, 1, 1}, Root);
}
template <std::size_t Bytes>
void scatter(Communicator& group) {
  std::vector<std::byte> data(Bytes);
  const std::array<const void*, 3> inputs = {data.data(), data.data(), data.data()};
  std::vector<std::byte> output(Bytes);
  group.scatter(inputs, output.data(), Bytes, 0);
}
template <std::size_t Count>
void reduce_scatter(Communicator& group) {
  std::vector<float> input(3 * Count);
  std::vector<float> output(Count);
  group.reduce_scatter(input.data(), output.data(), std::array<std::size_t, 3>{Count, Count, Count},
                       DataType::kFloat32);
}
void all_to_all(Communicator& group) {
  std::array<std::byte, 3> sent = {};
  std::array<std::byte, 3> received = {};
  const std::array<const void*, 3> inputs = {&sent[0], &sent[1], &sent[2]};
  const std::array<void*, 3> outputs = {&received[0], &received[1], &received[2]};
  const std::array<std::size_t, 3> bytes = {1, 1, 1};
  group.all_to_all(inputs, bytes, outputs, bytes);
}
void barrier(Communicator& group) { group.barrier(); }

class Mismatches : public ::testing::TestWithParam<Mismatch> {};

TEST_P(Mismatches, AreToldToAllRanksWithBothCalls) {
  // The second barrier is for roots, which wait for nobody and learn of it at the next call.
  const Thrown thrown = run_ranks_catching(3, [](Communicator& group) {
    group.barrier();
    (group.rank() == 1 ? GetParam().rank_1 : GetParam().most)(group);
    group.barrier();
  });
  for (const std::exception_ptr& exception : thrown) {
    EXPECT_THAT(
        told(exception).message,
        AllOf(HasSubstr("the ranks make different calls: rank "), HasSubstr(GetParam().most_text),
              // Whoever finds it names itself first: "rank r called …; rank s …".
              AnyOf(HasSubstr("rank 1 " + GetParam().rank_1_text),
                    HasSubstr("rank 1 called " + GetParam().rank_1_text)),
              HasSubstr("hint: every rank of a group must make the same calls")));
    EXPECT_NE(told(exception).failure.peer, told(exception).failure.rank);
  }
  EXPECT_EQ(told(thrown[0]).failure.rank, 0);
  EXPECT_EQ(told(thrown[2]).failure.rank, 2);
}

TEST(WrongArguments, AreRefusedBeforeAnythingHappens) {
  run_ranks(2, [](Communicator& group) {
    std::array<std::byte, 4> data = {};
    const std::array<void*, 1> outputs = {data.data()};
    const std::array<std::size_t, 1> bytes = {4};
    EXPECT_THROW(group.all_gather(data.data(), outputs, bytes), UsageError);
    EXPECT_THROW(group.reduce_scatter(data.data(), data.data(), bytes, DataType::kFloat32),
                 UsageError);
    group.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Of, Mismatches,
    ::testing::Values(
        Mismatch{"Kind", barrier, all_reduce<4>, "barrier, number 2",
                 "all-reduce (sum) of 4 float32, number 2"},
        Mismatch{"KindOfTwoSteps", all_to_all, all_gather<1>, "all-to-all of 0 uint8, number 2",
                 "all-gather of 3 uint8, number 2"},
        Mismatch{"Count", all_reduce<4>, all_reduce<5>, "of 4 float32, number 2",
                 "all-reduce (sum) of 5 float32, number 2"},
        Mismatch{"CountOfChunks", all_reduce<100'000>, all_reduce<300'000>,
                 "of 100000 float32, number 2", "all-reduce (sum) of 300000 float32, number 2"},
        Mismatch{"CountOfAnotherAlgorithm", all_reduce<100'000>, all_reduce<1>,
                 "of 100000 float32, number 2", "all-reduce (sum) of 1 float32, number 2"},
        Mismatch{"Type", all_reduce<4>, all_reduce<4, DataType::kInt32>, "of 4 float32, number 2",
                 "all-reduce (sum) of 4 int32, number 2"},
        Mismatch{"Reduction", all_reduce<4>, all_reduce<4, DataType::kFloat32, ReduceOp::kProduct>,
                 "(sum) of 4 float32, number 2", "all-reduce (product) of 4 float32, number 2"},
        Mismatch{"RootOfReduce", reduce<0>, reduce<2>,
                 "reduce (sum) with root 0 of 4 float32, number 2",
                 "reduce (sum) with root 2 of 4 float32, number 2"},
        Mismatch{"RootOfGather", gather<0>, gather<1>, "gather with root 0 of 3 uint8, number 2",
                 "gather with root 1 of 3 uint8, number 2"},
        Mismatch{"RootOfBroadcast", broadcast<8, 0>, broadcast<8, 2>,
                 "broadcast with root 0 of 8 uint8, number 2",
                 "broadcast with root 2 of 8 uint8, number 2"},
        Mismatch{"BytesOfBroadcast", broadcast<8>, broadcast<2'000'000>,
                 "broadcast with root 0 of 8 uint8, number 2",
                 "broadcast with root 0 of 2000000 uint8, number 2"},
        Mismatch{"BytesOfScatter", scatter<8>, scatter<9>,
                 "scatter with root 0 of 8 uint8, number 2",
                 "scatter with root 0 of 9 uint8, number 2"},
        Mismatch{"BytesOfAllGather", all_gather<10>, all_gather<500'000>,
                 "all-gather of 30 uint8, number 2", "all-gather of 1500000 uint8, number 2"},
        Mismatch{"CountOfReduceScatter", reduce_scatter<4>, reduce_scatter<7>,
                 "reduce-scatter (sum) of 12 float32, number 2",
                 "reduce-scatter (sum) of 21 float32, number 2"}),
    [](const auto& each) { return each.param.name; });

TEST(Failure, OfSplitSizesOfAnAllToAllNamesBoth) {
  const Thrown thrown = run_ranks_catching(2, [](Communicator& group) {
    std::array<std::byte, 8> sent = {};
    std::array<std::byte, 8> received = {};
    const std::array<const void*, 2> inputs = {&sent[0], &sent[4]};
    const std::array<void*, 2> outputs = {&received[0], &received[4]};
    const std::array<std::size_t, 2> sizes = {2, 4};
    const std::array<std::size_t, 2> expected = {group.rank() == 0 ? 2U : 4U, 3};
    group.all_to_all(inputs, sizes, outputs, expected);
    group.barrier();
  });
  // Rank 0 gets 2 bytes from rank 1 and expects 3.
  for (const std::exception_ptr& exception : thrown) {
    EXPECT_THAT(told(exception).message,
                HasSubstr("rank 1 sends 2 bytes to rank 0, which expects 3"));
  }
}

TEST(Failure, OfTwoRootsIsNoticedInTheNextCall) {
  // Each of them takes itself for the root of the broadcast, and waits for nobody.
  const Thrown thrown = run_ranks_catching(2, [](Communicator& group) {
    std::array<std::byte, 8> data = {};
    group.broadcast(data.data(), data.size(), group.rank());
    group.barrier();
  });
  for (const std::exception_ptr& exception : thrown) {
    EXPECT_THAT(told(exception).message,
                AllOf(HasSubstr("an earlier call was not the same: rank "),
                      HasSubstr("broadcast with root 0 of 8 uint8, number 1"),
                      HasSubstr("broadcast with root 1 of 8 uint8, number 1")));
  }
}

TEST(Failure, OfBroadcastsThatTookDifferentNumbersOfStepsIsNoticed) {
  // Nobody will write the slot that anybody waits for afterwards.
  const Thrown thrown = run_ranks_catching(3, [](Communicator& group) {
    std::vector<std::byte> data(group.rank() == 0 ? 4 : 1 << 20);
    group.broadcast(data.data(), data.size(), group.rank() == 0 ? 0 : 2);
    group.barrier();
  });
  for (const std::exception_ptr& exception : thrown) {
    EXPECT_THAT(told(exception).message,
                AllOf(HasSubstr("the ranks make different calls: rank "),
                      HasSubstr("broadcast with root 0 of 4 uint8, number 1"),
                      HasSubstr("broadcast with root 2 of 1048576 uint8, number 1")));
  }
}

TEST(Failure, OfOtherTypesOfAsManyBytesIsNoticed) {
  const Thrown thrown = run_ranks_catching(2, [](Communicator& group) {
    std::array<std::byte, 8> data = {};
    group.broadcast(data.data(), data.size(), 0, {},
                    group.rank() == 0 ? DataType::kFloat32 : DataType::kFloat64);
    group.barrier();
  });
  for (const std::exception_ptr& exception : thrown) {
    EXPECT_THAT(told(exception).message,
                AllOf(HasSubstr("of 2 float32"), HasSubstr("of 1 float64")));
  }
}

TEST(Failure, OfOtherSplitsWithTheSameSumIsNoticed) {
  const Thrown thrown = run_ranks_catching(2, [](Communicator& group) {
    std::array<std::byte, 4> input = {};
    std::array<std::byte, 8> output = {};
    const std::array<void*, 2> outputs = {&output[0], &output[4]};
    const bool is_first = group.rank() == 0;
    const std::array<std::size_t, 2> bytes = {is_first ? 1U : 2U, is_first ? 2U : 1U};
    group.all_gather(input.data(), outputs, bytes);
  });
  for (const std::exception_ptr& exception : thrown) {
    EXPECT_THAT(told(exception).message, HasSubstr("other split sizes or factors"));
  }
}

TEST(Failure, OfARankThatLeftNamesIt) {
  for (const bool yields : {false, true}) {
    const Thrown thrown = run_ranks_catching(
        3,
        [](Communicator& group) {
          group.barrier("before");
          if (group.rank() == 1) return;
          std::array<float, 3> data = {};
          group.all_reduce(data.data(), data.data(), 3, DataType::kFloat32, {}, "gradients");
        },
        test::options_with(yields, "data"));
    EXPECT_EQ(thrown[1], nullptr);
    for (const int rank : {0, 2}) {
      const Told each = told(thrown[static_cast<std::size_t>(rank)]);
      EXPECT_THAT(
          each.message,
          AllOf(HasSubstr("all-reduce (sum) of 3 float32, number 2"),
                HasSubstr(join_message(" of group 'data' on rank ", rank, " of 3 failed")),
                HasSubstr("rank 1 left the group while rank "),
                AnyOf(HasSubstr("rank 1: has done barrier, number 1 ('before'), and has left"),
                      HasSubstr(" says what each rank did last")),  // the other one
                HasSubstr("hint: it returned or dropped its group"),
                HasSubstr("(Remainder::kWrap or kDrop), or let those that are done call join()"),
                HasSubstr("cannot be used any more")));
      EXPECT_EQ(each.failure.rank, rank);
      EXPECT_EQ(each.failure.peer, 1);
      EXPECT_EQ(each.failure.operation, "all-reduce");
      EXPECT_EQ(each.failure.sequence, 2U);
      EXPECT_GT(each.failure.elapsed.count(), 0);
    }
  }
}

TEST(Failure, OfARankThatThrewNamesIt) {
  const Thrown thrown = run_ranks_catching(2, [](Communicator& group) {
    if (group.rank() == 0) throw std::runtime_error("out of data");
    group.barrier();
  });
  EXPECT_THAT(told(thrown[0]).message, HasSubstr("out of data"));
  EXPECT_THAT(told(thrown[1]).message,
              AllOf(HasSubstr("rank 0 left the group while rank 1 waited for it"),
                    HasSubstr("rank 0: nothing yet, and has left")));
}

TEST(Failure, OfARankThatCannotGoOnIsToldInItsWordsThoughItStays) {
  std::latch have_failed(2);
  const Thrown thrown = run_ranks_catching(3, [&](Communicator& group) {
    group.barrier();
    if (group.rank() == 1) {
      group.member().abort("rank 1 cannot read its data");
      group.member().abort("nor anything else");
      have_failed.wait();
    }
    try {
      group.barrier();
    } catch (const CommError&) {
      if (group.rank() != 1) have_failed.count_down();
      throw;
    }
  });
  for (const std::exception_ptr& exception : thrown) {
    EXPECT_THAT(told(exception).message,
                AllOf(HasSubstr("rank 1 cannot read its data"), Not(HasSubstr("anything else")),
                      HasSubstr("cannot be used any more")));
    EXPECT_EQ(told(exception).failure.peer, 1);
  }
}

TEST(Failure, IsNotWhatARankLeavesBehindThatDidItsPart) {
  // Ranks 1 and 2 have left before rank 0 looks at what they sent.
  for (int round = 0; round < 10; ++round) {
    std::latch is_gone(2);
    test::ThreadRendezvousStore store;
    test::rethrow_first(test::run_threads(3, [&](int rank) {
      auto group = Communicator::connect(rank, 3, store, test::options_with(true));
      std::int32_t value = rank;
      if (rank == 0) is_gone.wait();
      group->reduce(&value, &value, 1, DataType::kInt32, {}, 0);
      if (rank == 0) {
        EXPECT_EQ(value, 3);
        return;
      }
      group.reset();
      is_gone.count_down();
    }));
  }
}

TEST(Failure, AtTheDeadlineNamesWhoIsMissing) {
  std::latch have_failed(2);
  Options options = test::options_with(true, "late");
  options.timeout = milliseconds(300);
  const Thrown thrown = run_ranks_catching(
      3,
      [&](Communicator& group) {
        group.barrier("first");
        if (group.rank() == 1) have_failed.wait();
        try {
          group.barrier("second");
        } catch (const CommError&) {
          if (group.rank() != 1) have_failed.count_down();
          throw;
        }
      },
      options);
  for (const int rank : {0, 2}) {
    const Told each = told(thrown[static_cast<std::size_t>(rank)]);
    EXPECT_THAT(each.message,
                AllOf(HasSubstr("rank 1 did not come within the timeout of 0.3 s while rank "),
                      AnyOf(HasSubstr("rank 1: has done barrier, number 1 ('first')"),
                            HasSubstr(" says what each rank did last")),
                      HasSubstr("TRIREME_TIMEOUT"), Not(HasSubstr("ended")), Not(HasSubstr("left")),
                      Not(HasSubstr("stopped"))));
    EXPECT_EQ(each.failure.peer, 1);
  }
  // The late one learns why its group is gone.
  EXPECT_THAT(told(thrown[1]).message,
              AllOf(HasSubstr("barrier, number 2 of group 'late' on rank 1 of 3"),
                    HasSubstr("rank 1 did not come within the timeout of 0.3 s")));
  EXPECT_NE(told(thrown[1]).failure.peer, 1);
}

TEST(Failure, AtTheDeadlineNamesTheRankThatOneWaitsForInAnotherGroup) {
  // Rank 0 waits for rank 1 in one group, which waits for rank 2 in another one: rank 1 used to be
  // named.
  test::ThreadRendezvousStore meetings[2];
  std::latch waits(1);
  std::latch have_failed(1);
  const Thrown thrown = test::run_threads(3, [&](int rank) {
    Options first = test::options_with(true, "first");
    first.world_ranks = {0, 1};
    first.timeout = milliseconds(4000);  // what is waited for elsewhere is told after a second
    Options second = test::options_with(true, "second");
    second.world_ranks = {1, 2};
    const auto one = rank < 2 ? Communicator::connect(rank, 2, meetings[0], first) : nullptr;
    const auto two = rank > 0 ? Communicator::connect(rank - 1, 2, meetings[1], second) : nullptr;
    if (rank == 1) waits.count_down();
    if (rank == 2) have_failed.wait();
    if (rank == 0) {
      waits.wait();
      try {
        one->barrier();
      } catch (const CommError&) {
        have_failed.count_down();
        throw;
      }
    } else {
      two->barrier();
    }
  });
  EXPECT_THAT(
      told(thrown[0]).message,
      AllOf(HasSubstr(
                "rank 2 of the world did not come within the timeout of 4 s while rank 0 waited "
                "for rank 1, which waits in another group"),
            HasSubstr("TRIREME_TIMEOUT")));
  EXPECT_EQ(thrown[1], nullptr);
  EXPECT_EQ(thrown[2], nullptr);
}

TEST(Failure, OfTwoGroupsInAnotherOrderIsToldAsSuch) {
  test::ThreadRendezvousStore meetings[2];
  const Thrown thrown = test::run_threads(2, [&](int rank) {
    Options options = test::options_with(true, "one");
    options.timeout = milliseconds(4000);
    const auto one = Communicator::connect(rank, 2, meetings[0], options);
    const auto two = Communicator::connect(rank, 2, meetings[1], options);
    (rank == 0 ? one : two)->barrier();
    (rank == 0 ? two : one)->barrier();
  });
  // The one whose deadline comes first tells it; the other one may meet its end.
  EXPECT_THAT(told(thrown[0]).message + told(thrown[1]).message,
              HasSubstr("ranks wait for each other in several groups"));
}

TEST(Failure, OfRanksThatWaitForEachOtherNamesThemAll) {
  Options options = test::options_with(true);
  options.timeout = milliseconds(2000);  // within which both have begun
  const Thrown thrown = run_ranks_catching(
      2,
      [&](Communicator& group) {
        // Both receive first.
        std::array<std::byte, 8> data = {};
        PointToPoint& mail = group.point_to_point();
        mail.wait(*mail.receive(data.data(), data.size(), 1 - group.rank(), 0));
      },
      options);
  for (const std::exception_ptr& exception : thrown) {
    EXPECT_THAT(
        told(exception).message,
        HasSubstr(
            "ranks 0, 1 wait for each other: none of them came forward within the timeout of 2 s"));
  }
}

TEST(Failure, IsRepeatedByEveryLaterCall) {
  const Thrown thrown = run_ranks_catching(2, [](Communicator& group) {
    if (group.rank() == 1) return;
    for (int i = 0; i < 3; ++i) {
      try {
        all_reduce<4>(group);
        ADD_FAILURE() << "went on";
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("rank 1 left the group"));
        EXPECT_EQ(error.failure().sequence, static_cast<std::uint64_t>(i) + 1);
      }
    }
    EXPECT_TRUE(group.member().has_failed());
  });
  test::rethrow_first(thrown);
}

TEST(Failure, IsNotWhatAForkedChildMakesOfAGroup) {
  // A group of one rank: the child of a process with threads may do little.
  test::ThreadRendezvousStore store;
  auto group = Communicator::connect(0, 1, store, {});
  group->barrier();
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string message = message_of<UsageError>([&] { group->barrier(); });
    const bool is_right = message.find(
                              "barrier of group 'group' in a process that was forked "
                              "off rank 0") != std::string::npos;
    group.reset();  // must not tell the others that rank 0 has left
    ::_exit(is_right ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(group->member().block(0).state.load(), static_cast<std::uint32_t>(RankState::kJoined));
  group->barrier();
}

TEST(Failure, IsWhatEveryUseOfAGroupMeetsInAForkedChildAndItsParentDoesNot) {
  test::ThreadRendezvousStore store;
  std::latch was_forked(1);
  test::rethrow_first(test::run_threads(2, [&](int rank) {
    auto group = Communicator::connect(rank, 2, store, test::options_with(true));
    PointToPoint& mail = group->point_to_point();
    // A queue's thread is there, and not in the child; for rank 0 it is in the middle of something.
    std::latch is_busy(1);
    const auto busy = group->transfers().submit([&] {
      is_busy.count_down();
      if (rank == 0) was_forked.wait();
    });
    is_busy.wait();
    std::int32_t sum = rank + 1;
    std::array<std::byte, 8> data = {};
    const auto shown =
        group->start_all_reduce(&sum, &sum, 1, DataType::kInt32, {}, "before the fork", nullptr);
    const auto expected = mail.receive(data.data(), data.size(), 1 - rank, 0);
    if (rank == 0) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(test::kDeadline.count());
        const auto is_refused = [](const auto& use) {
          return message_of<UsageError>(use).find("that was forked off rank 0") !=
                 std::string::npos;
        };
        const bool are_refused =
            is_refused([&] { group->barrier(); }) &&
            is_refused([&] { group->collectives().wait(*shown); }) &&
            is_refused([&] { mail.wait(*expected); }) &&
            is_refused([&] { all_reduce<4>(*group); }) &&
            is_refused([&] { mail.send(data.data(), data.size(), 1, 0); }) &&
            is_refused([&] { mail.receive(data.data(), data.size(), 1, 0); }) &&
            is_refused([&] { group->allocate(100); });
        group.reset();
        ::_exit(are_refused ? 0 : 1);
      }
      int status = -1;
      ::waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
      was_forked.count_down();
    } else {
      was_forked.wait();
    }
    group->collectives().wait(*shown);
    EXPECT_EQ(sum, 3);
    const std::array<std::byte, 8> sent = {std::byte{9}};
    mail.wait(*mail.send(sent.data(), sent.size(), 1 - rank, 0));
    mail.wait(*expected);
    EXPECT_EQ(data, sent);
  }));
}

TEST(Failure, OfAGroupLeavesOthersAlone) {
  std::array<test::ThreadRendezvousStore, 3> meetings;
  test::rethrow_first(test::run_threads(2, [&](int rank) {
    const auto whole = Communicator::connect(rank, 2, meetings[0], test::options_with(true));
    {
      const auto broken = Communicator::connect(rank, 2, meetings[1], test::options_with(true));
      try {
        rank == 0 ? broken->barrier() : all_reduce<1>(*broken);
        ADD_FAILURE() << "the mismatch was not noticed";
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("different calls"));
      }
      whole->barrier();
    }
    const auto anew = Communicator::connect(rank, 2, meetings[2], test::options_with(true));
    anew->barrier();
    whole->barrier();
  }));
}

}  // namespace
}  // namespace trireme::shm
