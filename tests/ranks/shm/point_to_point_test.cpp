// SPDX-License-Identifier: Apache-2.0
// Sends and receives between threads as ranks. What is in a message follows from who sent it and
// from its tag and length, so that every byte is checked.
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/ranks/shm/thread_ranks.h>
#include <tests/temporary_folder.h>
#include <tests/unit/comm/fold_reference.h>

#include <algorithm>
#include <array>
#include <latch>
#include <string>
#include <vector>

namespace trireme::shm {
namespace {

using std::chrono::milliseconds;
using test::Random;
using test::run_ranks;
using test::run_ranks_catching;
using ::testing::AllOf;
using ::testing::HasSubstr;
using trireme::test::message_of;

using Bytes = std::vector<std::byte>;
using Transfers = std::vector<std::shared_ptr<Transfer>>;
constexpr int kAny = PointToPoint::kAny;

std::byte byte_at(int source, std::int64_t tag, std::size_t index) {
  return static_cast<std::byte>(31 * index + index / 251 + 7 * static_cast<std::size_t>(source) +
                                13 * static_cast<std::size_t>(tag));
}

Bytes message(int source, std::int64_t tag, std::size_t bytes) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = byte_at(source, tag, i);
  return data;
}

// A receive with room behind it, which must not be written.
class Receive {
 public:
  Receive(Communicator& group, std::size_t bytes, int source, std::int64_t tag)
      : mail_(&group.point_to_point()), tag_(tag), data_(bytes + kBehind, kUntouched) {
    transfer_ = mail_->receive(data_.data(), bytes, source, tag);
  }
  /// Waits; returns who it came from.
  int check() {
    mail_->wait(*transfer_);
    Bytes expected = message(transfer_->source(), tag_, data_.size() - kBehind);
    expected.resize(data_.size(), kUntouched);
    EXPECT_TRUE(data_ == expected) << data_.size() - kBehind << " bytes with tag " << tag_
                                   << " from rank " << transfer_->source();
    return transfer_->source();
  }

 private:
  static constexpr std::size_t kBehind = 40;
  static constexpr std::byte kUntouched{0xa5};
  PointToPoint* mail_;
  std::int64_t tag_;
  Bytes data_;
  std::shared_ptr<Transfer> transfer_;
};

void send(Communicator& group, const Bytes& data, int peer, std::int64_t tag) {
  PointToPoint& mail = group.point_to_point();
  mail.wait(*mail.send(data.data(), data.size(), peer, tag));
}

std::string error_of(const std::exception_ptr& exception) {
  return message_of<CommError>([&] {
    if (exception) std::rethrow_exception(exception);
  });
}

TEST(Messages, OfEveryLengthArriveWhole) {
  run_ranks(2, [](Communicator& group) {
    const std::size_t ring = group.member().layout().mailbox_bytes;
    const std::array<std::size_t, 14> lengths = {0,        1,        31,        32,           33,
                                                 1000,     0,        ring - 33, ring - 32,    ring,
                                                 ring + 1, ring - 1, 3 * ring,  5 * ring + 77};
    // There and back, three times, so that the rings end in the middle of headers and messages.
    for (std::int64_t tag = 0; tag < 3; ++tag) {
      for (const std::size_t bytes : lengths) {
        const Bytes own = message(group.rank(), tag, bytes);
        if (group.rank() == 0) send(group, own, 1, tag);
        EXPECT_EQ(Receive(group, bytes, 1 - group.rank(), tag).check(), 1 - group.rank());
        if (group.rank() == 1) send(group, own, 0, tag);
      }
    }
  });
}

TEST(Messages, OfNoBytesNeedNoMemory) {
  run_ranks(2, [](Communicator& group) {
    PointToPoint& mail = group.point_to_point();
    const int peer = 1 - group.rank();
    const auto sent = mail.send(nullptr, 0, peer, 5);
    const auto received = mail.receive(nullptr, 0, peer, 5);
    mail.wait(*sent);
    mail.wait(*received);
    EXPECT_TRUE(received->is_done());
  });
}

TEST(Messages, OfOneTagArriveInTheOrderInWhichTheyWereSent) {
  run_ranks(2, [](Communicator& group) {
    constexpr std::uint32_t kMessages = 500;
    PointToPoint& mail = group.point_to_point();
    std::vector<std::uint32_t> values(kMessages);
    Transfers transfers;
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      // Two tags, which are received one after the other.
      const std::uint32_t number = group.rank() == 0 ? i : i % 250 * 2 + i / 250;
      values[i] = group.rank() == 0 ? number : 0;
      transfers.push_back(group.rank() == 0 ? mail.send(&values[i], 4, 1, number % 2)
                                            : mail.receive(&values[i], 4, 0, number % 2));
    }
    for (const auto& transfer : transfers) mail.wait(*transfer);
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      EXPECT_EQ(values[i], group.rank() == 0 ? i : i % 250 * 2 + i / 250);
    }
  });
}

TEST(Messages, AreSetAsideUntilTheyAreAskedFor) {
  run_ranks(2, [](Communicator& group) {
    const std::size_t ring = group.member().layout().mailbox_bytes;
    const std::vector<std::size_t> lengths = {5, 2 * ring + 3, 0, ring, 100};
    if (group.rank() == 0) {
      std::vector<Bytes> messages;
      Transfers sent;
      for (std::size_t tag = 0; tag < lengths.size(); ++tag) {
        messages.push_back(message(0, static_cast<std::int64_t>(tag), lengths[tag]));
        sent.push_back(group.point_to_point().send(messages[tag].data(), lengths[tag], 1,
                                                   static_cast<std::int64_t>(tag)));
      }
      for (const auto& transfer : sent) group.point_to_point().wait(*transfer);
      return;
    }
    for (std::size_t tag = lengths.size(); tag-- > 0;) {
      Receive(group, lengths[tag], 0, static_cast<std::int64_t>(tag)).check();
    }
  });
}

TEST(Messages, WaitInTheMailboxWhileTheyFit) {
  std::latch has_sent(1);
  run_ranks(2, [&](Communicator& group) {
    PointToPoint& mail = group.point_to_point();
    const std::size_t ring = group.member().layout().mailbox_bytes;
    if (group.rank() == 0) {
      const Bytes data = message(0, 1, ring);
      EXPECT_TRUE(mail.send(data.data(), 100, 1, 1)->is_done());
      const auto longer = mail.send(data.data(), ring, 1, 1);
      EXPECT_FALSE(longer->is_done());
      EXPECT_TRUE(mail.progress()) << "it is not gone yet";
      has_sent.count_down();
      mail.wait(*longer);
      EXPECT_FALSE(mail.progress());
    } else {
      has_sent.wait();
      Receive(group, 100, 0, 1).check();
      Receive(group, ring, 0, 1).check();
    }
  });
}

TEST(Messages, FromAnyRankSayWhoSentThem) {
  constexpr int kSize = 4;
  static constexpr std::size_t kEach = 20;
  run_ranks(kSize, [](Communicator& group) {
    const std::size_t bytes = group.member().layout().mailbox_bytes / 3;
    if (group.rank() != 0) {
      const Bytes data = message(group.rank(), 3, bytes);
      for (std::size_t i = 0; i < kEach; ++i) send(group, data, 0, 3);
      send(group, message(group.rank(), 4, 8), 0, 4);
      return;
    }
    std::array<std::size_t, kSize> num_from = {};
    for (std::size_t i = 0; i < kEach * (kSize - 1); ++i) {
      ++num_from[static_cast<std::size_t>(Receive(group, bytes, kAny, 3).check())];
    }
    EXPECT_THAT(num_from, ::testing::ElementsAre(0, kEach, kEach, kEach));
    for (const int source : {2, 3, 1}) EXPECT_EQ(Receive(group, 8, source, 4).check(), source);
  });
}

TEST(Messages, BetweenAllPairsAtOnceKeepApart) {
  constexpr int kSize = 6;
  run_ranks(kSize, [](Communicator& group) {
    PointToPoint& mail = group.point_to_point();
    Random random(7);  // the same plan on all ranks
    std::vector<Bytes> messages;
    Transfers sent;
    std::vector<Receive> received;
    for (std::int64_t tag = 0; tag < 120; ++tag) {
      const auto from = static_cast<int>(random.below(kSize));
      const auto to = static_cast<int>(random.below(kSize));
      const std::size_t bytes = random.below(tag % 10 == 0 ? 300'000 : 3000);
      if (from == to) continue;
      if (from == group.rank()) {
        messages.push_back(message(from, tag, bytes));
        sent.push_back(mail.send(messages.back().data(), bytes, to, tag));
      } else if (to == group.rank()) {
        received.emplace_back(group, bytes, tag % 3 == 0 ? kAny : from, tag);
      }
    }
    std::reverse(received.begin(), received.end());
    for (Receive& receive : received) receive.check();
    for (const auto& transfer : sent) mail.wait(*transfer);
  });
}

TEST(Messages, OfSeveralThreadsOfARankPassBesideCollectives) {
  run_ranks(2, [](Communicator& group) {
    const int peer = 1 - group.rank();
    std::vector<std::jthread> threads;
    for (std::int64_t tag = 0; tag < 3; ++tag) {
      threads.emplace_back([&group, peer, tag] {
        for (std::size_t i = 0; i < 20; ++i) {
          const std::size_t bytes = i % 5 == 0 ? 400'000 : 10 * i;
          const Bytes data = message(group.rank(), tag, bytes);
          const auto sent = group.point_to_point().send(data.data(), bytes, peer, tag);
          Receive(group, bytes, peer, tag).check();
          group.point_to_point().wait(*sent);
        }
      });
    }
    for (std::int32_t i = 0; i < 200; ++i) {
      std::int32_t sum = i;
      group.all_reduce(&sum, &sum, 1, DataType::kInt32);
      EXPECT_EQ(sum, 2 * i);
    }
  });
}

TEST(Messages, NeedAPeerInTheGroup) {
  run_ranks(2, [](Communicator& group) {
    PointToPoint& mail = group.point_to_point();
    for (const int peer : {-2, kAny, group.rank(), 2}) {
      EXPECT_THAT(message_of<UsageError>([&] { mail.send(nullptr, 0, peer, 0); }),
                  AllOf(HasSubstr(join_message("send between rank ", group.rank(), " and rank ",
                                               peer, " of group 'group', which has ranks 0 to 1")),
                        HasSubstr("hint: name another rank")));
    }
    EXPECT_THROW(mail.receive(nullptr, 0, group.rank(), 0), UsageError);
    group.barrier();  // nothing has happened
  });
}

TEST(Messages, OfAnotherLengthThanExpectedFailTheGroup) {
  struct Case {
    std::size_t sent;
    std::size_t received;
    bool is_set_aside;
  };
  for (const Case& each : {Case{8, 12, false}, Case{12, 8, true}, Case{900'000, 4, false}}) {
    const auto thrown = run_ranks_catching(2, [&](Communicator& group) {
      if (group.rank() == 0) {
        const Bytes data(each.sent);
        group.point_to_point().send(data.data(), 0, 1, 6);
        const auto sent = group.point_to_point().send(data.data(), each.sent, 1, 5);
        group.point_to_point().send(data.data(), 0, 1, 7);
        group.point_to_point().wait(*sent);
        group.barrier();
      } else {
        if (each.is_set_aside) Receive(group, 0, 0, 7).check();
        Receive(group, 0, 0, 6).check();
        Receive(group, each.received, 0, 5).check();
      }
    });
    for (const std::exception_ptr& exception : thrown) {
      EXPECT_THAT(
          error_of(exception),
          AllOf(HasSubstr(join_message("rank 0 sent ", each.sent,
                                       " bytes with tag 5, and rank 1 receives ", each.received)),
                HasSubstr("hint: send and receive must have the same length")));
    }
  }
}

TEST(Messages, ThatDoNotComeAreAnErrorAtTheDeadline) {
  Options options = test::options_with(true);
  options.timeout = milliseconds(100);
  std::latch has_failed(1);
  const auto thrown = run_ranks_catching(
      2,
      [&](Communicator& group) {
        PointToPoint& mail = group.point_to_point();
        std::array<std::byte, 3> data = {};
        if (group.rank() == 1) {
          has_failed.wait();
          mail.send(data.data(), 3, 0, 1);
          return;
        }
        const auto expected = mail.receive(data.data(), 3, 1, 1, "activations");
        const auto other = mail.receive(data.data(), 3, kAny, 2);
        const std::string first = message_of<CommError>([&] { mail.wait(*expected); });
        EXPECT_THAT(
            first,
            AllOf(HasSubstr("receive from rank 1 of 3 uint8, number 1 of group 'group' on "
                            "rank 0 of 2 failed after "),
                  HasSubstr("rank 1 did not come within the timeout of 0.1 s while rank 0 waited"),
                  HasSubstr("rank 0: is in receive from any rank of 3 uint8")));
        // It ends all transfers, and stays.
        EXPECT_TRUE(other->is_done());
        EXPECT_EQ(message_of<CommError>([&] { mail.wait(*expected); }), first);
        EXPECT_EQ(message_of<CommError>([&] { mail.wait(*other); }), first);
        has_failed.count_down();
      },
      options);
  EXPECT_EQ(thrown[0], nullptr);
  EXPECT_THAT(error_of(thrown[1]), HasSubstr("rank 1 did not come within the timeout of 0.1 s"));
}

TEST(Messages, OfARankThatLeftStillArrive) {
  std::latch has_left(1);
  test::ThreadRendezvousStore store;
  test::rethrow_first(test::run_threads(2, [&](int rank) {
    auto group = Communicator::connect(rank, 2, store, test::options_with(true));
    const Bytes data = message(1, 9, 3000);
    if (rank == 1) {
      send(*group, data, 0, 9);
      group.reset();
      has_left.count_down();
      return;
    }
    has_left.wait();
    Receive(*group, data.size(), 1, 9).check();
    EXPECT_THAT(message_of<CommError>([&] { Receive(*group, 1, 1, 9).check(); }),
                HasSubstr("rank 1 left the group while rank 0 waited for it"));
  }));
}

TEST(Messages, ForARankThatLeftAreAnError) {
  const auto thrown = run_ranks_catching(3, [](Communicator& group) {
    const Bytes data(2 * group.member().layout().mailbox_bytes);
    if (group.rank() == 0) {
      // Rank 2 could still bring this one, and not the one that is waited for.
      Bytes other(1);
      group.point_to_point().receive(other.data(), 1, 2, 7);
      send(group, data, 1, 0);
    }
    if (group.rank() == 2) Receive(group, 1, 0, 0).check();
  });
  EXPECT_EQ(thrown[1], nullptr);
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_THAT(error_of(thrown[rank]), HasSubstr("rank 1 left the group while rank 0 waited"));
  }
}

TEST(Messages, ThatArePendingWhenAnExceptionComesDoNotHoldItUp) {
  // The rank that threw used to wait in its destructors until the deadline, and the other one was
  // told that it had not come.
  for (const bool sends : {false, true}) {
    Bytes data(1 << 20);
    const auto thrown = run_ranks_catching(3, [&](Communicator& group) {
      if (group.rank() == 1) {
        PointToPoint& mail = group.point_to_point();
        const auto transfer = sends ? mail.send(data.data(), data.size(), 2, 0)
                                    : mail.receive(data.data(), data.size(), 2, 0);
        group.transfers().submit([&mail, transfer] { mail.wait(*transfer); });
        throw std::runtime_error("out of data");
      }
      group.barrier();
    });
    for (const std::size_t rank : {0U, 2U}) {
      EXPECT_THAT(error_of(thrown[rank]),
                  HasSubstr("rank 1 left the group by an exception, before what it had started "
                            "there was done"));
    }
  }
}

TEST(Messages, ThatNobodyWaitsForDoNotHoldUpARankThatLeaves) {
  for (const bool sends : {false, true}) {
    Bytes data(1 << 20);
    std::shared_ptr<Transfer> transfer;
    const auto thrown = run_ranks_catching(3, [&](Communicator& group) {
      if (group.rank() == 1) {
        PointToPoint& mail = group.point_to_point();
        transfer = sends ? mail.send(data.data(), data.size(), 2, 0)
                         : mail.receive(data.data(), data.size(), 2, 0);
        group.transfers().submit([&mail, transfer] { mail.wait(*transfer); });
        return;
      }
      group.barrier();
    });
    EXPECT_EQ(thrown[1], nullptr);
    for (const std::size_t rank : {0U, 2U}) {
      EXPECT_THAT(error_of(thrown[rank]), HasSubstr("rank 1 left the group while rank "));
    }
    ASSERT_TRUE(transfer->is_done());
    EXPECT_THAT(error_of(transfer->error()),
                sends ? HasSubstr("rank 1 left the group while rank ")
                      : HasSubstr("was dropped on rank 1 of 3 before a message came"));
  }
}

TEST(Messages, OfALengthThatWasSentBeforeItsRankLeftArriveWhole) {
  // More than the mailbox holds: the sender is leaving already, and goes on sending.
  std::latch is_leaving(1);
  run_ranks(2, [&](Communicator& group) {
    PointToPoint& mail = group.point_to_point();
    static const Bytes data = message(1, 3, 3'000'000);
    if (group.rank() == 1) {
      const auto transfer = mail.send(data.data(), data.size(), 0, 3);
      group.transfers().submit([&mail, transfer] { mail.wait(*transfer); });
      is_leaving.count_down();
      return;
    }
    is_leaving.wait();
    Receive(group, data.size(), 1, 3).check();
  });
}

TEST(Messages, AreNotReadFromAMailboxThatSaysMoreThanItHolds) {
  for (const bool sends : {false, true}) {
    const auto thrown = run_ranks_catching(2, [&](Communicator& group) {
      group.barrier();
      if (group.rank() == 1) {
        Mailbox& theirs = group.member().mailbox(sends ? 0 : 1, sends ? 1 : 0);
        theirs.written.store(sends ? 0 : std::uint64_t{1} << 40);
        theirs.read.store(sends ? std::uint64_t{1} << 40 : 0);
      }
      group.barrier();
      if (group.rank() == 1) return;
      Bytes data(100);
      PointToPoint& mail = group.point_to_point();
      mail.wait(sends ? *mail.send(data.data(), data.size(), 1, 0)
                      : *mail.receive(data.data(), data.size(), 1, 0));
    });
    EXPECT_THAT(error_of(thrown[0]),
                sends ? HasSubstr("rank 1 has read more than it was sent")
                      : HasSubstr("rank 1 has sent more at once than its mailbox holds"));
  }
}

TEST(Messages, AreNotReadWhereThereIsLessThanAHeader) {
  const auto thrown = run_ranks_catching(2, [&](Communicator& group) {
    group.barrier();
    if (group.rank() == 1) group.member().mailbox(1, 0).written.store(1);
    group.barrier();
    if (group.rank() == 1) return;
    Bytes data(100);
    PointToPoint& mail = group.point_to_point();
    mail.wait(*mail.receive(data.data(), data.size(), 1, 0));
  });
  EXPECT_THAT(error_of(thrown[0]), HasSubstr("rank 1 has sent less than a header"));
}

TEST(Messages, AtTheDeadlineNameTheirOwnPeer) {
  // Another message was under way to rank 1, which is not late: rank 1 used to be named.
  Options options = test::options_with(true);
  options.timeout = milliseconds(400);
  std::latch has_failed(1);
  const auto thrown = run_ranks_catching(
      3,
      [&](Communicator& group) {
        if (group.rank() != 0) return has_failed.wait();
        PointToPoint& mail = group.point_to_point();
        Bytes sent(1 << 20);
        Bytes received(8);
        const auto sending = mail.send(sent.data(), sent.size(), 1, 0);
        const auto receiving = mail.receive(received.data(), received.size(), 2, 0);
        try {
          mail.wait(*receiving);
        } catch (const CommError&) {
          has_failed.count_down();
          throw;
        }
      },
      options);
  EXPECT_THAT(error_of(thrown[0]), HasSubstr("rank 2 did not come within the timeout of 0.4 s"));
}

TEST(Messages, FromAnyRankMayComeUntilTheLastHasLeft) {
  test::ThreadRendezvousStore store;
  std::latch has_left(1);
  test::rethrow_first(test::run_threads(3, [&](int rank) {
    auto group = Communicator::connect(rank, 3, store, test::options_with(true));
    if (rank == 1) {
      group.reset();
      has_left.count_down();
    } else if (rank == 2) {
      has_left.wait();
      send(*group, message(2, 1, 5), 0, 1);
      group.reset();
    } else {
      EXPECT_EQ(Receive(*group, 5, kAny, 1).check(), 2);
      EXPECT_THAT(message_of<CommError>([&] { Receive(*group, 5, kAny, 1).check(); }),
                  HasSubstr("ranks 1, 2 left the group while rank 0 waited for it"));
    }
  }));
}

}  // namespace
}  // namespace trireme::shm
