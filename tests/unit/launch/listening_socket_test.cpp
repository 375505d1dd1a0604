// SPDX-License-Identifier: Apache-2.0
// Listening sockets, and finding out who has one.
#include <trireme/launch/listening_socket.h>

#include <trireme/base/error.h>
#include <trireme/launch/port_owner.h>

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

namespace trireme::launch {
namespace {

using test::message_of;
using test::TemporaryFolder;
using testing::HasSubstr;

std::string this_process() { return "process " + std::to_string(::getpid()) + " (unit_launch)"; }

TEST(ListenOn, ChoosesAFreePortAndIsFoundAsItsOwner) {
  for (const Reach reach : {Reach::kLoopback, Reach::kAllInterfaces}) {
    const ListeningSocket socket = listen_on(reach, std::nullopt);
    EXPECT_GT(socket.port, 0);
    EXPECT_EQ(describe_port_owner(socket.port), this_process());
  }
}

TEST(ListenOn, SaysWhoHasThePort) {
  const ListeningSocket first = listen_on(Reach::kLoopback, std::nullopt);
  const std::string message =
      message_of<ConfigError>([&] { listen_on(Reach::kLoopback, first.port); });
  EXPECT_THAT(message,
              HasSubstr("port " + std::to_string(first.port) + " is in use by " + this_process()));
  EXPECT_THAT(message, HasSubstr("hint: end that process, or give another --master-port"));
}

TEST(ListenAt, TakesAnAddressOrANameOfThisHost) {
  for (const char* address : {"127.0.0.1", "127.0.0.2", "localhost"}) {
    const ListeningSocket socket = listen_at(address, std::nullopt);
    EXPECT_GT(socket.port, 0);
    check_reachable(socket);
  }
}

TEST(ListenAt, RefusesAnAddressOfAnotherHostAndANameThatIsNone) {
  EXPECT_THAT(message_of<ConfigError>([] { listen_at("192.0.2.1", std::nullopt); }),
              HasSubstr("--master-addr is '192.0.2.1', which is no address of this host"));
  EXPECT_THAT(message_of<ConfigError>([] { listen_at("no such host", std::nullopt); }),
              HasSubstr("--master-addr is 'no such host': "));
}

TEST(CheckReachable, SaysThatNobodyCanConnect) {
  for (const Reach reach : {Reach::kLoopback, Reach::kAllInterfaces}) {
    const ListeningSocket socket = listen_on(reach, std::nullopt);
    check_reachable(socket);
    ::shutdown(socket.fd.get(), SHUT_RDWR);
    EXPECT_THAT(message_of<ConfigError>([&] { check_reachable(socket); }),
                HasSubstr("this host cannot connect to its own port " +
                          std::to_string(socket.port) + ": Connection refused"));
  }
}

TEST(PortOwner, IsEmptyWhereNobodyListens) {
  int port = 0;
  {
    port = listen_on(Reach::kLoopback, std::nullopt).port;
  }
  EXPECT_EQ(describe_port_owner(port), "");
}

TEST(PortOwner, IgnoresConnectionsAndReadsBothTables) {
  const TemporaryFolder proc;
  const std::string title =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
      "inode\n";
  proc.write("net/tcp", title +
                            "   0: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 "
                            "00000000 0 0 111 1\n");
  proc.write(
      "net/tcp6",
      title +
          "   0: 00000000000000000000000000000000:1F91 00000000000000000000000000000000:0000 0A "
          "00000000:00000000 00:00000000 00000000 0 0 222 1\n");
  proc.write("42/stat", "42 (server) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 900 0");
  std::filesystem::create_directories(proc.path() / "42" / "fd");
  std::filesystem::create_symlink("socket:[111]", proc.path() / "42" / "fd" / "3");
  std::filesystem::create_symlink("socket:[222]", proc.path() / "42" / "fd" / "4");
  EXPECT_EQ(describe_port_owner(8080, proc.path()), "");
  EXPECT_EQ(describe_port_owner(8081, proc.path()), "process 42 (server)");
}

}  // namespace
}  // namespace trireme::launch
