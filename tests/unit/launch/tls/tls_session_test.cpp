// SPDX-License-Identifier: Apache-2.0
// Two sides of a session in one thread, whose bytes the test carries.
#include <trireme/launch/tls/tls_session.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/unit/launch/tls/host_files.h>

#include <memory>
#include <string>

namespace trireme::launch {
namespace {

using test::HostFiles;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The two sides, and all bytes that went from one to the other.
struct Sides {
  std::unique_ptr<TlsSession> server;
  std::unique_ptr<TlsSession> client;
  std::string to_server{};
  std::string to_client{};
  std::string at_server{};
  std::string at_client{};

  // Carries bytes to and fro until neither side has any.
  void exchange() {
    while (true) {
      const std::string there = client->take_unsent();
      const std::string back = server->take_unsent();
      if (there.empty() && back.empty()) return;
      to_server += there;
      to_client += back;
      at_server += server->receive(there);
      at_client += client->receive(back);
    }
  }
};

Sides make_sides(const TlsFiles& server, const TlsFiles& client, const std::string& dialled) {
  return {.server = TlsContext(server).accept(), .client = TlsContext(client).connect(dialled)};
}

TEST(TlsSession, CarriesWhatIsSentAtAnyTimeAndShowsNoneOfIt) {
  const HostFiles hosts;
  const TlsFiles server = hosts.make("server", {"host0", "10.0.0.1", "fd00::1"});
  const TlsFiles client = hosts.make("client", {"host1"});
  for (const char* dialled : {"host0", "10.0.0.1", "fd00::1", "HOST0", "fd00::1%eth0"}) {
    Sides sides = make_sides(server, client, dialled);
    sides.server->send("challenge");  // before anything has come
    EXPECT_EQ(sides.server->kept_bytes(), 9U);
    sides.exchange();
    ASSERT_FALSE(sides.server->failure() || sides.client->failure()) << dialled;
    sides.client->send("hello");
    sides.server->send(std::string(100'000, 'x'));
    sides.exchange();
    EXPECT_EQ(sides.at_client, "challenge" + std::string(100'000, 'x'));
    EXPECT_EQ(sides.at_server, "hello");
    for (const std::string& bytes : {sides.to_server, sides.to_client}) {
      EXPECT_THAT(bytes, AllOf(Not(HasSubstr("challenge")), Not(HasSubstr("hello")),
                               Not(HasSubstr("xxxx")), Not(HasSubstr("Trireme authority"))));
    }
  }
}

TEST(TlsSession, RefusesAServerForAnotherHost) {
  const HostFiles hosts;
  const TlsFiles server = hosts.make("server", {"host0", "10.0.0.1"});
  for (const char* dialled : {"host1", "10.0.0.2", "host0.example.org", "fd00::1"}) {
    Sides sides = make_sides(server, hosts.make("client"), dialled);
    sides.exchange();
    ASSERT_TRUE(sides.client->failure());
    EXPECT_EQ(sides.client->failure()->cause, TlsCause::kOtherHost);
    EXPECT_EQ(sides.client->failure()->text,
              std::string("its certificate is for host0, 10.0.0.1, and not for ") + dialled);
    ASSERT_TRUE(sides.server->failure());
    EXPECT_EQ(sides.server->failure()->cause, TlsCause::kRefused);
    EXPECT_THAT(sides.server->failure()->text, HasSubstr("is for other hosts than the one"));
  }
}

TEST(TlsSession, RefusesTheOtherSideIfItHasAnotherAuthority) {
  const HostFiles hosts;
  const HostFiles others;
  const TlsFiles ours = hosts.make("host");
  const TlsFiles theirs = others.make("host");
  Sides sides = make_sides(theirs, ours, "127.0.0.1");
  sides.server->send("secret");
  sides.exchange();
  ASSERT_TRUE(sides.client->failure());
  EXPECT_EQ(sides.client->failure()->cause, TlsCause::kOtherAuthority);
  EXPECT_THAT(sides.client->failure()->text,
              AllOf(HasSubstr("its certificate '127.0.0.1' by 'Trireme authority "),
                    HasSubstr("is not by an authority that is trusted here")));
  EXPECT_THAT(sides.server->failure()->text, HasSubstr("does not trust the authority"));

  // The client trusts the server, and the server does not trust the client.
  TlsFiles trusting = theirs;
  trusting.authority = ours.authority;
  EXPECT_THAT(test::message_of<ConfigError>([&] { TlsContext{trusting}; }),
              HasSubstr("does not confirm"));
  test::write_file(trusting.authority,
                   hosts.authority().certificate + others.authority().certificate);
  sides = make_sides(theirs, trusting, "127.0.0.1");
  sides.exchange();
  EXPECT_FALSE(sides.server->failure()) << "the same authority";
  sides = make_sides(theirs,
                     {.certificate = hosts.make("other").certificate,
                      .key = hosts.folder() / "other/key.pem",
                      .authority = trusting.authority},
                     "127.0.0.1");
  sides.server->send("secret");
  sides.exchange();
  ASSERT_TRUE(sides.server->failure());
  EXPECT_EQ(sides.server->failure()->cause, TlsCause::kOtherAuthority);
  EXPECT_EQ(sides.client->failure()->cause, TlsCause::kRefused);
  EXPECT_THAT(sides.client->failure()->text, HasSubstr("does not trust the authority"));
  EXPECT_EQ(sides.at_client, "");
}

TEST(TlsSession, RefusesRubbish) {
  const HostFiles hosts;
  const TlsFiles files = hosts.make("host");
  for (const std::string& rubbish : {std::string("GET / HTTP/1.1\r\n\r\n"),
                                     std::string(100, '\x16'), std::string(70'000, 'x')}) {
    const auto server = TlsContext(files).accept();
    EXPECT_EQ(server->receive(rubbish), "");
    ASSERT_TRUE(server->failure());
    EXPECT_EQ(server->failure()->cause, TlsCause::kBroken);
    server->send("secret");
    EXPECT_THAT(server->take_unsent(), Not(HasSubstr("secret")));
    EXPECT_EQ(server->receive("more"), "");
  }
}

TEST(TlsSession, KeepsLittleOfAHandshakeThatNeverEnds) {
  const HostFiles hosts;
  const TlsFiles files = hosts.make("host");
  const auto server = TlsContext(files).accept();
  // The head of a message of 16 MiB, and then as much of it as is taken.
  server->receive(std::string("\x16\x03\x01\x40\x00\x01\xff\xff\xff", 9));
  std::size_t bytes = 0;
  for (; !server->failure() && bytes < (std::size_t{10} << 20); bytes += 16'384)
    server->receive(std::string(16'384, 'x'));
  EXPECT_LT(bytes, std::size_t{200'000});
}

TEST(TlsSession, NoticesABitThatWasChangedOnItsWay) {
  const HostFiles hosts;
  const TlsFiles files = hosts.make("host");
  Sides sides = make_sides(files, files, "127.0.0.1");
  sides.exchange();
  sides.client->send("hello");
  std::string bytes = sides.client->take_unsent();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  EXPECT_EQ(sides.server->receive(bytes), "");
  ASSERT_TRUE(sides.server->failure());
  EXPECT_EQ(sides.server->failure()->cause, TlsCause::kBroken);
}

TEST(TlsSession, TakesBytesOneByOne) {
  const HostFiles hosts;
  const TlsFiles files = hosts.make("host");
  Sides sides = make_sides(files, files, "127.0.0.1");
  const auto carry = [](TlsSession& from, TlsSession& to) {
    std::string all;
    for (const char byte : from.take_unsent()) all += to.receive({&byte, 1});
    return all;
  };
  sides.server->send("challenge");
  std::string received;
  for (int i = 0; i < 4; ++i) {
    carry(*sides.client, *sides.server);
    received += carry(*sides.server, *sides.client);
  }
  EXPECT_EQ(received, "challenge");
}

TEST(TlsContext, KnowsItsHosts) {
  const HostFiles hosts;
  const TlsContext context(hosts.make("host", {"host0", "10.0.0.1"}));
  EXPECT_TRUE(context.is_for("host0"));
  EXPECT_TRUE(context.is_for("10.0.0.1"));
  EXPECT_FALSE(context.is_for("host1"));
  EXPECT_FALSE(context.is_for("10.0.0.2"));
  EXPECT_EQ(context.hosts(), "host0, 10.0.0.1");
}

TEST(TlsCause, HasATextAndAHint) {
  for (const TlsCause cause :
       {TlsCause::kNoCertificate, TlsCause::kOtherAuthority, TlsCause::kExpired,
        TlsCause::kNotYetValid, TlsCause::kOtherHost, TlsCause::kRefused, TlsCause::kBroken}) {
    EXPECT_NE(text_of(cause), "");
    EXPECT_NE(hint_of(cause), "");
  }
}

}  // namespace
}  // namespace trireme::launch
