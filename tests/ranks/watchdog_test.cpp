// SPDX-License-Identifier: Apache-2.0
// Who keeps a group waiting over an engine that does not tell. Processes that are stopped or killed
// are in tests/processes/world.
#include <trireme/comm/monitor/watchdog.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <future>
#include <mutex>
#include <stdexcept>

namespace trireme::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Lines that the watches of all ranks report, awaited with a deadline.
class Lines {
 public:
  void add(const std::string& line) {
    const std::lock_guard lock(mutex_);
    text_ += line + "\n";
    added_.notify_all();
  }
  std::string await(const std::string& part) {
    std::unique_lock lock(mutex_);
    added_.wait_for(lock, std::chrono::seconds(60),
                    [&] { return text_.find(part) != std::string::npos; });
    return text_;
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable added_;
  std::string text_;
};

struct Setting {
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  std::string engine = "gloo";
  std::vector<std::string> machines = {};
  int silent_rank = -1;  ///< answers nobody, and is far away
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  pid_t last_process = ::getpid();  ///< what the last rank says its process is
};

// Threads as ranks, each with a watch of its own.
std::vector<std::exception_ptr> run_watched(int size, Lines& lines,
                                            const std::function<void(const Group&)>& body,
                                            const Setting& setting = {}) {
  std::vector<Watchdog::Rank> all;
  for (int rank = 0; rank < size; ++rank) {
    all.push_back({.process = rank == size - 1 ? setting.last_process : ::getpid(),
                   .host = "here",
                   .is_near = rank != setting.silent_rank});
  }
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto watch = std::make_shared<Watchdog>(setting.store, rank, all);
        watch->set_report([&](const std::string& line) { lines.add(line); });
        const EngineContext context = {.store = setting.store,
                                       .rank = rank,
                                       .size = size,
                                       .group_name = "watched",
                                       .machines = setting.machines,
                                       .timeout = setting.timeout,
                                       .watch = rank == setting.silent_rank ? nullptr : watch};
        body(connect(choose_engine(setting.engine, context.is_one_host()), context));
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  threads.clear();  // joins
  return thrown;
}

TEST(Watchdog, NamesTheRankThatHangs) {
  Lines lines;
  const auto thrown = run_watched(3, lines, [&](const Group& group) {
    // Blocked here, it uses no processor time.
    if (group.rank() == 1) {
      EXPECT_THAT(lines.await("rank 1 hangs"),
                  AllOf(HasSubstr("group 'watched': rank "),
                        HasSubstr("in all-reduce of 4 Float, number 2: rank 1 hangs, or waits for "
                                  "something else (it used 0"),
                        Not(HasSubstr("rank 0 hangs")), Not(HasSubstr("rank 2 hangs"))));
    }
    all_reduce(at::zeros({4}), group);
  });
  for (const auto& exception : thrown) EXPECT_FALSE(exception);
}

// A rank that waits in shared memory for a third one was blamed as one that hangs.
TEST(Watchdog, KnowsWhoWaitsInAGroupInSharedMemory) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::vector<Watchdog::Rank> all(
      3, Watchdog::Rank{.process = ::getpid(), .host = "here", .is_near = true});
  std::promise<void> seen;
  const std::shared_future<void> is_seen = seen.get_future().share();
  const auto run = [&](int rank) {
    const auto watch = std::make_shared<Watchdog>(store, rank, all);
    watch->set_report([](const std::string&) {});
    const auto context_of = [&](const std::string& name, std::vector<int> world_ranks) {
      const auto place = std::ranges::find(world_ranks, rank) - world_ranks.begin();
      return EngineContext{.store = c10::make_intrusive<c10d::PrefixStore>(name, store),
                           .rank = static_cast<int>(place),
                           .size = static_cast<int>(world_ranks.size()),
                           .group_name = name,
                           .world_ranks = world_ranks,
                           .timeout = std::chrono::seconds(60),
                           .watch = watch};
    };
    const Group whole = connect(choose_engine("gloo", true), context_of("whole", {0, 1, 2}));
    if (rank == 0) {
      std::jthread waits([&] { all_reduce(at::zeros({4}), whole); });
      const Watchdog::Group group = {
          .name = "whole", .rank = 0, .world_ranks = {0, 1, 2}, .place = {}};
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(50);
      Finding found;
      while (found.fate != RankStatus::kWaits && std::chrono::steady_clock::now() < give_up) {
        found = watch->look_at(group, 1, 2);  // the first one proved the connection
      }
      seen.set_value();
      EXPECT_EQ(found.text,
                "waits itself in all-reduce (sum) of 4 float32, number 2 of group 'pair'");
    } else {
      const Group pair = connect(choose_engine("shm", true), context_of("pair", {1, 2}));
      if (rank == 2) is_seen.wait();  // hangs
      all_reduce(at::zeros({4}), pair);
      all_reduce(at::zeros({4}), whole);
    }
  };
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::async(std::launch::async, run, rank));
  }
  for (auto& each : ranks) EXPECT_NO_THROW(each.get());
}

TEST(Watchdog, NamesTheRankThatDidNotComeInTheErrorAtTheDeadline) {
  Lines lines;
  std::atomic<int> failed = 0;
  const auto thrown = run_watched(3, lines,
                                  [&](const Group& group) {
                                    if (group.rank() == 2) {
                                      for (int count = failed; count < 2; count = failed)
                                        failed.wait(count);
                                      return;
                                    }
                                    try {
                                      barrier(group);
                                    } catch (...) {
                                      ++failed;
                                      failed.notify_all();
                                      throw;
                                    }
                                  },
                                  {.timeout = std::chrono::seconds(3)});
  for (const int rank : {0, 1}) {
    try {
      std::rethrow_exception(thrown.at(static_cast<std::size_t>(rank)));
      FAIL();
    } catch (const CommError& error) {
      EXPECT_EQ(error.failure().peer, 2) << error.what();
      EXPECT_THAT(error.what(), AllOf(HasSubstr("barrier, number 2, of group 'watched'"),
                                      HasSubstr(": rank 2 hangs, or waits for something else"),
                                      HasSubstr("its last operation there: all-reduce"),
                                      HasSubstr("The group cannot be used any more")));
    }
  }
}

TEST(Watchdog, NamesTheRankOfAnotherHostThatDoesNotAnswer) {
  Lines lines;
  const auto thrown = run_watched(
      2, lines,
      [&](const Group& group) {
        if (group.rank() == 1) {
          EXPECT_THAT(lines.await("does not answer"),
                      HasSubstr("in all-reduce of 4 Float, number 2: rank 1 does not answer "
                                "(process "));
        }
        all_reduce(at::zeros({4}), group);
      },
      {.silent_rank = 1});
  EXPECT_FALSE(thrown[0] || thrown[1]);
}

TEST(Watchdog, NamesTheRankThatHangsInAHierarchy) {
  Lines lines;
  const auto thrown =
      run_watched(3, lines,
                  [&](const Group& group) {
                    if (group.rank() == 2) {
                      EXPECT_THAT(lines.await("rank 2 hangs"), Not(HasSubstr("rank 1 hangs")));
                    }
                    all_reduce(at::zeros({4}), group);
                  },
                  {.engine = "hierarchy", .machines = {"a", "a", "b"}});
  for (const auto& exception : thrown) EXPECT_FALSE(exception);
}

TEST(Watchdog, NamesTheSenderThatAReceiverWaitsFor) {
  Lines lines;
  const auto thrown = run_watched(3, lines, [&](const Group& group) {
    const at::Tensor message = at::zeros({4});
    if (group.rank() == 0) receive(message, 2, group);
    if (group.rank() == 2) {
      EXPECT_THAT(lines.await("rank 2 hangs"),
                  AllOf(HasSubstr("rank 0 has waited"),
                        HasSubstr("s in receive of 4 Float, number 1"), Not(HasSubstr("rank 1"))));
      send(message, 0, group);
    }
  });
  for (const auto& exception : thrown) EXPECT_FALSE(exception);
}

// The connection of a watch to a store whose host is gone.
class LostStore : public c10d::HashStore {
 public:
  c10::intrusive_ptr<c10d::Store> clone() override { throw std::runtime_error("reset by peer"); }
};

TEST(Watchdog, NamesAStoppedRankOfItsHostWithoutAStore) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) ::pause();
  }
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  Lines lines;
  const auto thrown = run_watched(
      2, lines,
      [&](const Group& group) {
        if (group.rank() == 1) {
          EXPECT_THAT(
              lines.await("is stopped"),
              HasSubstr(join_message("rank 1 is stopped by a signal or a debugger (process ", child,
                                     " on host here)")));
        }
        all_reduce(at::zeros({4}), group);
      },
      {.store = c10::make_intrusive<LostStore>(), .last_process = child});
  EXPECT_FALSE(thrown[0] || thrown[1]);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

// A store whose host does not answer until it is let go.
class MuteStore : public c10d::HashStore {
 public:
  bool check(const std::vector<std::string>&) override {
    is_asked.set_value();
    may_answer.get_future().wait();
    return false;
  }
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::reclaim_copy(this);
  }
  std::promise<void> is_asked;
  std::promise<void> may_answer;
};

TEST(Watchdog, EndsWhileItsStoreDoesNotAnswer) {
  const auto store = c10::make_intrusive<MuteStore>();
  auto watch = std::make_unique<Watchdog>(
      store, 0,
      std::vector<Watchdog::Rank>{{.process = ::getpid(), .host = "here", .is_near = true}});
  watch->start();
  store->is_asked.get_future().wait();
  watch.reset();  // would never return if it waited for the answer
  store->may_answer.set_value();
}

// What the thread sleeps on must not be ended where there is no such thread.
TEST(Watchdog, EndsInAForkedProcess) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto watch = std::make_unique<Watchdog>(
      store, 0,
      std::vector<Watchdog::Rank>{{.process = ::getpid(), .host = "here", .is_near = true}});
  watch->start();
  store->set("watch/0/asked", std::vector<std::uint8_t>{1});
  store->wait({"watch/0/0"}, std::chrono::seconds(60));  // it runs
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(60);
      watch.reset();
      ::_exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "a signal: the child hung";
  }
}

TEST(Watchdog, IsSilentWhileOperationsAreQuick) {
  Lines lines;
  const auto thrown = run_watched(2, lines, [&](const Group& group) {
    for (int i = 0; i < 200; ++i) all_reduce(at::zeros({4}), group);
  });
  EXPECT_FALSE(thrown[0] || thrown[1]);
  EXPECT_EQ(lines.text(), "");
}

}  // namespace
}  // namespace trireme::comm
