// SPDX-License-Identifier: Apache-2.0
// The shared-memory engine between processes of which one is killed, stopped, ends or goes wrong.
// The engine promises that the others learn within 2 s who it was; here alone a test asserts a
// time.
#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace trireme::shm {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr seconds kPromised{2};
constexpr seconds kGiveUp{30};

// A rank in a process of its own.
class Rank {
 public:
  explicit Rank(std::vector<std::string> arguments) {
    const char* program = std::getenv("SHM_RANK");
    arguments.insert(arguments.begin(), program == nullptr ? "./shm_rank" : program);
    const char* emulator = std::getenv("SHM_RANK_EMULATOR");  // runs programs of another processor
    std::istringstream prefix(emulator == nullptr ? "" : emulator);
    arguments.insert(arguments.begin(), std::istream_iterator<std::string>(prefix), {});
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    auto [output_here, output_there] = make_pipe();
    auto [error_here, error_there] = make_pipe();
    streams_ = {std::move(output_here), std::move(error_here)};
    process_ = ::fork();
    if (process_ == 0) {
      ::dup2(output_there.get(), 1);
      ::dup2(error_there.get(), 2);
      ::execvp(words.front(), words.data());
      ::_exit(126);
    }
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() { wait(SIGKILL); }

  pid_t process() const { return process_; }
  void signal(int number) const { ::kill(process_, number); }
  const std::string& output() const { return texts_[0]; }
  const std::string& error() const { return texts_[1]; }

  // Waits for the end, after a signal if one is given; returns the exit status, or minus the number
  // of the signal that ended it.
  int wait(int number = 0) {
    if (process_ <= 0) return status_;
    if (number != 0) signal(number);
    while (read_until(Clock::now() + kGiveUp)) {
    }
    int status = 0;
    ::waitpid(std::exchange(process_, -1), &status, 0);
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return status_;
  }

  // Reads what comes first; false at the end of both streams and at the deadline.
  bool read_until(Clock::time_point deadline) { return read_some({this}, deadline); }
  static bool read_some(const std::vector<Rank*>& ranks, Clock::time_point deadline) {
    std::vector<pollfd> polled;
    for (Rank* rank : ranks) {
      for (const UniqueFd& stream : rank->streams_) {
        polled.push_back({.fd = stream.get(), .events = POLLIN, .revents = 0});
      }
    }
    if (std::all_of(polled.begin(), polled.end(), [](const pollfd& each) { return each.fd < 0; })) {
      return false;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 ||
        ::poll(polled.data(), polled.size(), static_cast<int>(left.count())) <= 0) {
      return false;
    }
    bool has_read = false;
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      Rank& rank = *ranks[i / 2];
      std::array<char, 4096> buffer{};
      const ssize_t length = ::read(polled[i].fd, buffer.data(), buffer.size());
      if (length > 0) {
        rank.texts_[i % 2].append(buffer.data(), static_cast<std::size_t>(length));
        has_read = true;
      } else {
        rank.streams_[i % 2].reset();  // poll leaves out what is negative
        has_read = true;
      }
    }
    return has_read;
  }

 private:
  static std::pair<UniqueFd, UniqueFd> make_pipe() {
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }

  pid_t process_ = -1;
  int status_ = -1;
  std::array<UniqueFd, 2> streams_;
  std::array<std::string, 2> texts_;
};

// A running group; `extra` are further arguments of one rank.
class Group {
 public:
  struct Settings {
    int size = 3;
    int timeout_ms = 60'000;
    int odd_rank = 1;
    std::string odd_argument = {};  // of that rank
    std::string argument = {};      // of all ranks
    std::uint64_t seed = 1;
  };

  explicit Group(const Settings& settings) {
    std::filesystem::create_directory(folder_);
    for (int rank = 0; rank < settings.size; ++rank) {
      std::vector<std::string> arguments = {
          folder_.string(), std::to_string(rank), std::to_string(settings.size),
          std::to_string(settings.seed), std::to_string(settings.timeout_ms)};
      if (!settings.argument.empty()) arguments.push_back(settings.argument);
      if (rank == settings.odd_rank && !settings.odd_argument.empty()) {
        arguments.push_back(settings.odd_argument);
      }
      ranks_.push_back(std::make_unique<Rank>(arguments));
      processes_.push_back(ranks_.back()->process());
    }
  }

  Rank& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks_.size()); }

  /// Reads what the ranks say until `is_enough`; false at the deadline.
  bool read_until(Clock::time_point deadline, const std::function<bool()>& is_enough) {
    std::vector<Rank*> all;
    for (const auto& rank : ranks_) all.push_back(rank.get());
    while (!is_enough()) {
      if (!Rank::read_some(all, deadline)) return is_enough();
    }
    return true;
  }

  void await_ready() {
    ASSERT_TRUE(read_until(Clock::now() + kGiveUp, [&] { return all_said("ready\n"); })) << texts();
  }
  bool all_said(const std::string& text, int but = -1) {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != but && (*this)[rank].output().find(text) == std::string::npos) return false;
    }
    return true;
  }

  void stop() { std::ofstream(folder_ / "stop").flush(); }

  std::string texts() {
    std::string all;
    for (int rank = 0; rank < size(); ++rank) {
      all += join_message("rank ", rank, ":\n", (*this)[rank].output(), (*this)[rank].error());
    }
    return all;
  }

  /// What lies in /dev/shm that one of these processes made.
  std::vector<std::string> left_over() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      const std::string name = entry.path().filename().string();
      for (const pid_t process : processes_) {
        if (name.starts_with(join_message("trireme-", process, "-"))) names.push_back(name);
      }
    }
    return names;
  }

 private:
  // Beside those of other groups, so that thresholds are measured once.
  static std::filesystem::path new_folder() {
    static const trireme::test::TemporaryFolder all;
    static int number = 0;
    return all.path() / std::to_string(++number);
  }

  std::filesystem::path folder_ = new_folder();
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<pid_t> processes_;
};

// All ranks but one have failed with a message that says this.
void expect_failures(Group& group, int but, const ::testing::Matcher<std::string>& expected) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == but) continue;
    EXPECT_EQ(group[rank].wait(), 3) << group.texts();
    EXPECT_THAT(group[rank].output(), AllOf(HasSubstr("failed: peer "), expected));
  }
  EXPECT_THAT(group.left_over(), IsEmpty());
}

class Sizes : public ::testing::TestWithParam<std::tuple<int, std::string>> {
 protected:
  static int size() { return std::get<0>(GetParam()); }
  static std::string way() { return std::get<1>(GetParam()); }
};

TEST_P(Sizes, RunRandomCollectivesWithoutADifference) {
  Group group({.size = size(), .argument = way(), .seed = 5});
  group.await_ready();
  EXPECT_THAT(group.left_over(), IsEmpty()) << "the name is taken away as soon as all have joined";
  group.stop();
  for (int rank = 0; rank < size(); ++rank) {
    EXPECT_EQ(group[rank].wait(), 0) << group.texts();
    EXPECT_EQ(group[rank].error(), "");
  }
  EXPECT_THAT(group.left_over(), IsEmpty());
}

TEST_P(Sizes, NameARankThatWasKilledWithinTheTimePromised) {
  for (int victim = 0; victim < size(); ++victim) {
    Group group(
        {.size = size(), .argument = way(), .seed = 10 + static_cast<std::uint64_t>(victim)});
    group.await_ready();
    const auto killed_at = Clock::now();
    group[victim].signal(SIGKILL);
    EXPECT_TRUE(
        group.read_until(killed_at + kPromised, [&] { return group.all_said("(end)\n", victim); }))
        << "not all knew within 2 s:\n"
        << group.texts();
    expect_failures(group, victim,
                    AllOf(HasSubstr(join_message("failed: peer ", victim, ": ")),
                          HasSubstr(join_message("rank ", victim, " ended while rank ")),
                          HasSubstr("what each rank did last"), HasSubstr("of group 'tested'"),
                          HasSubstr("hint: its own log or exit status says why")));
    EXPECT_EQ(group[victim].wait(), -SIGKILL);
    // A line for each rank in the error of one rank alone.
    int num_telling = 0;
    for (int rank = 0; rank < size(); ++rank) {
      const std::string said = group[rank].output();
      if (rank == victim) continue;
      const bool tells = said.find("what each rank did last:\n") != std::string::npos;
      num_telling += tells ? 1 : 0;
      if (!tells) {
        EXPECT_THAT(said, HasSubstr(" says what each rank did last\n"));
      }
    }
    EXPECT_EQ(num_telling, 1) << group.texts();
  }
}

INSTANTIATE_TEST_SUITE_P(All, Sizes,
                         ::testing::Combine(::testing::Values(2, 3, 4),
                                            ::testing::Values(std::string(), "by-name")),
                         [](const auto& each) {
                           return join_message(std::get<0>(each.param), "_ranks",
                                               std::get<1>(each.param).empty() ? "" : "_by_name");
                         });

TEST(Faults, AStoppedRankIsReportedAndMayGoOn) {
  Group group({.size = 3});
  group.await_ready();
  const auto stopped_at = Clock::now();
  group[1].signal(SIGSTOP);
  const std::string expected = join_message("waits for rank 1 (process ", group[1].process(),
                                            "), which does not respond: it is stopped by a signal");
  EXPECT_TRUE(group.read_until(stopped_at + kPromised, [&] {
    return group[0].error().find(expected) != std::string::npos ||
           group[2].error().find(expected) != std::string::npos;
  })) << group.texts();
  EXPECT_THAT(group[0].error() + group[2].error(), HasSubstr("trireme: group 'tested': rank "));
  group[1].signal(SIGCONT);
  group.stop();
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(group[rank].wait(), 0) << group.texts();
  EXPECT_THAT(group.left_over(), IsEmpty());
}

TEST(Faults, AStoppedRankIsAnErrorAtTheDeadline) {
  Group group({.size = 3, .timeout_ms = 2000});
  group.await_ready();
  group[2].signal(SIGSTOP);
  EXPECT_TRUE(group.read_until(Clock::now() + kGiveUp, [&] {
    return group.all_said("(end)\n", 2);
  })) << group.texts();
  expect_failures(group, 2,
                  AllOf(HasSubstr("failed: peer 2: "),
                        HasSubstr("rank 2 did not come within the timeout of 2 s while rank "),
                        HasSubstr("rank 2 is stopped by a signal")));
  // When it goes on, it learns that its group is gone.
  group[2].signal(SIGCONT);
  EXPECT_EQ(group[2].wait(), 3);
  EXPECT_THAT(group[2].output(), HasSubstr("rank 2 did not come within the timeout of 2 s"));
}

// Which operation a fault hits; the trace of a failure tells.
int random_operation() { return static_cast<int>(21 + std::random_device()() % 80); }

TEST(Faults, ARankThatEndsIsNamedAtOnce) {
  for (const int size : {2, 4}) {
    // Its destructors do not run: only the system knows that it is gone.
    const int number = random_operation();
    SCOPED_TRACE(number);
    Group group({.size = size, .odd_argument = join_message("exit:", number)});
    EXPECT_EQ(group[1].wait(), 0);
    EXPECT_TRUE(group.read_until(Clock::now() + kPromised, [&] {
      return group.all_said("(end)\n", 1);
    })) << group.texts();
    expect_failures(group, 1,
                    AllOf(HasSubstr("failed: peer 1: "), HasSubstr("rank 1 ended while rank "),
                          AnyOf(AllOf(HasSubstr("rank 1: has done broadcast with root 0 of 1 "
                                                "uint8, number "),
                                      HasSubstr("('whether to stop')")),
                                HasSubstr(" says what each rank did last"))));  // another one
  }
}

TEST(Faults, ARankThatIsKilledIsNamedToThoseWhoWaitForItsMessage) {
  Group group({.size = 3, .argument = "listen:25"});
  ASSERT_TRUE(group.read_until(Clock::now() + kGiveUp, [&] {
    return group.all_said("listening\n");
  })) << group.texts();
  group[2].signal(SIGKILL);
  EXPECT_TRUE(group.read_until(Clock::now() + kPromised, [&] {
    return group.all_said("(end)\n", 2);
  })) << group.texts();
  expect_failures(group, 2,
                  AllOf(HasSubstr("failed: peer 2: receive from rank 2 of 8 uint8, number 1"),
                        HasSubstr("rank 2 ended while rank ")));
}

TEST(Faults, ARankThatThrowsIsNamedAtOnce) {
  const int number = random_operation();
  SCOPED_TRACE(number);
  Group group({.size = 3, .odd_argument = join_message("throw:", number)});
  EXPECT_EQ(group[1].wait(), -SIGABRT);
  EXPECT_THAT(group[1].error(), HasSubstr("out of luck"));
  EXPECT_TRUE(group.read_until(Clock::now() + kPromised, [&] {
    return group.all_said("(end)\n", 1);
  })) << group.texts();
  expect_failures(
      group, 1,
      AllOf(HasSubstr("failed: peer 1: "), AnyOf(HasSubstr("rank 1 ended while rank "),
                                                 HasSubstr("rank 1 left the group while rank "))));
}

TEST(Faults, ARankThatLeavesTheGroupIsNamedAtOnce) {
  const int number = random_operation();
  SCOPED_TRACE(number);
  Group group({.size = 3, .odd_rank = 0, .odd_argument = join_message("return:", number)});
  EXPECT_EQ(group[0].wait(), 0);
  EXPECT_TRUE(group.read_until(Clock::now() + kPromised, [&] {
    return group.all_said("(end)\n", 0);
  })) << group.texts();
  expect_failures(
      group, 0,
      AllOf(HasSubstr("failed: peer 0: "), HasSubstr("rank 0 left the group while rank "),
            HasSubstr("what each rank did last")));
  EXPECT_THAT(group.texts(), HasSubstr(", and has left"));  // one rank tells it for all
}

TEST(Faults, ADifferentCallIsNamedOnAllRanksAtOnce) {
  for (const int size : {2, 3, 4}) {
    for (const std::uint64_t seed : {1U, 2U, 3U, 4U}) {
      const int number = random_operation();
      SCOPED_TRACE(number);
      Group group({.size = size, .odd_argument = join_message("barrier:", number), .seed = seed});
      EXPECT_TRUE(group.read_until(Clock::now() + kGiveUp, [&] {
        return group.all_said("(end)\n");
      })) << group.texts();
      expect_failures(group, -1,
                      AllOf(HasSubstr("the ranks make different calls: rank "),
                            HasSubstr("barrier, number "), HasSubstr("what each rank did last")));
      EXPECT_THAT(group.texts(), HasSubstr(join_message("('operation ", number, "')")));
    }
  }
}

TEST(Faults, ARankThatComputesIsNone) {
  // For longer than it takes to report one that is stopped.
  Group group({.size = 2, .odd_argument = "compute:10"});
  group.await_ready();
  group.stop();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(group[rank].wait(), 0) << group.texts();
    EXPECT_EQ(group[rank].error(), "");
  }
}

}  // namespace
}  // namespace trireme::shm
