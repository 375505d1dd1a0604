// SPDX-License-Identifier: Apache-2.0
// A scheduler in a thread, with workers and strangers that connect to it.
#include <trireme/launch/scheduler/scheduler.h>

#include <trireme/base/error.h>
#include <trireme/launch/connect.h>
#include <trireme/launch/listening_socket.h>
#include <trireme/launch/scheduler/program_file.h>
#include <trireme/launch/scheduler/worker_connection.h>
#include <trireme/version.h>

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <tests/temporary_folder.h>
#include <tests/unit/launch/scheduler/running_scheduler.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::launch {
namespace {

using namespace std::chrono_literals;
using test::await_end;
using test::await_request;
using test::end;
using test::join;
using test::kDeadlineMs;
using test::kSecretOfRun;
using test::message_of;
using test::RunningScheduler;
using testing::AllOf;
using testing::HasSubstr;

// Waits for a message, whatever it says.
void await_message(Channel& channel) {
  while (!channel.receive()) {
    pollfd waited{.fd = channel.fd(), .events = POLLIN, .revents = 0};
    if (channel.end() != ChannelEnd::kNone || ::poll(&waited, 1, kDeadlineMs) != 1)
      throw std::runtime_error("no message came");
  }
}

// Introduces a worker to the scheduler on a connection on which nothing was said yet.
void say_hello(const RunningScheduler& scheduler, Channel& channel, const std::string& node_id,
               std::optional<int> workers = std::nullopt) {
  await_message(channel);
  channel.send(encode(Hello{.version = TRIREME_VERSION,
                            .host = "host",
                            .machine = "machine",
                            .process = 1,
                            .node_id = node_id,
                            .workers = workers,
                            .program = scheduler.worker().program}));
}

TEST(Scheduler, GivesRanksAndEndsWithTheWorkers) {
  for (const char* secret : {"", kSecretOfRun}) {
    RunningScheduler scheduler(2, secret);
    auto first = join(scheduler.worker("1"));
    auto second = join(scheduler.worker("0"));
    std::vector<WorkerConnection> workers;
    workers.push_back(first.get());
    workers.push_back(second.get());
    EXPECT_EQ(workers[0].place().first_rank, 1);
    EXPECT_EQ(workers[1].place().first_rank, 0);
    EXPECT_EQ(workers[1].place().world_size, 2);
    EXPECT_EQ(workers[1].place().local_world_size, 2);
    for (WorkerConnection& worker : workers) end(worker, 0);
    workers.clear();
    EXPECT_EQ(scheduler.wait(), 0);
  }
}

TEST(Scheduler, EndsTheOthersWithTheCodeOfTheWorkerThatFailed) {
  RunningScheduler scheduler(2);
  auto first = join(scheduler.worker());
  auto second = join(scheduler.worker());
  {
    WorkerConnection failing = first.get();
    WorkerConnection waiting = second.get();
    end(failing, 7);
    const EndRequest request = await_request(waiting);
    EXPECT_EQ(request.code, 7);
    EXPECT_THAT(request.reason, AllOf(HasSubstr(" failed first: /bin/train (process 1 on "),
                                      HasSubstr(", 127.0.0.1) exited with code 7")));
  }
  EXPECT_EQ(scheduler.wait(), 7);
}

TEST(Scheduler, TakesALostConnectionForADeath) {
  RunningScheduler scheduler(2);
  auto first = join(scheduler.worker("0"));
  auto second = join(scheduler.worker("1"));
  {
    WorkerConnection waiting = first.get();
    {
      const WorkerConnection dead = second.get();
    }
    const EndRequest request = await_request(waiting);
    EXPECT_EQ(request.code, 1);
    EXPECT_THAT(request.reason, AllOf(HasSubstr("rank 1 failed first: /bin/train (process "),
                                      HasSubstr("closed its connection without saying")));
  }
  EXPECT_EQ(scheduler.wait(), 1);
}

TEST(Scheduler, TellsWorkersAtTheDeadlineWhoCame) {
  RunningScheduler scheduler(3, "", 10s);
  auto first = join(scheduler.worker("a"));
  auto second = join(scheduler.worker("b"));
  for (auto* worker : {&first, &second}) {
    EXPECT_THAT(message_of<CommError>([&] { worker->get(); }),
                AllOf(HasSubstr("has ended the run: waited 10 s for 3 ranks, 2 came:"),
                      HasSubstr("node id a)"), HasSubstr("node id b)")));
  }
  EXPECT_EQ(scheduler.wait(), 1);
}

TEST(Scheduler, TakesANewWorkerForOneThatHasGone) {
  RunningScheduler scheduler(2);
  {
    // This worker goes as soon as it is accepted.
    Channel gone(scheduler.connect(), ChannelSide::kWorker, "");
    say_hello(scheduler, gone, "1");
    await_message(gone);
  }
  {
    auto first = join(scheduler.worker("0"));
    auto second = join(scheduler.worker("1"));
    WorkerConnection one = first.get();
    WorkerConnection other = second.get();
    end(one, 0);
    end(other, 0);
  }
  EXPECT_EQ(scheduler.wait(), 0);
}

// The world used to be complete, and its run to fail.
TEST(Scheduler, StartsNoWorldWithAWorkerThatHasGoneAgain) {
  RunningScheduler scheduler(2);
  Channel first(scheduler.connect(), ChannelSide::kWorker, "");
  say_hello(scheduler, first, "0");
  await_message(first);
  {
    // The kernel sends the introduction and the end of the connection together.
    Channel gone(scheduler.connect(), ChannelSide::kWorker, "");
    const int together = 1;
    ::setsockopt(gone.fd(), IPPROTO_TCP, TCP_CORK, &together, sizeof(together));
    say_hello(scheduler, gone, "1");
  }
  {
    auto second = join(scheduler.worker("1"));
    WorkerConnection other = second.get();
    await_message(first);
    for (int rank = 0; rank < 2; ++rank) {
      const RankEnded ended{.rank = rank, .process = 1, .code = 0, .how = ""};
      rank == 0 ? first.send(encode(ended)) : other.say_ended(ended);
    }
    first.close();
  }
  EXPECT_EQ(scheduler.wait(), 0);
}

// Lets two workers run under a scheduler of two, after `act` has been called.
void expect_run_after(const std::string& secret,
                      const std::function<void(RunningScheduler&)>& act) {
  RunningScheduler scheduler(2, secret);
  act(scheduler);
  {
    auto first = join(scheduler.worker());
    auto second = join(scheduler.worker());
    WorkerConnection one = first.get();
    WorkerConnection other = second.get();
    end(one, 0);
    end(other, 0);
  }
  EXPECT_EQ(scheduler.wait(), 0);
}

TEST(Scheduler, IsNotDelayedByStrangers) {
  std::vector<UniqueFd> strangers;
  expect_run_after(kSecretOfRun, [&](RunningScheduler& scheduler) {
    for (const std::string& bytes :
         {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string("tri"),
          std::string("trireme\n\0\0", 10), std::string("trireme\n\0\0\0\5", 12),
          std::string("trireme\n\0\1\0\0", 12) + std::string(9'000, 'x')}) {
      strangers.push_back(scheduler.connect());
      ::send(strangers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
  });
}

// Sends bytes for as long as they are taken, for two minutes at most.
void send_on(int fd, const std::string& bytes) {
  const auto until = std::chrono::steady_clock::now() + 120s;
  while (std::chrono::steady_clock::now() < until) {
    pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
    ::poll(&writable, 1, 100);
    const bool has_failed = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0;
    if (has_failed && errno != EAGAIN) return;
  }
}

// The scheduler used to read from it and from nobody else.
TEST(Scheduler, IsNotDelayedByARefusedWorkerThatGoesOnSending) {
  std::vector<std::jthread> refused;
  expect_run_after("", [&](RunningScheduler& scheduler) {
    auto channel = std::make_shared<Channel>(scheduler.connect(), ChannelSide::kWorker, "");
    say_hello(scheduler, *channel, "", 3);
    await_message(*channel);
    const std::string frame = std::string("\0\0\0\1", 4) + std::string(33, '\0');
    std::string frames;
    for (int i = 0; i < 1000; ++i) frames += frame;
    refused.emplace_back([channel, frames] { send_on(channel->fd(), frames); });
  });
}

TEST(Scheduler, DropsAStrangerThatSaysNothing) {
  RunningScheduler scheduler(1, "", 60s, 1s);
  EXPECT_TRUE(await_end(scheduler.connect()));
  {
    auto worker = join(scheduler.worker());
    WorkerConnection only = worker.get();
    end(only, 0);
  }
  EXPECT_EQ(scheduler.wait(), 0);
}

TEST(Scheduler, DropsTheOldestOfTooManyStrangers) {
  constexpr int kMany = 600;
  std::vector<UniqueFd> strangers;
  expect_run_after("", [&](RunningScheduler& scheduler) {
    for (int i = 0; i < kMany; ++i) strangers.push_back(scheduler.connect());
    EXPECT_TRUE(await_end(strangers.front()));
  });
}

TEST(Scheduler, RefusesAWorkerWithAnotherSecret) {
  expect_run_after(kSecretOfRun, [&](RunningScheduler& scheduler) {
    WorkerOptions worker = scheduler.worker();
    worker.secret = "another secret of this run";
    EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{worker}; }),
                HasSubstr("has another secret (TRIREME_SECRET) than this worker"));
    worker.secret = "";
    EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{worker}; }),
                HasSubstr("has a secret (TRIREME_SECRET), and this worker has none"));
  });
}

TEST(Scheduler, IsNotBelievedWithoutTheSecretOfTheWorker) {
  expect_run_after("", [&](RunningScheduler& scheduler) {
    WorkerOptions worker = scheduler.worker();
    worker.secret = kSecretOfRun;
    EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{worker}; }),
                HasSubstr("has no secret, and this worker has one"));
  });
}

TEST(Scheduler, RefusesWorkersThatDoNotFitAndGoesOn) {
  expect_run_after("", [&](RunningScheduler& scheduler) {
    WorkerOptions worker = scheduler.worker();
    worker.workers = 3;
    EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{worker}; }),
                AllOf(HasSubstr("refused this worker: process "),
                      HasSubstr("expects 3 workers, the scheduler has 2")));
    worker = scheduler.worker();
    worker.ranks = 3;
    EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{worker}; }),
                HasSubstr("came when 0 of 2 ranks were there already, and it brings 3"));
    worker = scheduler.worker();
    worker.run = "host0-12-29500-ab-1";
    EXPECT_THAT(
        message_of<ConfigError>([&] { WorkerConnection{worker}; }),
        HasSubstr("belongs to the run host0-12-29500-ab-1, and this scheduler has another"));
  });
}

TEST(Scheduler, RefusesALateWorkerWhileTheRunGoesOn) {
  RunningScheduler scheduler(1);
  {
    auto worker = join(scheduler.worker());
    WorkerConnection only = worker.get();
    EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{scheduler.worker()}; }),
                HasSubstr("came when 1 of 1 ranks were there already"));
    EXPECT_EQ(only.receive(), std::nullopt);
    end(only, 0);
  }
  EXPECT_EQ(scheduler.wait(), 0);
}

TEST(Scheduler, ListensAtItsAddressOnly) {
  RunningScheduler scheduler(1, "", 60s, 60s, "127.0.0.2");
  {
    auto worker = join(scheduler.worker());
    WorkerConnection only = worker.get();
    std::string problem;
    const HostAndPort other{.host = "127.0.0.1", .port = scheduler.place().port};
    EXPECT_FALSE(try_connect(other, std::chrono::steady_clock::now() + 60s, problem));
    EXPECT_THAT(problem, HasSubstr("127.0.0.1: Connection refused"));
    end(only, 0);
  }
  EXPECT_EQ(scheduler.wait(), 0);
}

TEST(Scheduler, NamesTheProcessThatHasThePort) {
  const ListeningSocket taken = listen_on(Reach::kLoopback, std::nullopt);
  SchedulerOptions options;
  options.place.port = taken.port;
  EXPECT_THAT(message_of<ConfigError>([&] { run_scheduler(options); }),
              AllOf(HasSubstr("port " + std::to_string(taken.port) + " is in use by process "),
                    HasSubstr("give another --port, the same for the scheduler")));
}

TEST(SchedulerDeathTest, SaysThatItNeedsMoreOpenFiles) {
  const auto act = [] {
    const rlimit few{.rlim_cur = 400, .rlim_max = 400};
    ::setrlimit(RLIMIT_NOFILE, &few);
    SchedulerOptions options;
    options.workers = 100;
    const std::string message = message_of<ConfigError>([&] { run_scheduler(options); });
    ::write(2, message.data(), message.size());
    ::_exit(0);
  };
  EXPECT_EXIT(
      act(), testing::ExitedWithCode(0),
      "a scheduler of 100 ranks needs 500 open files in one process, the hard limit is 400");
}

TEST(Scheduler, RefusesAnAddressOfAnotherHost) {
  SchedulerOptions options;
  options.place = {.host = "192.0.2.1", .port = 29'500};
  options.host_source = "MS_SCHED_HOST";
  EXPECT_THAT(message_of<ConfigError>([&] { run_scheduler(options); }),
              HasSubstr("MS_SCHED_HOST is '192.0.2.1', which is no address of this host"));
}

TEST(Scheduler, EndsWorkersWhenItIsGone) {
  auto scheduler = std::make_unique<RunningScheduler>(1);
  auto joined = join(scheduler->worker());
  WorkerConnection worker = joined.get();
  // A worker that says what is not its own loses its connection, as if the scheduler were gone.
  worker.say_ended({.rank = 5, .process = 1, .code = 0, .how = ""});
  EXPECT_THAT(await_request(worker).reason,
              HasSubstr("the scheduler at " + text_of(scheduler->place()) + " has ended"));
  EXPECT_EQ(scheduler->wait(), 1);
}

int free_even_port() {
  while (true) {
    const int port = listen_on(Reach::kLoopback, std::nullopt).port & ~1;
    try {
      return listen_at("127.0.0.1", port).port;
    } catch (const ConfigError&) {  // NOLINT(bugprone-empty-catch): in use, so tries another one
    }
  }
}

TEST(TryConnect, NeverConnectsToItself) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto* const place = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(fd.get(), place, length), 0);
  ASSERT_EQ(::getsockname(fd.get(), place, &length), 0);
  ASSERT_EQ(::connect(fd.get(), place, length), 0);
  EXPECT_TRUE(is_connected_to_itself(fd.get()));
  const ListeningSocket other = listen_on(Reach::kLoopback, std::nullopt);
  std::string problem;
  const UniqueFd usual = try_connect({.host = "127.0.0.1", .port = other.port},
                                     std::chrono::steady_clock::now() + 60s, problem);
  ASSERT_TRUE(usual) << problem;
  EXPECT_FALSE(is_connected_to_itself(usual.get()));
  // Ports are given in turn, so that sooner or later it is the turn of the one that is tried. The
  // kernel gives even ports to clients first.
  constexpr int kAttempts = 20'000;
  const HostAndPort free{.host = "127.0.0.1", .port = free_even_port()};
  for (int i = 0; i < kAttempts; ++i) {
    const UniqueFd connected = try_connect(free, std::chrono::steady_clock::now() + 60s, problem);
    ASSERT_FALSE(connected) << "after " << i << " attempts";
  }
}

TEST(WorkerConnection, SaysWhatItHasTried) {
  WorkerOptions options;
  options.scheduler = {.host = "127.0.0.1", .port = listen_on(Reach::kLoopback, std::nullopt).port};
  options.timeout = 300ms;
  EXPECT_THAT(message_of<CommError>([&] { WorkerConnection{options}; }),
              AllOf(HasSubstr("no scheduler answered at " + text_of(options.scheduler)),
                    HasSubstr("127.0.0.1: Connection refused"), HasSubstr("within 0.3 s, in ")));
  options.scheduler.host = "host.invalid";
  EXPECT_THAT(message_of<CommError>([&] { WorkerConnection{options}; }),
              HasSubstr("the name does not resolve"));
  const ListeningSocket silent = listen_on(Reach::kLoopback, std::nullopt);
  options.scheduler = {.host = "127.0.0.1", .port = silent.port};
  EXPECT_THAT(message_of<CommError>([&] { WorkerConnection{options}; }),
              HasSubstr("the connection was accepted, but the scheduler said nothing"));
}

TEST(WorkerConnection, RecognizesThatAnotherProgramListens) {
  const ListeningSocket other = listen_on(Reach::kLoopback, std::nullopt);
  const std::jthread server([&] {
    const UniqueFd client(::accept(other.fd.get(), nullptr, nullptr));
    ::send(client.get(), "SSH-2.0-OpenSSH_9.2\r\n", 21, MSG_NOSIGNAL);
    await_end(client);
  });
  WorkerOptions options;
  options.scheduler = {.host = "127.0.0.1", .port = other.port};
  options.timeout = 60s;
  EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{options}; }),
              HasSubstr("the program that listens at 127.0.0.1:" + std::to_string(other.port) +
                        " is no scheduler of Trireme"));
}

TEST(WorkerConnection, RefusesASchedulerOfAnotherVersion) {
  const ListeningSocket listening = listen_on(Reach::kLoopback, std::nullopt);
  const std::jthread server([&] {
    Channel channel(UniqueFd(::accept(listening.fd.get(), nullptr, nullptr)),
                    ChannelSide::kScheduler, "");
    channel.send(encode(Challenge{.protocol = 99, .version = "9.9.9", .nonce = "ab"}));
    while (channel.receive() || channel.end() == ChannelEnd::kNone) {
      pollfd waited{.fd = channel.fd(), .events = POLLIN, .revents = 0};
      ::poll(&waited, 1, kDeadlineMs);
    }
  });
  WorkerOptions options;
  options.scheduler = {.host = "127.0.0.1", .port = listening.port};
  options.timeout = 60s;
  EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{options}; }),
              AllOf(HasSubstr("has version 9.9.9 of Trireme with protocol 99, this worker has "),
                    HasSubstr(TRIREME_VERSION " with protocol 4")));
}

TEST(DescribeProgram, ComparesTheWholeFile) {
  const test::TemporaryFolder folder;
  const auto one = describe_program(folder.write("one", "abc").string());
  EXPECT_EQ(one.bytes, 3);
  EXPECT_EQ(one.checksum, "e71fa2190541574b");  // FNV-1a of abc
  EXPECT_EQ(describe_program(folder.write("two", "abc").string()).checksum, one.checksum);
  EXPECT_NE(describe_program(folder.write("three", "abd").string()).checksum, one.checksum);
  EXPECT_THAT(message_of<ConfigError>([&] { describe_program((folder / "none").string()); }),
              HasSubstr("cannot read the program "));
}

}  // namespace
}  // namespace trireme::launch
