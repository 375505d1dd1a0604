// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/store/rendezvous.h>

#include <trireme/base/error.h>
#include <trireme/launch/listening_socket.h>
#include <trireme/launch/store/store.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace trireme::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

Identity identity_of(int rank, int size) {
  Identity identity;
  identity.rank = rank;
  identity.world_size = size;
  return identity;
}

template <typename Expected>
std::string message_of_meeting(c10d::Store& store, const Identity& identity, const PeerInfo& own,
                               milliseconds timeout) {
  try {
    rendezvous(store, identity, own, timeout);
  } catch (const Expected& error) {
    return error.what();
  }
  return "(they met)";
}

TEST(Rendezvous, ReturnsEveryRanksEntryByRank) {
  c10d::HashStore store;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 5; ++rank) {
    threads.emplace_back([&, rank] {
      const Identity identity = identity_of(rank, 5);
      PeerInfo own = own_peer_info(identity);
      own.process_id = 100 + rank;
      own.host = "host with spaces " + std::to_string(rank);
      const auto all = rendezvous(store, identity, own, std::chrono::seconds(60));
      ASSERT_EQ(all.size(), 5U);
      EXPECT_EQ(all[3].process_id, 103);
      EXPECT_EQ(all[4].host, "host with spaces 4");
      EXPECT_EQ(all[0].machine, own.machine);
    });
  }
}

TEST(Rendezvous, ListsWhoCameAndWhoDidNotAfterTheDeadline) {
  c10d::HashStore store;
  const Identity early = identity_of(1, 6);
  std::jthread other([&] {
    message_of_meeting<CommError>(store, early, own_peer_info(early), milliseconds(300));
  });
  const Identity identity = identity_of(0, 6);
  const auto message =
      message_of_meeting<CommError>(store, identity, own_peer_info(identity), milliseconds(300));
  EXPECT_THAT(message, AllOf(HasSubstr("0.3 s"), HasSubstr("came: 0-1"), HasSubstr("missing: 2-5"),
                             HasSubstr("--timeout")));
}

TEST(Rendezvous, NamesARankThatEndedWithoutComing) {
  c10d::HashStore store;
  static_cast<c10d::Store&>(store).set(exit_key(1), "exited with code 0");
  const Identity identity = identity_of(0, 2);
  const auto message = message_of_meeting<CommError>(store, identity, own_peer_info(identity),
                                                     std::chrono::hours(1));
  EXPECT_THAT(message, HasSubstr("rank 1 exited with code 0 without calling trireme::init()"));
}

// A file store signals "not yet" by another exception than the others.
TEST(Rendezvous, WaitsForALateRankOverAFileStore) {
  const test::TemporaryFolder folder;
  const std::string file = (folder.path() / "store").string();
  std::jthread late([&] {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(1500));  // longer than the store's own shortest wait
    c10d::FileStore store(file, 2);
    const Identity identity = identity_of(1, 2);
    rendezvous(store, identity, own_peer_info(identity), std::chrono::seconds(60));
  });
  c10d::FileStore store(file, 2);
  const Identity identity = identity_of(0, 2);
  EXPECT_EQ(rendezvous(store, identity, own_peer_info(identity), std::chrono::seconds(60)).size(),
            2U);
}

TEST(Rendezvous, ListsWhoIsMissingOverAFileStore) {
  const test::TemporaryFolder folder;
  c10d::FileStore store((folder.path() / "store").string(), 2);
  const Identity identity = identity_of(0, 2);
  EXPECT_THAT(
      message_of_meeting<CommError>(store, identity, own_peer_info(identity), milliseconds(1200)),
      AllOf(HasSubstr("came: 0"), HasSubstr("missing: 1")));
}

TEST(Rendezvous, RefusesASecondProcessOfTheSameRank) {
  c10d::HashStore store;
  const Identity identity = identity_of(0, 1);
  rendezvous(store, identity, own_peer_info(identity), std::chrono::seconds(1));
  const auto message = message_of_meeting<ConfigError>(store, identity, own_peer_info(identity),
                                                       std::chrono::seconds(1));
  EXPECT_THAT(message, AllOf(HasSubstr("claims rank 0"), HasSubstr("RANK")));
}

TEST(Rendezvous, NoticesWorldSizesThatDifferBeforeTheDeadline) {
  c10d::HashStore store;
  const Identity three = identity_of(1, 3);  // waits for rank 2, which rank 0 does not know of
  std::jthread other([&] {
    EXPECT_THAT(
        message_of_meeting<ConfigError>(store, three, own_peer_info(three), std::chrono::hours(1)),
        HasSubstr("rank 0"));
  });
  const Identity two = identity_of(0, 2);
  const auto message =
      message_of_meeting<ConfigError>(store, two, own_peer_info(two), std::chrono::hours(1));
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1"), HasSubstr("counts 3 ranks, rank 0 counts 2"),
                             HasSubstr("WORLD_SIZE")));
}

TEST(Rendezvous, RefusesAnotherLibTorch) {
  c10d::HashStore store;
  const Identity first = identity_of(0, 2);
  PeerInfo old = own_peer_info(first);
  old.torch_version = "1.0";
  std::jthread other(
      [&] { message_of_meeting<ConfigError>(store, first, old, std::chrono::hours(1)); });
  const Identity identity = identity_of(1, 2);
  const auto message = message_of_meeting<ConfigError>(store, identity, own_peer_info(identity),
                                                       std::chrono::hours(1));
  EXPECT_THAT(message, AllOf(HasSubstr("rank 0"), HasSubstr("LibTorch 1.0")));
}

TEST(MakeStore, NeedsAnAddressWhereRanksAreOnSeveralHosts) {
  Identity identity = identity_of(0, 4);
  identity.local_world_size = 2;
  identity.launcher = "openmpi";
  identity.job = "job";
  try {
    make_store(identity, 0, milliseconds(100));
    FAIL() << "a store was made";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("openmpi"), HasSubstr("MASTER_ADDR"), HasSubstr("mpirun -x")));
  }
}

TEST(MakeStore, TellsWhoHoldsThePort) {
  const ListeningSocket taken = listen_on(Reach::kLoopback, std::nullopt);
  Identity identity = identity_of(0, 2);
  identity.master_address = "127.0.0.1";
  identity.master_port = taken.port;
  try {
    make_store(identity, 0, milliseconds(2000));
    FAIL() << "the port was free";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("MASTER_PORT " + std::to_string(taken.port)),
                                    HasSubstr(std::to_string(::getpid())), HasSubstr("free port")));
  }
}

TEST(MakeStore, NamesThePlaceThatCannotBeReached) {
  int port = 0;
  {
    const ListeningSocket closed_again = listen_on(Reach::kLoopback, std::nullopt);
    port = closed_again.port;
  }
  Identity identity = identity_of(1, 2);
  identity.master_address = "127.0.0.1";
  identity.master_port = port;
  try {
    make_store(identity, 0, milliseconds(300));
    FAIL() << "somebody answered";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("127.0.0.1:" + std::to_string(port)),
                                    HasSubstr("0.3 s"), HasSubstr("MASTER_ADDR")));
  }
}

// Nobody was told that the store takes values from anybody.
TEST(Store, WarnsWhereOtherHostsCanWriteToItWithoutASecret) {
  for (const std::string address : {"127.0.0.1", "localhost", "0.0.0.0"}) {
    for (const std::string secret : {"", "0123456789abcdef"}) {
      Identity identity = identity_of(0, 2);
      identity.local_world_size = 2;
      identity.launcher = "torchrun";
      identity.master_address = address;
      identity.master_port = listen_on(Reach::kLoopback, std::nullopt).port;
      identity.secret = secret;
      ::testing::internal::CaptureStderr();
      const auto store = make_store(identity, 0, std::chrono::seconds(60));
      const std::string said = ::testing::internal::GetCapturedStderr();
      store->set("key", std::vector<std::uint8_t>{1});
      EXPECT_EQ(store->get("key"), std::vector<std::uint8_t>{1});
      if (address == "0.0.0.0" && secret.empty()) {
        EXPECT_THAT(said, AllOf(HasSubstr("no TRIREME_SECRET is set"), HasSubstr("0.0.0.0:"),
                                HasSubstr("openssl rand -hex 16")));
      } else {
        EXPECT_EQ(said, "");
      }
    }
  }
}

}  // namespace
}  // namespace trireme::launch
