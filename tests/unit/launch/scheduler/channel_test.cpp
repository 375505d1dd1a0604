// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/channel.h>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <stdexcept>
#include <string>
#include <utility>

namespace trireme::launch {
namespace {

constexpr const char* kSecret = "0123456789abcdef";

struct Ends {
  Channel scheduler;
  Channel worker;
};

std::pair<UniqueFd, UniqueFd> make_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw std::runtime_error("cannot make a pair of sockets");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Ends make_ends(const std::string& secret, const std::string& other_secret) {
  auto [one, other] = make_pair();
  return {Channel(std::move(one), ChannelSide::kScheduler, secret),
          Channel(std::move(other), ChannelSide::kWorker, other_secret)};
}

TEST(Channel, CarriesMessagesOfAnyLengthUpToTheLimit) {
  for (const char* secret : {"", kSecret}) {
    Ends ends = make_ends(secret, secret);
    ends.scheduler.begin_session("a");
    ends.worker.begin_session("a");
    for (const std::size_t length : {std::size_t{1}, std::size_t{2}, kLongestMessage}) {
      const std::string text(length, 'x');
      ends.scheduler.send(text);
      std::optional<std::string> received;
      while (!(received = ends.worker.receive())) ends.scheduler.flush();
      EXPECT_EQ(*received, text);
    }
    EXPECT_EQ(ends.worker.receive(), std::nullopt);
    EXPECT_EQ(ends.worker.end(), ChannelEnd::kNone);
  }
}

TEST(Channel, KeepsMessagesApartThatComeInPieces) {
  auto [raw, other] = make_pair();
  Channel channel(std::move(other), ChannelSide::kWorker, "");
  const std::string head = std::string("\0\0\0\3", 4) + std::string(32, '\0');
  const std::string all = head + "abc" + head + "def";
  std::string received;
  for (const char byte : all) {
    ASSERT_EQ(::send(raw.get(), &byte, 1, 0), 1);
    if (const auto message = channel.receive()) received += *message + ";";
  }
  EXPECT_EQ(received, "abc;def;");
}

TEST(Channel, ReceivesWhatCameBeforeTheOtherSideClosed) {
  Ends ends = make_ends("", "");
  ends.worker.send("last");
  ends.worker.close();
  EXPECT_EQ(ends.scheduler.receive(), "last");
  EXPECT_EQ(ends.scheduler.receive(), std::nullopt);
  EXPECT_EQ(ends.scheduler.end(), ChannelEnd::kClosed);
  ends.scheduler.send("nobody reads this");
  EXPECT_FALSE(ends.scheduler.wants_to_write());
}

TEST(Channel, RefusesALengthAboveTheLimitBeforeItComes) {
  auto [raw, other] = make_pair();
  Channel channel(std::move(other), ChannelSide::kScheduler, "", 100);
  ASSERT_EQ(::send(raw.get(), "trireme\nGET / HTTP/1.1\r\n", 24, 0), 24);
  EXPECT_EQ(channel.receive(), std::nullopt);
  EXPECT_EQ(channel.end(), ChannelEnd::kWrongLength);
}

TEST(Channel, RecognizesAnotherProtocolByItsFirstBytes) {
  for (const auto& [bytes, end] :
       {std::pair("GET / HTTP/1.1\r\n", ChannelEnd::kOtherProtocol),
        std::pair("trainer\n", ChannelEnd::kOtherProtocol), std::pair("trire", ChannelEnd::kNone),
        std::pair("\x16\x03\x01", ChannelEnd::kEncrypted)}) {
    auto [raw, other] = make_pair();
    Channel channel(std::move(other), ChannelSide::kScheduler, "");
    const std::string text = bytes;
    ASSERT_EQ(::send(raw.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    EXPECT_EQ(channel.receive(), std::nullopt);
    EXPECT_EQ(channel.end(), end) << bytes;
  }
}

// Otherwise zeros would be messages without end.
TEST(Channel, RefusesEmptyMessages) {
  auto [raw, other] = make_pair();
  Channel channel(std::move(other), ChannelSide::kScheduler, "");
  const std::string zeros = "trireme\n" + std::string(72, '\0');
  ASSERT_EQ(::send(raw.get(), zeros.data(), zeros.size(), 0), 80);
  EXPECT_EQ(channel.receive(), std::nullopt);
  EXPECT_EQ(channel.end(), ChannelEnd::kWrongLength);
}

TEST(Channel, RefusesMessagesWithoutTheSecret) {
  for (const char* other : {"", "0123456789abcdeX"}) {
    Ends ends = make_ends(kSecret, other);
    ends.scheduler.begin_session("a");
    ends.worker.begin_session("a");
    ends.worker.send("believe me");
    EXPECT_EQ(ends.scheduler.receive(), std::nullopt);
    EXPECT_EQ(ends.scheduler.end(), ChannelEnd::kWrongCode);
    // The answer cannot be read without the secret, which tells a worker that it has another one.
    ends.scheduler.send("no");
    if (*other == '\0') continue;
    EXPECT_EQ(ends.worker.receive(), std::nullopt);
    EXPECT_EQ(ends.worker.end(), ChannelEnd::kWrongCode);
  }
}

TEST(Channel, RefusesMessagesOfAnotherSession) {
  Ends ends = make_ends(kSecret, kSecret);
  ends.scheduler.begin_session("a");
  ends.worker.begin_session("b");
  ends.worker.send("from another connection");
  EXPECT_EQ(ends.scheduler.receive(), std::nullopt);
  EXPECT_EQ(ends.scheduler.end(), ChannelEnd::kWrongCode);
}

// Reads what a channel has sent.
std::string read_all(const UniqueFd& fd) {
  std::string text(1 << 12, '\0');
  const ssize_t count = ::recv(fd.get(), text.data(), text.size(), MSG_DONTWAIT);
  text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  return text;
}

TEST(Channel, RefusesMessagesThatAreRepeatedReturnedOrChanged) {
  auto [worker_end, stranger] = make_pair();
  Channel worker(std::move(worker_end), ChannelSide::kWorker, kSecret);
  worker.begin_session("a");
  const std::string opening = read_all(stranger);
  EXPECT_EQ(opening, "trireme\n");
  worker.send("yes");
  const std::string recorded = read_all(stranger);
  // To the scheduler twice, changed, and back to the worker.
  const auto given = [&](ChannelSide side, std::string bytes) {
    if (side == ChannelSide::kScheduler) bytes.insert(0, opening);
    auto [end, raw] = make_pair();
    Channel channel(std::move(end), side, kSecret);
    channel.begin_session("a");
    EXPECT_EQ(::send(raw.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    int messages = 0;
    while (channel.receive()) ++messages;
    return std::pair(messages, channel.end());
  };
  EXPECT_EQ(given(ChannelSide::kScheduler, recorded), std::pair(1, ChannelEnd::kNone));
  EXPECT_EQ(given(ChannelSide::kScheduler, recorded + recorded),
            std::pair(1, ChannelEnd::kWrongCode));
  EXPECT_EQ(given(ChannelSide::kWorker, recorded), std::pair(0, ChannelEnd::kWrongCode));
  std::string changed = recorded;
  changed.back() = 'S';
  EXPECT_EQ(given(ChannelSide::kScheduler, changed), std::pair(0, ChannelEnd::kWrongCode));
}

TEST(Channel, DropsAPeerThatDoesNotRead) {
  Ends ends = make_ends("", "");
  const std::string text(kLongestMessage, 'x');
  for (int i = 0; i < 1000 && ends.scheduler.end() == ChannelEnd::kNone; ++i)
    ends.scheduler.send(text);
  EXPECT_EQ(ends.scheduler.end(), ChannelEnd::kClosed);
}

}  // namespace
}  // namespace trireme::launch
