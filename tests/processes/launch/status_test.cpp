// SPDX-License-Identifier: Apache-2.0
// The status and the journal of real runs.
#include <gmock/gmock.h>
#include <tests/processes/free_port.h>
#include <tests/processes/launch/launched.h>
#include <tests/processes/launch/worker_words.h>
#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::launch {
namespace {

using test::Finished;
using test::free_port;
using test::Launched;
using test::read_file;
using test::run_script;
using test::shell;
using test::TemporaryFolder;
using test::variable;
using test::worker_of;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// Asks until the answer has a text.
std::string await_status(const std::string& words, const std::string& text) {
  Finished finished;
  for (int i = 0; i < 600; ++i) {
    finished = shell(variable("TRIREME_BIN") + "/trireme status " + words);
    if (finished.output.find(text) != std::string::npos) return finished.output;
    shell("sleep 0.1");
  }
  ADD_FAILURE() << "'" << text << "' never came: " << finished.output;
  return finished.output;
}

// Waits until a file has a text.
std::string await_file(const std::filesystem::path& file, const std::string& text) {
  for (int i = 0; i < 600; ++i) {
    const std::string content = read_file(file);
    if (content.find(text) != std::string::npos) return content;
    shell("sleep 0.1");
  }
  ADD_FAILURE() << "'" << text << "' never came: " << read_file(file);
  return {};
}

TEST(Status, ShowsWhatRanksReport) {
  const TemporaryFolder temporary;
  const std::string folder = (temporary / "logs").string();
  Launched run({"run", "-n", "2", "--status", "0", "--log-dir", folder, "--",
                variable("REPORTING_PROGRAM"), "1000", "10"});
  run.await_error("the status is at http://127.0.0.1:");
  const std::string table = await_status(folder, " steps/s, ");
  EXPECT_THAT(table, AllOf(HasSubstr("state:         running"), HasSubstr(" of 1000, epoch 1"),
                           HasSubstr(" samples/s, "), HasSubstr(" tokens/s"),
                           HasSubstr("expected end:"), HasSubstr("MiB")));
  const std::string json = await_status("--json " + folder, "\"rank\":1");
  EXPECT_THAT(json, AllOf(ContainsRegex("\"own_seconds_per_step\":0.00(1|099)"),
                          HasSubstr("\"state\":\"running\"")));
  // Only the file has the token, because standard error is no terminal.
  EXPECT_EQ(shell("stat -c %a " + folder + "/status_url").output, "600\n");
  EXPECT_THAT(run.error, Not(HasSubstr("token")));
  EXPECT_THAT(read_file(folder + "/status_url"), HasSubstr("/?token="));
  run.signal(SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM) << run.error;
  EXPECT_FALSE(std::filesystem::exists(folder + "/status_url"));
}

TEST(Status, TellsFailuresAndRestarts) {
  const TemporaryFolder temporary;
  const std::string folder = (temporary / "logs").string();
  const std::string journal = (temporary / "journal.jsonl").string();
  Launched run(run_script(
      {"-n", "2", "--status", "0", "--restarts", "1", "--log-dir", folder, "--journal", journal},
      "[ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ] || exit 7; "
      "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || while [ ! -e " +
          folder + "/stop ]; do sleep 0.1; done"));
  const std::string table = await_status(folder, "restarts:  1 of 1");
  EXPECT_THAT(table, HasSubstr("exited with code 7"));
  shell("touch " + folder + "/stop");
  EXPECT_EQ(run.wait(), 0) << run.error;
  EXPECT_THAT(read_file(journal), AllOf(HasSubstr("\"event\":\"failure\",\"attempt\":0,\"code\":7,"
                                                  "\"cause\":\"exited with code 7\",\"rank\":1"),
                                        HasSubstr("\"event\":\"restart\",\"attempt\":1,\"of\":1"),
                                        ContainsRegex("\"event\":\"end\",\"code\":0\\}\n$")));
}

TEST(Status, PrintsTheTokenToATerminalOnly) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_EQ(::grantpt(terminal) + ::unlockpt(terminal), 0);
  const UniqueFd user(terminal);
  const UniqueFd end(::open(::ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC));
  Launched run(run_script({"-n", "1", "--status", "0"}, "exit 0"), -1, end.get());
  EXPECT_EQ(run.wait(), 0);
  std::array<char, 4096> shown{};
  const ssize_t count = ::read(user.get(), shown.data(), shown.size());
  ASSERT_GT(count, 0);
  EXPECT_THAT(std::string(shown.data(), static_cast<std::size_t>(count)),
              ContainsRegex("the status is at http://127.0.0.1:[0-9]+/\\?token=[0-9a-f]{32};"));
}

TEST(Status, NamesASlowRank) {
  const TemporaryFolder temporary;
  const std::string journal = (temporary / "journal.jsonl").string();
  Launched run({"run", "-n", "3", "--slow-factor", "2", "--journal", journal, "--journal-seconds",
                "1", "--", variable("REPORTING_PROGRAM"), "1000", "20", "1", "10"});
  run.await_error("rank 1 (process ");
  run.await_error("is slow: 0.01 s of its own in a step, the median of the others is 0.001 s");
  run.signal(SIGTERM);
  run.wait();
  EXPECT_THAT(read_file(journal), AllOf(HasSubstr("\"event\":\"slow\",\"rank\":1,\"host\":"),
                                        HasSubstr("\"own_seconds_per_step\":0.01"),
                                        HasSubstr("\"tokens_per_second\":")));
}

TEST(Status, OfASchedulerShowsItsWorkers) {
  const TemporaryFolder temporary;
  const std::string folder = (temporary / "run").string();
  const std::string port = free_port();
  Launched scheduler({"scheduler", "--workers", "3", "--port", port, "--grace", "1", "--status",
                      "0", "--run-dir", folder, "--journal-seconds", "1"});
  EXPECT_THAT(await_status(folder, "state:"), HasSubstr("forming, 0 of 3 ranks came"));
  const std::string program = variable("REPORTING_PROGRAM") + " 1000 10";
  Launched one(worker_of(port, "2", program, {"--node-id", "w1"}));
  Launched two(worker_of(port, "1", program));
  const std::string table = await_status(folder, "steps/s, ");
  EXPECT_THAT(table, AllOf(HasSubstr("3, 2 workers, 1 host"), HasSubstr("127.0.0.1"),
                           HasSubstr("w1"), HasSubstr("0-1")));
  await_file(folder + "/journal.jsonl", "\"event\":\"progress\"");
  scheduler.signal(SIGTERM);
  EXPECT_EQ(scheduler.wait(), 128 + SIGTERM) << scheduler.error;
  one.wait();
  two.wait();
  EXPECT_THAT(
      read_file(folder + "/journal.jsonl"),
      AllOf(HasSubstr("\"event\":\"scheduler\""), HasSubstr("\"event\":\"join\",\"host\":"),
            HasSubstr("\"event\":\"start\",\"run\":"),
            HasSubstr("\"event\":\"ending\",\"code\":143,\"reason\":\"the scheduler got SIGTERM"),
            ContainsRegex("\"event\":\"end\",\"code\":143\\}\n$")));
  EXPECT_FALSE(std::filesystem::exists(folder + "/status_url"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/journal.jsonl.state"));
}

TEST(Status, IsMetricsThatPrometheusAccepts) {
  if (!test::is_installed("promtool")) GTEST_SKIP() << "promtool is not installed (prometheus)";
  const TemporaryFolder temporary;
  const std::string folder = (temporary / "logs").string();
  Launched run({"run", "-n", "2", "--status", "0", "--log-dir", folder, "--",
                variable("REPORTING_PROGRAM"), "1000", "10"});
  await_status(folder, " steps/s, ");
  const std::string url = read_file(folder + "/status_url");
  const auto begin = url.find("://") + 3;
  const auto slash = url.find('/', begin);
  const auto colon = url.rfind(':', slash);
  const std::string token = url.substr(url.find('=') + 1, 32);
  const auto script =
      temporary.write("ask", "exec 3<>/dev/tcp/" + url.substr(begin, colon - begin) + "/" +
                                 url.substr(colon + 1, slash - colon - 1) +
                                 "\nprintf 'GET /metrics HTTP/1.1\\r\\nAuthorization: Bearer " +
                                 token + "\\r\\n\\r\\n' >&3\nsed '1,/^\\r$/d' <&3\n");
  const std::string metrics = folder + "/metrics";
  const Finished checked =
      shell("bash " + script.string() + " >" + metrics + " && grep -c trireme_rank_step{ " +
            metrics + " && promtool check metrics <" + metrics + " && echo accepted");
  EXPECT_EQ(checked.output, "2\naccepted\n");
}

TEST(Status, RefusesWhatItCannotServe) {
  const auto error_of = [](std::vector<std::string> words) {
    Launched failed(std::move(words));
    EXPECT_EQ(failed.wait(), 2) << failed.error;
    return failed.error;
  };
  EXPECT_THAT(error_of(run_script({"--status", "many"}, "exit 0")),
              HasSubstr("--status is 'many', expected a port from 0 to 65535, or ADDRESS:PORT"));
  EXPECT_THAT(error_of(run_script({"--status", "192.0.2.1:0"}, "exit 0")),
              AllOf(HasSubstr("--status"), HasSubstr("192.0.2.1")));
  EXPECT_THAT(error_of(run_script({"--slow-factor", "1"}, "exit 0")),
              HasSubstr("--slow-factor is 1, expected a number above 1"));
  EXPECT_THAT(error_of(run_script({"--journal", "/proc/none/journal"}, "exit 0")),
              HasSubstr("cannot open the journal /proc/none/journal"));
  EXPECT_THAT(error_of({"scheduler", "--workers", "1", "--exclude-slow"}),
              HasSubstr("--exclude-slow has no effect without --slow-factor"));
  EXPECT_THAT(error_of({"scheduler", "--workers", "1", "--max-host-failures", "2"}),
              HasSubstr("--max-host-failures has no effect without --restarts"));
  EXPECT_THAT(error_of({"scheduler", "--workers", "1", "--exclude-faulty"}),
              HasSubstr("--exclude-faulty has no effect without --restarts"));
  EXPECT_THAT(error_of({"scheduler", "--workers", "1", "--run-dir", "/proc/none"}),
              HasSubstr("cannot make the folder of the run /proc/none"));
  EXPECT_THAT(error_of({"status", "http://127.0.0.1:1/?token=abc"}),
              HasSubstr("the address has a token, which other users can read on a command line"));
  EXPECT_THAT(error_of({"status", "/proc"}),
              AllOf(HasSubstr("cannot read /proc/status_url"), HasSubstr("started with --status")));
  EXPECT_THAT(error_of({"status", "--timeout", "1", "127.0.0.1:" + free_port()}),
              HasSubstr("nobody serves a status at 127.0.0.1:"));
  EXPECT_THAT(error_of({"status", "--token-file", "/proc/none", "127.0.0.1:1"}),
              HasSubstr("--token-file is '/proc/none'"));
}

}  // namespace
}  // namespace trireme::launch
