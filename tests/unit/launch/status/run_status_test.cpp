// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/run_status.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <string>

namespace trireme::launch {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

RunStatus some_status() {
  RunStatus status;
  status.run = "host-1";
  status.program = "/bin/<train>";
  status.state = RunState::kRunning;
  status.began = 1000;
  status.now = 1100.5;
  status.world_size = 1;
  status.came = 1;
  status.restarts = 1;
  status.restarts_allowed = 3;
  status.workers = {{.host = "a", .address = "10.0.0.1", .process = 5, .node_id = "w0"}};
  status.ranks = {{.rank = 0,
                   .host = "a\"\\\n",
                   .process = 7,
                   .step = 12,
                   .of_steps = 40,
                   .steps_per_second = 2.5,
                   .own_seconds_per_step = 0.25,
                   .memory_bytes = 3 << 20,
                   .is_slow = true}};
  status.failures = {{.time = 1050, .rank = 0, .host = "a", .code = 9, .cause = "killed\n  more"}};
  status.failure_count = 1;
  status.host_failures = {{"a", 1}};
  status.excluded_hosts = {"c"};
  status.refused = {{"no token", 4}};
  status.step = 12;
  status.of_steps = 40;
  status.steps_per_second = 2.5;
  status.samples_per_second = 80;
  status.expected_end = 1111.7;
  return status;
}

TEST(RunStatus, ReadsBackFromJson) {
  const RunStatus read = parse_status(status_json(some_status()), "host:1");
  EXPECT_EQ(status_json(read), status_json([] {
              RunStatus expected = some_status();
              // Control characters are replaced when they are read.
              expected.ranks[0].host = "a\"\\?";
              expected.failures[0].cause = "killed?  more";
              return expected;
            }()));
  EXPECT_EQ(read.ranks.at(0).is_slow, true);
  EXPECT_EQ(read.expected_end, 1111.7);
}

TEST(RunStatus, RefusesWhatIsNoStatus) {
  const auto message = [](const std::string& json) {
    return message_of<CommError>([&] { parse_status(json, "host:1"); });
  };
  EXPECT_THAT(message("no"),
              HasSubstr("host:1 answered a status with text that is no JSON object"));
  EXPECT_THAT(message("{\"format\":2}"), HasSubstr("format 2, expected 1"));
  EXPECT_THAT(message("{\"format\":1,\"state\":\"odd\"}"), HasSubstr("the unknown state 'odd'"));
  EXPECT_THAT(message("{\"format\":1,\"state\":\"running\",\"ranks\":3}"),
              HasSubstr("'ranks', which is no list"));
  EXPECT_THAT(message("{\"format\":1,\"state\":\"running\",\"step\":\"x\"}"),
              HasSubstr("'step' of another type than expected"));
  EXPECT_THAT(message(std::string(100000, '[')), HasSubstr("no JSON object"));
}

TEST(RunStatus, IsAPageOfOneFile) {
  const std::string page = status_page(some_status());
  EXPECT_THAT(
      page,
      AllOf(HasSubstr("/bin/&lt;train&gt;"), HasSubstr("running, slow"), HasSubstr("12 of 40"),
            HasSubstr("2.5 steps/s, 80 samples/s"), HasSubstr("1970-01-01 00:18:31 UTC, in 11 s"),
            HasSubstr("killed\n  more"), HasSubstr("excluded host"), HasSubstr("1 of 3")));
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<train>")), Not(HasSubstr("src=")),
                          Not(HasSubstr("href=")), Not(HasSubstr("<script"))));
}

TEST(RunStatus, IsATable) {
  const std::string table = status_table(some_status());
  EXPECT_THAT(table, AllOf(HasSubstr("state:          running\n"),
                           HasSubstr("step:           12 of 40\n"), HasSubstr("10.0.0.1"),
                           HasSubstr("1970-01-01 00:17:30 UTC  0     a     9     killed\n")));
}

TEST(RunStatus, IsMetricsOfPrometheus) {
  const std::string metrics = status_metrics(some_status());
  EXPECT_THAT(metrics,
              AllOf(HasSubstr("# TYPE trireme_restarts_total counter\ntrireme_restarts_total 1\n"),
                    HasSubstr("trireme_rank_step{rank=\"0\",host=\"a\\\"\\\\\\n\"} 12\n"),
                    HasSubstr("trireme_state{state=\"running\"} 1\n"),
                    HasSubstr("trireme_state{state=\"ended\"} 0\n"),
                    HasSubstr("trireme_status_refused_total{cause=\"no token\"} 4\n"),
                    HasSubstr("trireme_steps_per_second 2.5\n"),
                    HasSubstr("trireme_expected_end_time_seconds 1111.7\n")));
  EXPECT_THAT(metrics, Not(HasSubstr("tokens_per_second")));
  RunStatus odd = some_status();
  odd.program = "/bin/\xff";
  EXPECT_THAT(status_metrics(odd), HasSubstr("/bin/\xef\xbf\xbd")) << "no UTF-8 is replaced";
}

}  // namespace
}  // namespace trireme::launch
