// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/http_request.h>

#include <gmock/gmock.h>

#include <string>

namespace trireme::launch {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

int refusal_of(const std::string& bytes) {
  const auto request = parse_request(bytes);
  return request ? request->refusal : -1;
}

TEST(HttpRequest, IsRead) {
  const auto request = parse_request(
      "GET /metrics?x=1&token=ab HTTP/1.1\r\nHost: a:1\r\nAUTHORIZATION: bearer  cd \r\n\r\n");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->refusal, 0);
  EXPECT_TRUE(request->wants_body);
  EXPECT_EQ(request->path, "/metrics");
  EXPECT_EQ(value_in_query(request->query, "token"), "ab");
  EXPECT_EQ(value_in_query(request->query, "x"), "1");
  EXPECT_EQ(value_in_query(request->query, "tok"), "");
  EXPECT_EQ(request->bearer, "cd");
  EXPECT_FALSE(parse_request("HEAD / HTTP/1.0\r\n\r\n")->wants_body);
}

TEST(HttpRequest, IsAwaitedWhileItIsNotComplete) {
  const std::string whole = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(parse_request(whole.substr(0, length))) << length;
  EXPECT_EQ(refusal_of(whole), 0);
}

TEST(HttpRequest, IsRefusedIfItIsMalformed) {
  for (const std::string bytes :
       {"GET /\r\n\r\n", "GET  HTTP/1.1\r\n\r\n", "GET http://a/ HTTP/1.1\r\n\r\n",
        "G(T / HTTP/1.1\r\n\r\n", "GET /a b HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\n: value\r\n\r\n", "GET / HTTP/1.1\r\na b: value\r\n\r\n",
        "GET / HTTP/1.1\r\na: \x01\r\n\r\n", "GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "GET / ICMP\r\n\r\n",
        "\x01\x02\x03", "trireme\n"}) {
    EXPECT_EQ(refusal_of(bytes), 400) << bytes;
  }
  EXPECT_EQ(refusal_of("POST / HTTP/1.1\r\n\r\n"), 405);
  EXPECT_EQ(refusal_of("GET / HTTP/2.0\r\n\r\n"), 505);
}

TEST(HttpRequest, IsRefusedIfItIsTooLong) {
  EXPECT_EQ(refusal_of("GET /" + std::string(kLongestRequest, 'a')), 431);
  const std::string header = "a: " + std::string(100, 'b') + "\r\n";
  std::string many = "GET / HTTP/1.1\r\n";
  while (many.size() <= kLongestRequest) many += header;
  EXPECT_EQ(refusal_of(many), 431);
  EXPECT_EQ(refusal_of(many + "\r\n"), 431);
}

TEST(HttpAnswer, SaysHowItIsToBeTreated) {
  const std::string head = answer_head(405, "text/plain", 12);
  EXPECT_THAT(head, StartsWith("HTTP/1.1 405 Method Not Allowed\r\nContent-Type: text/plain\r\n"));
  EXPECT_THAT(head, HasSubstr("Content-Length: 12\r\nConnection: close\r\n"));
  EXPECT_THAT(head, HasSubstr("Allow: GET, HEAD\r\n"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
  EXPECT_THAT(answer_head(401, "text/plain", 0), HasSubstr("WWW-Authenticate: Bearer\r\n"));
}

}  // namespace
}  // namespace trireme::launch
