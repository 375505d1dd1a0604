// SPDX-License-Identifier: Apache-2.0
// A text that the launcher passes on from rank 0, with a process manager of the test's own.
#include <trireme/launch/store/launcher_exchange.h>

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>
#include <trireme/launch/network_interfaces.h>
#include <trireme/launch/store/passed_store.h>

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <map>
#include <string>
#include <thread>

namespace trireme::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

// Answers each line that begins with a key by its value; closes the connection for an unknown one.
class ProcessManager {
 public:
  explicit ProcessManager(std::map<std::string, std::string> answers)
      : answers_(std::move(answers)) {
    std::array<int, 2> ends{-1, -1};
    ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data());
    here_ = UniqueFd(ends[0]);
    rank_ = UniqueFd(ends[1]);
    thread_ = std::thread([this] { serve(); });
  }
  ProcessManager(const ProcessManager&) = delete;
  ProcessManager& operator=(const ProcessManager&) = delete;
  ~ProcessManager() {
    ::shutdown(here_.get(), SHUT_RDWR);
    thread_.join();
  }

  Environment environment() const { return Environment({{"PMI_FD", std::to_string(rank_.get())}}); }
  const std::string& put() const { return put_; }

 private:
  void serve() {
    std::string line;
    for (char byte = 0; ::read(here_.get(), &byte, 1) == 1;) {
      if (byte != '\n') {
        line += byte;
        continue;
      }
      if (line.starts_with("cmd=put")) put_ = line;
      const auto found = std::ranges::find_if(
          answers_, [&](const auto& one) { return line.starts_with(one.first); });
      line.clear();
      if (found == answers_.end()) break;
      const std::string answer = found->second + "\n";
      if (found->second.empty()) continue;  // no answer
      if (::write(here_.get(), answer.data(), answer.size()) < 0) break;
    }
    ::shutdown(here_.get(), SHUT_RDWR);
  }

  std::map<std::string, std::string> answers_;
  std::string put_;
  UniqueFd here_;
  UniqueFd rank_;
  std::thread thread_;
};

const std::map<std::string, std::string> kAnswers = {
    {"cmd=init pmi_version=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"},
    {"cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_7"},
    {"cmd=put kvsname=kvs_7 key=trireme-store value=here", "cmd=put_result rc=0 msg=success"},
    {"cmd=barrier_in", "cmd=barrier_out rc=0"},
    {"cmd=get kvsname=kvs_7 key=trireme-store", "cmd=get_result rc=0 msg=success value=here"},
    {"cmd=finalize", "cmd=finalize_ack rc=0"}};

std::map<std::string, std::string> answers_but(const std::string& request,
                                               const std::string& answer) {
  auto answers = kAnswers;
  answers[request] = answer;
  return answers;
}

std::string pass(const ProcessManager& manager, int rank,
                 milliseconds timeout = milliseconds(60'000)) {
  return pass_from_rank_0(
      manager.environment(), {.rank = rank}, [] { return std::string("here"); }, timeout);
}

TEST(PassFromRank0, UsesPmi) {
  const ProcessManager of_rank_0(kAnswers);
  EXPECT_EQ(pass(of_rank_0, 0), "here");
  EXPECT_THAT(of_rank_0.put(), HasSubstr("value=here"));
  const ProcessManager of_rank_1(kAnswers);
  EXPECT_EQ(pass(of_rank_1, 1), "here");
  EXPECT_THAT(of_rank_1.put(), IsEmpty());
}

TEST(PassFromRank0, SaysWhatTheProcessManagerAnswered) {
  const ProcessManager manager(
      answers_but("cmd=get kvsname=kvs_7 key=trireme-store", "cmd=get_result rc=-1 msg=unknown"));
  EXPECT_THAT([&] { pass(manager, 1); },
              ThrowsMessage<CommError>(HasSubstr("to 'cmd=get kvsname=kvs_7 key=trireme-store' it "
                                                 "answered 'cmd=get_result rc=-1 msg=unknown'")));
}

TEST(PassFromRank0, NoticesThatTheProcessManagerIsGone) {
  auto answers = kAnswers;
  answers.erase("cmd=barrier_in");
  const ProcessManager manager(answers);
  EXPECT_THAT([&] { pass(manager, 1); },
              ThrowsMessage<CommError>(HasSubstr("'cmd=barrier_in' the connection was closed")));
}

TEST(PassFromRank0, WaitsNoLongerThanItsDeadline) {
  const ProcessManager manager(answers_but("cmd=barrier_in", ""));
  EXPECT_THAT([&] { pass(manager, 1, milliseconds(50)); },
              ThrowsMessage<CommError>(HasSubstr("nothing came before the deadline")));
}

TEST(PassFromRank0, NeedsALauncherThatPassesTextsOn) {
  const auto make = [] { return std::string(); };
  EXPECT_THAT([&] { pass_from_rank_0(Environment(), {.rank = 2}, make, milliseconds(50)); },
              ThrowsMessage<ConfigError>(HasSubstr("neither PMI_FD (PMI) nor PMIX_NAMESPACE")));
  EXPECT_THAT(
      [&] {
        pass_from_rank_0(Environment({{"PMI_FD", "9999"}}), {.rank = 2}, make, milliseconds(50));
      },
      ThrowsMessage<ConfigError>(HasSubstr("PMI_FD is 9999, which is no open file")));
}

TEST(StorePlaces, AreOneWordAndReadAgain) {
  const StorePlaces places{
      .port = 4711, .secret = "0123456789abcdef", .addresses = {"10.0.0.1", "fd00::2", "host0"}};
  const std::string text = encode(places);
  EXPECT_EQ(text, "4711;0123456789abcdef;10.0.0.1,fd00::2,host0");
  const StorePlaces read = decode_places(text);
  EXPECT_EQ(read.port, places.port);
  EXPECT_EQ(read.secret, places.secret);
  EXPECT_EQ(read.addresses, places.addresses);
  for (const char* wrong : {"", "here", "0;a;b", "70000;a;b", "4711;abc"}) {
    EXPECT_THAT([&] { decode_places(wrong); },
                ThrowsMessage<CommError>(HasSubstr("as the place of rank 0")));
  }
}

TEST(StorePlaces, FitIntoAValueOfPmi) {
  StorePlaces places{.port = 4711, .secret = "0123456789abcdef"};
  for (int i = 0; i < 1000; ++i) places.addresses.push_back("10.0.0." + std::to_string(i));
  EXPECT_LT(encode(places).size(), 1000U);
}

TEST(OwnAddresses, EndWithTheNameOfTheHost) {
  EXPECT_THAT(own_addresses(""), Not(IsEmpty()));
  EXPECT_EQ(own_addresses("no such interface").size(), 1U);
  for (const InterfaceAddress& one : interface_addresses()) {
    EXPECT_THAT(one.address, Not(HasSubstr("127.")));
  }
}

}  // namespace
}  // namespace trireme::launch
