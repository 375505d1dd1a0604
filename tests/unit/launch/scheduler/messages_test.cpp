// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/messages.h>

#include <trireme/base/error.h>
#include <trireme/launch/scheduler/channel.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::launch {
namespace {

using test::message_of;
using testing::HasSubstr;

template <typename Kind>
Kind round_trip(const Kind& message) {
  return std::get<Kind>(decode(encode(message)));
}

Hello some_hello() {
  return {.version = "0.1.0",
          .nonce = "ab",
          .host = "host0",
          .machine = "boot net:[1]",
          .process = 7,
          .node_id = "worker_3",
          .ranks = 2,
          .workers = 8,
          .run = "host0-12-29500-ab-1",
          .program = {.path = "/bin/train", .bytes = 1234, .checksum = "00ff"}};
}

TEST(SchedulerMessages, ReadBackAsTheyWere) {
  const auto challenge =
      round_trip(Challenge{.version = "0.1.0", .nonce = "ab", .needs_secret = true});
  EXPECT_EQ(challenge.protocol, kSchedulerProtocol);
  EXPECT_EQ(challenge.nonce, "ab");
  EXPECT_TRUE(challenge.needs_secret);
  const Hello hello = round_trip(some_hello());
  EXPECT_EQ(hello.host, "host0");
  EXPECT_EQ(hello.machine, "boot net:[1]");
  EXPECT_EQ(hello.process, 7);
  EXPECT_EQ(hello.node_id, "worker_3");
  EXPECT_EQ(hello.ranks, 2);
  EXPECT_EQ(hello.workers, 8);
  EXPECT_EQ(hello.run, some_hello().run);
  EXPECT_EQ(hello.program, some_hello().program);
  const auto place = round_trip(Assignment{.first_rank = 3,
                                           .world_size = 8,
                                           .first_local_rank = 1,
                                           .local_world_size = 4,
                                           .node_rank = 1,
                                           .nodes = 2,
                                           .store_port = 4711,
                                           .run_id = "run",
                                           .secret = "abcd"});
  EXPECT_EQ(place.first_rank, 3);
  EXPECT_EQ(place.local_world_size, 4);
  EXPECT_EQ(place.store_port, 4711);
  EXPECT_EQ(place.secret, "abcd");
  EXPECT_EQ(round_trip(Assignment{.store_port = 4711, .run_id = "run"}).secret, "");
  const auto end = round_trip(RankEnded{.rank = 3, .process = 9, .code = 139, .how = "died"});
  EXPECT_EQ(end.code, 139);
  EXPECT_EQ(end.how, "died");
  EXPECT_EQ(end.report, FailureReport());
  const FailureReport report{.faulty_rank = 7, .is_final = true};
  EXPECT_EQ(round_trip(RankEnded{.code = 1, .how = "it", .report = report}).report, report);
  const FailureReport unknown{.is_of_unknown_rank = true};
  EXPECT_EQ(round_trip(RankEnded{.code = 1, .how = "it", .report = unknown}).report, unknown);
  EXPECT_EQ(round_trip(EndRequest{.reason = "one\ntwo", .code = 3}).reason, "one\ntwo");
  EXPECT_EQ(round_trip(Refused{.reason = "no", .hint = "go"}).hint, "go");
  EXPECT_EQ(round_trip(Accepted{.wait_ms = 5}).wait_ms, 5);
  EXPECT_TRUE(round_trip(Accepted{.returns = true}).returns);
  EXPECT_TRUE(round_trip(Assignment{.store_port = 1, .returns = true}).returns);
}

TEST(SchedulerMessages, TellTheProgressOfRanks) {
  const RankProgress one{.rank = 3,
                         .process = 4711,
                         .step = 12,
                         .of_steps = 40,
                         .epoch = 2,
                         .reports = 10,
                         .samples = 320,
                         .tokens = 1000,
                         .own_microseconds = 5,
                         .age_ms = 6,
                         .memory_bytes = std::int64_t{7} << 30};
  const auto read = round_trip(Progress{{one, {.rank = 4, .age_ms = -1}}});
  ASSERT_EQ(read.ranks.size(), 2);
  EXPECT_EQ(read.ranks[0], one);
  EXPECT_EQ(read.ranks[1].age_ms, 0);
  // The longest message fits the limit.
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  const RankProgress large{(1 << 20) - 1, kMost, kMost, kMost, kMost, kMost,
                           kMost,         kMost, kMost, kMost, kMost};
  const Progress longest{std::vector<RankProgress>(kMostRanksOfProgress, large)};
  EXPECT_LT(encode(longest).size(), kLongestMessage);
  EXPECT_EQ(round_trip(longest).ranks.back(), large);
  for (const std::string ranks :
       {"5", "[5]", "[[1]]", "[[1,1,1,1,1,1,1,1,1,1,-1]]", "[[1,1,1,1,1,1,1,1,1,1,1.5]]",
        "[[1,1,1,1,1,1,1,1,1,1,9007199254740993]]", "[[1048576,1,1,1,1,1,1,1,1,1,1]]"}) {
    EXPECT_THAT(
        message_of<CommError>([&] { decode(R"({"type":"progress","ranks":)" + ranks + "}"); }),
        HasSubstr("'progress' has"))
        << ranks;
  }
}

TEST(SchedulerMessages, LeaveOutWhatAWorkerDoesNotKnow) {
  Hello hello = some_hello();
  hello.workers.reset();
  EXPECT_EQ(round_trip(hello).workers, std::nullopt);
}

TEST(SchedulerMessages, FitTheLimitHoweverLongTheirTextsAre) {
  const std::string endless(1'000'000, '"');
  Hello hello = some_hello();
  hello.host = hello.machine = hello.node_id = hello.program.path = endless;
  EXPECT_LE(encode(hello).size(), std::size_t{16} << 10);
  for (const char letter : {'\x01', 'x', '"', '\n', '\xff'}) {
    const std::string text(1'000'000, letter);
    EXPECT_LE(encode(Refused{.reason = text, .hint = text}).size(), kLongestMessage);
    decode(encode(EndRequest{.reason = text}));
  }
}

TEST(SchedulerMessages, CannotControlATerminal) {
  Hello hello = some_hello();
  hello.host = "a\x1b[2Jb\nc";
  EXPECT_EQ(round_trip(hello).host, "a?[2Jb?c");
  EXPECT_EQ(round_trip(EndRequest{.reason = "a\x1b[2J\nb"}).reason, "a?[2J\nb");
}

struct Rubbish {
  const char* name;
  const char* text;
  const char* expected;
};

class SchedulerRubbish : public testing::TestWithParam<Rubbish> {};

TEST_P(SchedulerRubbish, IsRefused) {
  EXPECT_THAT(message_of<CommError>([] { decode(GetParam().text); }),
              HasSubstr(GetParam().expected));
}

INSTANTIATE_TEST_SUITE_P(
    Texts, SchedulerRubbish,
    testing::Values(
        Rubbish{"Empty", "", "no JSON object"}, Rubbish{"Http", "GET / HTTP/1.1", "no JSON object"},
        Rubbish{"List", "[]", "no JSON object"},
        Rubbish{"Deep", "{\"type\":[[[[[[[[1]]]]]]]]}", "nested too deeply"},
        Rubbish{"NoType", "{}", "has no 'type'"},
        Rubbish{"TypeIsANumber", "{\"type\":1}", "has no 'type', expected a text"},
        Rubbish{"UnknownType", "{\"type\":\"run\"}", "unknown type 'run'"},
        Rubbish{"NoRank", "{\"type\":\"ended\"}", "'ended' has no 'rank', expected an integer"},
        Rubbish{"NegativeRank", "{\"type\":\"ended\",\"rank\":-1}", "has -1 in 'rank'"},
        Rubbish{"HugeRank", "{\"type\":\"ended\",\"rank\":18446744073709551615}",
                "has 18446744073709551615 in 'rank'"},
        Rubbish{"FractionalRank", "{\"type\":\"ended\",\"rank\":1.5}", "expected an integer"},
        Rubbish{"RankOutsideOfTheWorld",
                "{\"type\":\"assigned\",\"world_size\":2,\"local_world_size\":1,\"nodes\":1,"
                "\"rank\":2}",
                "has 2 in 'rank', expected 0 to 1"},
        Rubbish{"InvalidText", "{\"type\":\"\xff\"}", "no JSON object"}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(SchedulerMessages, RefuseALongName) {
  const std::string text = R"({"type":"end","reason":")" + std::string(50'000, 'x') + "\"}";
  EXPECT_THAT(message_of<CommError>([&] { decode(text); }),
              HasSubstr("has 50000 bytes in 'reason', expected 49152 at most"));
}

}  // namespace
}  // namespace trireme::launch
