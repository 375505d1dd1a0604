// SPDX-License-Identifier: Apache-2.0
// `trireme certificates`, and `trireme scheduler` and `trireme worker` with what it makes.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <tests/processes/free_port.h>
#include <tests/processes/launch/launched.h>
#include <tests/temporary_folder.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::launch {
namespace {

using test::free_port;
using test::Launched;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

// Sets variables for what is started meanwhile.
class Variables {
 public:
  explicit Variables(std::vector<std::pair<std::string, std::string>> all) : all_(std::move(all)) {
    for (const auto& [name, value] : all_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;
  ~Variables() {
    for (const auto& [name, value] : all_) ::unsetenv(name.c_str());
  }

 private:
  std::vector<std::pair<std::string, std::string>> all_;
};

class Certificates : public testing::Test {
 protected:
  void SetUp() override {
    Launched made(make({"127.0.0.1,localhost", "host1"}));
    ASSERT_EQ(made.wait(), 0) << made.error;
    EXPECT_THAT(made.output, AllOf(HasSubstr("made the authority "), HasSubstr("hosts/127.0.0.1\n"),
                                   HasSubstr("export TRIREME_TLS=FOLDER")));
  }

  std::vector<std::string> make(const std::vector<std::string>& words) const {
    std::vector<std::string> all{"certificates", "make",
                                 "--ca-folder",  (folder_ / "ca").string(),
                                 "--folder",     (folder_ / "hosts").string()};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  std::string files(const std::string& host) const { return (folder_ / "hosts" / host).string(); }
  static std::vector<std::string> scheduler(const std::string& port,
                                            const std::vector<std::string>& more = {}) {
    std::vector<std::string> all{"scheduler", "--workers", "2", "--port", port, "--timeout", "100"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static std::vector<std::string> worker(const std::string& port, const std::string& script,
                                         const std::vector<std::string>& more = {}) {
    std::vector<std::string> all{"worker",    "-n",  "2",        "--scheduler", "127.0.0.1:" + port,
                                 "--timeout", "100", "--output", "all"};
    all.insert(all.end(), more.begin(), more.end());
    all.insert(all.end(), {"--", "sh", "-c", script});
    return all;
  }

 private:
  test::TemporaryFolder folder_;
};

// The status is shown by HTTPS to those with a certificate, also after another scheduler has taken
// up the run, with the same secret of the store.
TEST_F(Certificates, OpenTheStatus) {
  const std::string port = free_port();
  const test::TemporaryFolder temporary;
  const std::string folder = (temporary / "run").string();
  const auto ask = [&](const std::string& host) {
    Launched asked({"status", "--tls", files(host), folder});
    asked.wait();
    return asked.output + asked.error;
  };
  const std::vector<std::string> more{
      "--tls", files("127.0.0.1"), "--status", "0",          "--grace",
      "0",     "--run-dir",        folder,     "--restarts", "1"};
  const Launched killed(scheduler(port, more));
  Launched ranks(
      worker(port, "echo secret $TRIREME_SECRET; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 100",
             {"--tls", files("host1")}));
  ranks.await_output("secret");
  EXPECT_THAT(test::read_file(folder + "/status_url"), HasSubstr("https://127.0.0.1:"));
  EXPECT_THAT(ask("host1"), HasSubstr("state:     running"));
  Launched without({"status", folder});
  EXPECT_EQ(without.wait(), 2);
  EXPECT_THAT(without.error, HasSubstr("is encrypted, and this side has no certificate"));
  killed.signal(SIGKILL);
  ranks.await_error("ended by the scheduler for a restart");
  Launched again(scheduler(port, more));
  EXPECT_EQ(again.wait(), 0) << again.error;
  EXPECT_EQ(ranks.wait(), 0) << ranks.error;
  const auto secret = ranks.output.substr(ranks.output.find("secret "), 39);
  EXPECT_EQ(secret.size(), 39);
  std::size_t lines = 0;
  for (auto at = ranks.output.find(secret); at != std::string::npos;
       at = ranks.output.find(secret, at + 1))
    ++lines;
  EXPECT_EQ(lines, 4) << ranks.output;
}

TEST_F(Certificates, AreExamined) {
  Launched good({"certificates", "check", "--tls", files("127.0.0.1"), "--host", "localhost"});
  EXPECT_EQ(good.wait(), 0) << good.output << good.error;
  EXPECT_THAT(good.output, AllOf(HasSubstr("for        127.0.0.1, localhost\n"),
                                 // A second later one of them has begun.
                                 AnyOf(HasSubstr("365 days left"), HasSubstr("364 days left")),
                                 HasSubstr("the files fit together, and can be used")));
  Launched other({"certificates", "check", "--tls", files("127.0.0.1"), "--tls-key",
                  files("host1") + "/key.pem", "--host", "host2"});
  EXPECT_EQ(other.wait(), 1);
  EXPECT_THAT(other.output, AllOf(HasSubstr("error: the key "), HasSubstr("not that of the cert"),
                                  HasSubstr("and not for host2"), HasSubstr("cannot be used")));
  const Variables variables({{"TRIREME_TLS", files("host1")}});
  Launched by_variable({"certificates", "check"});
  EXPECT_EQ(by_variable.wait(), 0);
  EXPECT_THAT(by_variable.output, HasSubstr("for        host1\n"));
}

TEST_F(Certificates, NameWrongOptions) {
  Launched none({"certificates", "check"});
  EXPECT_EQ(none.wait(), 2);
  EXPECT_THAT(none.error, HasSubstr("no files were named, expected --tls FOLDER"));
  Launched again(make({"host1"}));
  EXPECT_EQ(again.wait(), 2);
  EXPECT_THAT(again.error, AllOf(HasSubstr("exists already"), HasSubstr("--replace")));
  Launched replaced(make({"--replace", "--days", "7", "host1"}));
  EXPECT_EQ(replaced.wait(), 0) << replaced.error;
  EXPECT_THAT(replaced.output, HasSubstr("used the authority "));
  Launched soon({"certificates", "check", "--tls", files("host1")});
  EXPECT_EQ(soon.wait(), 0);
  EXPECT_THAT(soon.output, HasSubstr("warning: the certificate "));
  Launched zero(make({"--days", "0", "host2"}));
  EXPECT_EQ(zero.wait(), 2);
  EXPECT_THAT(zero.error, HasSubstr("'0', expected an integer from 1 to 36500"));
}

TEST_F(Certificates, EncryptARunAndGiveItASecret) {
  const std::string port = free_port();
  // The scheduler is told by options, and the worker by variables of MindSpore and of Trireme.
  Launched schedules(scheduler(port, {"--tls", files("127.0.0.1")}));
  const Variables variables({{"TRIREME_TLS", files("host1")}, {"MS_ENABLE_SSL", "true"}});
  Launched works(worker(port, "echo secret of ${#TRIREME_SECRET}"));
  EXPECT_EQ(works.wait(), 0) << works.error;
  EXPECT_EQ(schedules.wait(), 0) << schedules.error;
  EXPECT_THAT(schedules.error, HasSubstr(", encrypted (TLS)"));
  EXPECT_THAT(works.output,
              AllOf(HasSubstr("[rank 0] secret of 32"), HasSubstr("[rank 1] secret of 32")));
}

TEST_F(Certificates, TakeThePlaceOfTheSecretInTheEnvironmentForTheStore) {
  const std::string port = free_port();
  const Variables variables(
      {{"TRIREME_TLS", files("127.0.0.1")}, {"TRIREME_SECRET", "0123456789abcdef"}});
  Launched schedules(scheduler(port));
  Launched works(worker(port, "test $TRIREME_SECRET != 0123456789abcdef"));
  EXPECT_EQ(works.wait(), 0) << works.error;
  EXPECT_EQ(schedules.wait(), 0) << schedules.error;
}

TEST_F(Certificates, AreNeededOnBothSides) {
  const std::string port = free_port();
  Launched schedules(scheduler(port, {"--tls", files("127.0.0.1")}));
  Launched plain(worker(port, "exit 0"));
  EXPECT_EQ(plain.wait(), 2);
  EXPECT_THAT(plain.error, HasSubstr("the scheduler encrypts its connections (TLS), and the worker "
                                     "at 127.0.0.1 does not"));
  schedules.signal(SIGTERM);
  EXPECT_EQ(schedules.wait(), 128 + SIGTERM);
  EXPECT_THAT(schedules.error, HasSubstr("  1 connection: not encrypted"));
  const std::string other_port = free_port();
  Launched open(scheduler(other_port));
  Launched encrypting(worker(other_port, "exit 0", {"--tls", files("host1")}));
  EXPECT_EQ(encrypting.wait(), 2);
  EXPECT_THAT(encrypting.error, HasSubstr("does not encrypt its connections (TLS), and this"));
  open.signal(SIGTERM);
  EXPECT_EQ(open.wait(), 128 + SIGTERM);
  EXPECT_THAT(open.error, HasSubstr("  1 connection: encrypted"));
}

TEST_F(Certificates, AreTakenOnlyIfNobodyElseCanReadTheKey) {
  ASSERT_EQ(::chmod((files("host1") + "/key.pem").c_str(), 0644), 0);
  for (const char* command : {"scheduler", "worker"}) {
    std::vector<std::string> words{command, "--tls", files("host1")};
    if (command == std::string("scheduler")) {
      words.insert(words.end(), {"--workers", "1", "--port", free_port()});
    } else {
      words.insert(words.end(), {"--", "true"});
    }
    Launched refused(words);
    EXPECT_EQ(refused.wait(), 2);
    EXPECT_THAT(refused.error, AllOf(HasSubstr("has mode 0644: other users can read or write it"),
                                     HasSubstr("chmod 600 " + files("host1") + "/key.pem")));
  }
}

TEST_F(Certificates, LetAWorkerTellWhyItCannotRunItsRanks) {
  const std::string port = free_port();
  const test::TemporaryFolder logs;
  ASSERT_EQ(::mkdir((logs / "rank_0.log").c_str(), 0700), 0);
  const Variables variables({{"TRIREME_TLS", files("127.0.0.1")}});
  Launched schedules(scheduler(port));
  Launched works(worker(port, "exec sleep 1000", {"--log-dir", logs.path().string()}));
  EXPECT_EQ(works.wait(), 2);
  EXPECT_EQ(schedules.wait(), 2);
  EXPECT_THAT(schedules.error, AllOf(HasSubstr("rank 0 failed first: "),
                                     HasSubstr("could not be run: "), HasSubstr("rank_0.log")));
}

TEST_F(Certificates, AreRefusedWhereNothingIsEncrypted) {
  const Variables variables({{"TRIREME_TLS", files("host1")}});
  Launched several({"run", "--nnodes", "2", "--node-rank", "1", "-n", "1", "--master-addr", "far",
                    "--master-port", "4711", "--", "true"});
  EXPECT_EQ(several.wait(), 2);
  EXPECT_THAT(several.error,
              AllOf(HasSubstr("TRIREME_TLS is set, but trireme run --nnodes encrypts "
                              "nothing"),
                    HasSubstr("use trireme scheduler and trireme worker")));
  Launched one({"run", "-n", "1", "--", "true"});
  EXPECT_EQ(one.wait(), 0) << "there is no network to encrypt";
}

}  // namespace
}  // namespace trireme::launch
