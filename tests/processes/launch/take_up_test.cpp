// SPDX-License-Identifier: Apache-2.0
// A scheduler that is killed, and one that takes up its run, with scripts as ranks.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <tests/processes/free_port.h>
#include <tests/processes/launch/launched.h>
#include <tests/processes/launch/worker_words.h>
#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::launch {
namespace {

using test::free_port;
using test::Launched;
using test::read_file;
using test::shell;
using test::TemporaryFolder;
using test::worker_of;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

// Waits in the first attempt.
constexpr const char* kWaits =
    "echo rank $RANK of $WORLD_SIZE in $TRIREME_RUN_ID, attempt $TORCHELASTIC_RESTART_COUNT; "
    "[ $TORCHELASTIC_RESTART_COUNT -gt 0 ] || sleep 100";

class TakeUp : public testing::Test {
 public:
  std::vector<std::string> scheduler_words(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"scheduler", "--workers", "3",         "--port", port,
                                   "--grace",   "1",         "--run-dir", folder};
    if (std::ranges::find(more, "--restarts") == more.end())
      words.insert(words.end(), {"--restarts", "2"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  std::string journal() const { return read_file(folder + "/journal.jsonl"); }

  TemporaryFolder temporary;
  std::string folder = (temporary / "run").string();
  std::string state = folder + "/journal.jsonl.state";
  std::string port = free_port();
};

TEST_F(TakeUp, FormsTheSameRunAgain) {
  Launched one(worker_of(port, "2", kWaits));
  Launched two(worker_of(port, "1", kWaits));
  {
    Launched killed(scheduler_words({"--status", "0"}));
    one.await_output("attempt 0");
    two.await_output("attempt 0");
    EXPECT_EQ(shell("stat -c %a " + state).output, "600\n");
    killed.signal(SIGKILL);
    killed.wait();
  }
  const std::string url = read_file(folder + "/status_url");
  // Nobody goes on alone.
  one.await_error("the ranks start again when it is back");
  one.await_error("ended by the scheduler for a restart");
  two.await_error("ended by the scheduler for a restart");
  Launched scheduler(scheduler_words({"--status", "0"}));
  scheduler.await_error("takes up the run ");
  EXPECT_EQ(scheduler.wait(), 0) << scheduler.error;
  EXPECT_EQ(one.wait(), 0) << one.error;
  EXPECT_EQ(two.wait(), 0) << two.error;
  EXPECT_TRUE(one.await_nothing_left());
  EXPECT_THAT(one.output,
              AllOf(HasSubstr(", attempt 0"), ContainsRegex("rank . of 3 in [^ ]*-1, attempt 1")));
  // The address of the status is the same.
  EXPECT_THAT(url, HasSubstr(scheduler.error.substr(scheduler.error.find("http://"), 20)));
  EXPECT_THAT(journal(), AllOf(HasSubstr("\"event\":\"take_up\",\"run\":"),
                               ContainsRegex("\"event\":\"end\",\"code\":0\\}\n$")));
  EXPECT_FALSE(std::filesystem::exists(state));
}

// The process of the store may still be there, and have the port.
TEST_F(TakeUp, WaitsForItsPort) {
  Launched killed(scheduler_words({"--status", "0"}));
  Launched one(worker_of(port, "3", kWaits));
  one.await_output("attempt 0");
  const std::string url = read_file(folder + "/status_url");
  killed.signal(SIGKILL);
  Launched scheduler(scheduler_words({"--status", "0"}));
  scheduler.await_error("takes up the run ");
  EXPECT_EQ(read_file(folder + "/status_url"), url);
  EXPECT_EQ(scheduler.wait(), 0) << scheduler.error;
  EXPECT_EQ(one.wait(), 0) << one.error;
}

TEST_F(TakeUp, KeepsTheSecretOfTheRun) {
  ::setenv("TRIREME_SECRET", "0123456789abcdef", 1);
  Launched one(worker_of(port, "3", kWaits));
  Launched killed(scheduler_words());
  ::unsetenv("TRIREME_SECRET");
  one.await_output("attempt 0");
  killed.signal(SIGKILL);
  killed.wait();
  Launched scheduler(scheduler_words());  // has it from the file
  EXPECT_EQ(scheduler.wait(), 0) << scheduler.error;
  EXPECT_EQ(one.wait(), 0) << one.error;
}

TEST_F(TakeUp, FormsAWorldThatWasNotComplete) {
  Launched one(worker_of(port, "2", "echo rank $RANK, attempt $TORCHELASTIC_RESTART_COUNT"));
  Launched killed(scheduler_words());
  shell("until grep -q '\"join\"' " + folder + "/journal.jsonl; do sleep 0.1; done");
  killed.signal(SIGKILL);
  killed.wait();
  Launched two(worker_of(port, "1", "exit 0"));
  Launched scheduler(scheduler_words());
  EXPECT_EQ(scheduler.wait(), 0) << scheduler.error;
  EXPECT_EQ(one.wait(), 0) << one.error;
  EXPECT_EQ(two.wait(), 0) << two.error;
  EXPECT_THAT(one.output, HasSubstr("attempt 0"));
}

TEST_F(TakeUp, EndsWorkersIfNoSchedulerComes) {
  std::vector<std::string> words = worker_of(port, "3", kWaits);
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--timeout") words[i + 1] = "2";
  }
  Launched killed(scheduler_words());
  Launched one(words);
  one.await_output("attempt 0");
  killed.signal(SIGKILL);
  killed.wait();
  EXPECT_EQ(one.wait(), 2) << one.error;
  EXPECT_THAT(one.error,
              AllOf(HasSubstr("no scheduler answered at 127.0.0.1:"), HasSubstr("within 2 s")));
  EXPECT_TRUE(one.await_nothing_left());
}

TEST_F(TakeUp, EndsWorkersAtOnceIfNoRestartIsLeft) {
  Launched killed({"scheduler", "--workers", "3", "--port", port, "--run-dir", folder});
  Launched one(worker_of(port, "3", kWaits));
  one.await_output("attempt 0");
  killed.signal(SIGKILL);
  killed.wait();
  EXPECT_EQ(one.wait(), 1) << one.error;
  EXPECT_THAT(one.error, HasSubstr("has ended or cannot be reached any more"));
}

TEST_F(TakeUp, RefusesARunThatItCannotTakeUp) {
  const auto refused = [&](const std::vector<std::string>& more) {
    Launched scheduler(scheduler_words(more));
    EXPECT_EQ(scheduler.wait(), 2) << scheduler.error;
    return scheduler.error;
  };
  std::filesystem::create_directories(folder);
  const std::string content =
      R"({"format":1,"run":"a-run","attempt":2,"secret":"0123456789abcdef","encrypted":false,)"
      R"("store_secret":"","status_token":"","status_port":0,"hosts":[]})";
  test::write_file(state, content);
  ASSERT_EQ(::chmod(state.c_str(), 0644), 0);
  EXPECT_THAT(refused({}), HasSubstr("has secrets, and other users may read it"));
  ASSERT_EQ(::chmod(state.c_str(), 0600), 0);
  EXPECT_THAT(refused({}), AllOf(HasSubstr("has had 2 restarts, and --restarts is 2"),
                                 HasSubstr("give --restarts 3 or more")));
  ::setenv("TRIREME_SECRET", "another secret of a run", 1);
  EXPECT_THAT(refused({"--restarts", "3"}), HasSubstr("has another secret than TRIREME_SECRET"));
  ::unsetenv("TRIREME_SECRET");
  for (const std::string damaged : {"", "{", "{\"format\":1}", "[]"}) {
    test::write_file(state, damaged);
    EXPECT_THAT(refused({}), HasSubstr("is damaged"));
  }
  test::write_file(state, "{\"format\":9}");
  EXPECT_THAT(refused({}), HasSubstr("has another format"));
  std::filesystem::remove(state);
  Launched first(scheduler_words());
  first.await_error("listens at");
  port = free_port();
  EXPECT_THAT(refused({}), AllOf(HasSubstr("the journal"), HasSubstr("is in use by process")));
}

}  // namespace
}  // namespace trireme::launch
