// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/status_server.h>

#include <trireme/base/error.h>
#include <trireme/launch/status/http_request.h>
#include <trireme/launch/status/status_client.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <tests/unit/launch/status/running_status.h>

#include <string>
#include <vector>

namespace trireme::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::message_of;
using test::request_for;
using test::RunningStatus;
using test::talk;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(StatusServer, AnswersThoseWhoKnowTheToken) {
  const RunningStatus running;
  EXPECT_THAT(talk(running.connect(), request_for("/")),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("<!DOCTYPE html>"),
                    HasSubstr("</html>\n")));
  EXPECT_THAT(talk(running.connect(), request_for("/metrics")),
              AllOf(HasSubstr("text/plain; version=0.0.4"), HasSubstr("trireme_state{")));
  const StatusAddress address{.place = running.place(), .token = test::kToken};
  EXPECT_THAT(fetch_status(address, "/status.json", std::nullopt, seconds(60)),
              HasSubstr("\"run\":\"xxxxxxxxxx\""));
  EXPECT_THAT(talk(running.connect(), request_for("/other")), StartsWith("HTTP/1.1 404 "));
}

TEST(StatusServer, RefusesOthers) {
  const RunningStatus running;
  EXPECT_THAT(talk(running.connect(), "GET / HTTP/1.1\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("the token of the run is missing")));
  EXPECT_THAT(talk(running.connect(), "GET /?token=0123456789abcdee HTTP/1.1\r\n\r\n"),
              StartsWith("HTTP/1.1 401 "));
  // Nothing is said about what there is.
  EXPECT_THAT(talk(running.connect(), "GET /other HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 401 "));
  EXPECT_EQ(running.refused("no token"), 2);
  EXPECT_EQ(running.refused("another token"), 1);
  EXPECT_THAT(message_of<Error>([&] {
                fetch_status({.place = running.place(), .token = "x"}, "/", std::nullopt,
                             seconds(60));
              }),
              AllOf(HasSubstr("refuses: the token of the run is missing or wrong"),
                    HasSubstr("--token-file")));
}

TEST(StatusServer, SendsOnlyTheHeadToHead) {
  const RunningStatus running;
  const std::string answer =
      talk(running.connect(), "HEAD /?token=" + std::string(test::kToken) + " HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
}

TEST(StatusServer, RefusesRubbish) {
  const RunningStatus running;
  EXPECT_THAT(talk(running.connect(), std::string("\0\1\2rubbish", 10)),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(talk(running.connect(), "POST / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(talk(running.connect(), "GET /" + std::string(20'000, 'a')),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_EQ(running.refused("a malformed or unknown request"), 3);
  // The first byte of TLS.
  EXPECT_EQ(talk(running.connect(), "\x16\x03\x01"), "");
  EXPECT_EQ(running.refused("encrypted"), 1);
}

TEST(StatusServer, TakesARequestByteByByte) {
  const RunningStatus running;
  const UniqueFd fd = running.connect();
  const std::string request = request_for("/status.json");
  for (std::size_t i = 0; i + 1 < request.size(); ++i) ::send(fd.get(), &request[i], 1, 0);
  EXPECT_THAT(talk(fd, request.substr(request.size() - 1)), StartsWith("HTTP/1.1 200 "));
}

TEST(StatusServer, DropsThoseWhoDoNotCompleteTheirRequest) {
  const RunningStatus running({.request_time = milliseconds(100)});
  const UniqueFd silent = running.connect();
  EXPECT_EQ(talk(silent, ""), "");
  const UniqueFd half = running.connect();
  EXPECT_EQ(talk(half, "GET / HTTP/1.1\r\nHost:"), "");
  running.await_refused("no request in time", 2);
  EXPECT_EQ(running.refused("no request in time"), 2);
  {
    const UniqueFd gone = running.connect();
    ::send(gone.get(), "GET /", 5, 0);
  }
  running.await_refused("gone before the end of its request", 1);
  EXPECT_EQ(running.refused("gone before the end of its request"), 1);
}

// Slow-loris: each connection sends a header from time to time and never ends.
TEST(StatusServer, AnswersWhileOthersHoldAllConnections) {
  const RunningStatus running({.most_connections = 8});
  std::vector<UniqueFd> others;
  for (int i = 0; i < 50; ++i) {
    others.push_back(running.connect());
    ::send(others.back().get(), "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL);
  }
  EXPECT_THAT(talk(running.connect(), request_for("/")), StartsWith("HTTP/1.1 200 "));
  EXPECT_GE(running.refused("too many at once"), 42);
}

TEST(StatusServer, DropsThoseWhoDoNotTakeTheAnswer) {
  RunningStatus running({.answer_time = milliseconds(100)});
  running.bytes_of_name = std::size_t{32} << 20;  // more than the buffers of the connection
  const UniqueFd lazy = running.connect();
  const std::string request = request_for("/");
  ::send(lazy.get(), request.data(), request.size(), 0);
  running.await_refused("answer not taken in time", 1);
  EXPECT_EQ(running.refused("answer not taken in time"), 1);
  running.bytes_of_name = 10;
  EXPECT_THAT(talk(running.connect(), request_for("/metrics")), StartsWith("HTTP/1.1 200 "));
}

TEST(StatusClient, SaysWhyNothingCame) {
  const auto message = [](const StatusAddress& address) {
    return message_of<Error>([&] { fetch_status(address, "/", std::nullopt, milliseconds(300)); });
  };
  const ListeningSocket silent = listen_at("127.0.0.1", std::nullopt);
  const StatusAddress of_silent{.place = {.host = "127.0.0.1", .port = silent.port}};
  EXPECT_THAT(message(of_silent), HasSubstr("it does not answer in time"));
  EXPECT_THAT(message({.place = of_silent.place, .is_encrypted = true}),
              AllOf(HasSubstr("is encrypted, and this side has no certificate"),
                    HasSubstr("--tls FOLDER")));
  const int free_port = listen_at("127.0.0.1", std::nullopt).port;
  EXPECT_THAT(message({.place = {.host = "127.0.0.1", .port = free_port}}),
              AllOf(HasSubstr("nobody serves a status at 127.0.0.1"), HasSubstr("refused")));
}

}  // namespace
}  // namespace trireme::launch
