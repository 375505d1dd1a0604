// SPDX-License-Identifier: Apache-2.0
// `trireme scheduler` and `trireme worker` with scripts as ranks.
#include <trireme/base/machine.h>
#include <trireme/launch/listening_socket.h>
#include <trireme/launch/process_tree.h>

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <tests/processes/free_port.h>
#include <tests/processes/launch/launched.h>
#include <tests/processes/launch/worker_words.h>
#include <tests/temporary_folder.h>

#include <string>
#include <vector>

namespace trireme::launch {
namespace {

using test::free_port;
using test::Launched;
using test::worker_of;
using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> scheduler_of(const std::string& port, const std::string& workers) {
  return {"scheduler", "--workers", workers, "--port", port, "--timeout", "100", "--grace", "1"};
}

TEST(SchedulerCommand, FormsAWorldOfWorkersWithDifferentNumbersOfRanks) {
  const std::string port = free_port();
  const std::string script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE";
  // A worker may start before its scheduler.
  Launched one(worker_of(port, "1", script, {"--node-id", "b"}));
  Launched two(worker_of(port, "2", script, {"--node-id", "a"}));
  Launched scheduler(scheduler_of(port, "3"));
  EXPECT_EQ(one.wait(), 0) << one.error;
  EXPECT_EQ(two.wait(), 0) << two.error;
  EXPECT_EQ(scheduler.wait(), 0) << scheduler.error;
  EXPECT_THAT(two.output, AllOf(HasSubstr("[rank 0] 0/3 0/3"), HasSubstr("[rank 1] 1/3 1/3")));
  EXPECT_THAT(one.output, HasSubstr("[rank 2] 2/3 2/3"));
  EXPECT_THAT(scheduler.error,
              AllOf(HasSubstr("listens at 127.0.0.1:" + port + " and waits for 3 ranks"),
                    HasSubstr("the world is complete: 3 ranks on 1 host"), HasSubstr("ranks 0-1: "),
                    HasSubstr("node id a) with 2 ranks"), HasSubstr("rank 2: "),
                    HasSubstr("all 3 ranks exited with code 0")));
}

TEST(SchedulerCommand, CountsTheRanksOfAllWorkersOfAHostAgainstItsCores) {
  const std::string port = free_port();
  const std::string ranks = std::to_string(available_cores());
  Launched one(worker_of(port, ranks, "exit 0"));
  Launched two(worker_of(port, ranks, "exit 0"));
  Launched scheduler(scheduler_of(port, std::to_string(2 * available_cores())));
  EXPECT_EQ(one.wait(), 0) << one.error;
  EXPECT_EQ(two.wait(), 0) << two.error;
  EXPECT_EQ(scheduler.wait(), 0) << scheduler.error;
  EXPECT_THAT(one.error, HasSubstr(" on this host would fit"));
}

TEST(SchedulerCommand, EndsAllWorkersWhenARankFails) {
  const std::string port = free_port();
  Launched scheduler(scheduler_of(port, "4"));
  Launched waiting(worker_of(port, "2", "exec sleep 1000"));
  Launched failing(worker_of(port, "2", "exit 7"));
  EXPECT_EQ(failing.wait(), 7);
  EXPECT_EQ(waiting.wait(), 7);
  EXPECT_EQ(scheduler.wait(), 7);
  EXPECT_THAT(failing.error, HasSubstr("failed first: /usr/bin/sh exited with code 7"));
  for (const std::string& text : {scheduler.error, waiting.error}) {
    EXPECT_THAT(text, AllOf(HasSubstr("failed first: "), HasSubstr(" (process "),
                            HasSubstr(", 127.0.0.1) exited with code 7"),
                            HasSubstr("its whole log, on its host: ")));
  }
  EXPECT_THAT(waiting.error, HasSubstr("ending 2 ranks"));
  EXPECT_TRUE(waiting.await_nothing_left());
  EXPECT_TRUE(failing.await_nothing_left());
  EXPECT_TRUE(scheduler.await_nothing_left());
}

TEST(SchedulerCommand, ReportsTheSignalThatKilledARank) {
  const std::string port = free_port();
  Launched scheduler(scheduler_of(port, "2"));
  Launched waiting(worker_of(port, "1", "exec sleep 1000"));
  Launched killed(worker_of(port, "1", "kill -KILL $$"));
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  EXPECT_EQ(waiting.wait(), 128 + SIGKILL);
  EXPECT_EQ(scheduler.wait(), 128 + SIGKILL);
  EXPECT_THAT(scheduler.error,
              AllOf(HasSubstr("was killed by SIGKILL"), HasSubstr("1 other rank was ended")));
}

TEST(SchedulerCommand, EndsTheOthersWhenAWorkerIsKilled) {
  const std::string port = free_port();
  Launched scheduler(scheduler_of(port, "3"));
  Launched waiting(worker_of(port, "1", "exec sleep 1000"));
  Launched killed(worker_of(port, "2", "exec sleep 1000"));
  killed.await_error("2 ranks (pids ");
  killed.signal(SIGKILL);
  EXPECT_EQ(waiting.wait(), 128 + SIGKILL);
  EXPECT_EQ(scheduler.wait(), 128 + SIGKILL);
  EXPECT_THAT(scheduler.error,
              HasSubstr("was ended because its launcher was ended by SIGKILL (killed)"));
  EXPECT_TRUE(killed.await_nothing_left());
}

TEST(SchedulerCommand, EndsTheRanksWhenItIsKilled) {
  const std::string port = free_port();
  Launched scheduler(scheduler_of(port, "2"));
  Launched worker(worker_of(port, "2", "exec sleep 1000"));
  worker.await_error("2 ranks (pids ");
  scheduler.signal(SIGKILL);
  EXPECT_EQ(worker.wait(), 1);
  EXPECT_THAT(worker.error, AllOf(HasSubstr("the scheduler at 127.0.0.1:" + port +
                                            " has ended or cannot be reached any more"),
                                  HasSubstr("ending 2 ranks")));
  EXPECT_TRUE(worker.await_nothing_left());
  EXPECT_TRUE(scheduler.await_nothing_left());
}

// A terminal sends Ctrl-C to the process of the store as well, which used to count as a failure.
TEST(SchedulerCommand, EndsTheRunOnCtrlC) {
  const std::string port = free_port();
  Launched scheduler(scheduler_of(port, "1"));
  Launched worker(worker_of(port, "1", "exec sleep 1000"));
  worker.await_error("1 rank (pid ");
  ::kill(-scheduler.process(), SIGINT);
  EXPECT_EQ(scheduler.wait(), 128 + SIGINT);
  EXPECT_EQ(worker.wait(), 128 + SIGINT);
  EXPECT_THAT(scheduler.error, HasSubstr("the scheduler got SIGINT"));
  EXPECT_TRUE(scheduler.await_nothing_left());
}

TEST(SchedulerCommand, EndsTheRunWhenItsStoreIsKilled) {
  const std::string port = free_port();
  Launched scheduler(scheduler_of(port, "1"));
  Launched worker(worker_of(port, "1", "exec sleep 1000"));
  worker.await_error("1 rank (pid ");
  for (const Process& child : children(scheduler.process())) send_signal(child, SIGKILL);
  EXPECT_EQ(scheduler.wait(), 1);
  EXPECT_EQ(worker.wait(), 1);
  EXPECT_THAT(worker.error, HasSubstr("the process that serves the store was killed by SIGKILL"));
}

TEST(SchedulerCommand, EndsTheRunOnASignal) {
  const std::string port = free_port();
  Launched scheduler(scheduler_of(port, "1"));
  Launched worker(worker_of(port, "1", "exec sleep 1000"));
  worker.await_error("1 rank (pid ");
  scheduler.signal(SIGTERM);
  EXPECT_EQ(scheduler.wait(), 128 + SIGTERM);
  EXPECT_EQ(worker.wait(), 128 + SIGTERM);
  EXPECT_THAT(worker.error, HasSubstr("the scheduler got SIGTERM"));
}

TEST(SchedulerCommand, ListsWhoCameAtTheDeadline) {
  const std::string port = free_port();
  Launched scheduler({"scheduler", "--workers", "3", "--port", port, "--timeout", "20"});
  Launched worker(worker_of(port, "2", "exit 0"));
  EXPECT_EQ(scheduler.wait(), 1);
  EXPECT_EQ(worker.wait(), 2);
  for (const std::string& text : {scheduler.error, worker.error}) {
    EXPECT_THAT(text, AllOf(HasSubstr("waited 20 s for 3 ranks, 2 came:\n  process "),
                            HasSubstr("(127.0.0.1) with 2 ranks")));
  }
}

TEST(SchedulerCommand, RefusesAWorkerOfAnotherProgram) {
  const std::string port = free_port();
  Launched scheduler(scheduler_of(port, "2"));
  Launched one(worker_of(port, "1", "exit 0"));
  Launched other({"worker", "--scheduler", "127.0.0.1:" + port, "--timeout", "100", "--", "true"});
  // The worker that comes first decides which program is the other one.
  scheduler.await_error(" runs another program, ");
  scheduler.signal(SIGTERM);
  EXPECT_EQ(scheduler.wait(), 128 + SIGTERM);
  EXPECT_EQ(one.wait(), 2);
  EXPECT_EQ(other.wait(), 2);
  const std::string both = one.error + other.error;
  EXPECT_THAT(both, AllOf(HasSubstr("refused this worker: process "),
                          HasSubstr(" runs another program, "), HasSubstr("/sh ("),
                          HasSubstr("/true ("), HasSubstr("start one build of one program")));
  EXPECT_THAT(both, HasSubstr("has ended the run: the scheduler got SIGTERM"));
}

TEST(SchedulerCommand, RefusesMoreWorkersThanSaidAndGoesOn) {
  const std::string port = free_port();
  Launched scheduler(scheduler_of(port, "1"));
  const test::TemporaryFolder folder;
  const std::string gate = (folder / "gate").string();
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  Launched only(worker_of(port, "1", "read -r line < " + gate));
  only.await_error("1 rank (pid ");
  Launched late(worker_of(port, "1", "exit 0"));
  EXPECT_EQ(late.wait(), 2);
  EXPECT_THAT(late.error, AllOf(HasSubstr("came when 1 of 1 ranks were there already"),
                                HasSubstr("\n  process ")));
  test::write_file(gate, "go on\n");
  EXPECT_EQ(only.wait(), 0);
  EXPECT_EQ(scheduler.wait(), 0);
}

TEST(SchedulerCommand, RefusesWorkersWithoutTheSecret) {
  const std::string port = free_port();
  ASSERT_EQ(::setenv("TRIREME_SECRET", "0123456789abcdef", 1), 0);
  Launched scheduler(scheduler_of(port, "1"));
  ASSERT_EQ(::setenv("TRIREME_SECRET", "fedcba9876543210", 1), 0);
  Launched stranger(worker_of(port, "1", "exit 0"));
  ASSERT_EQ(::unsetenv("TRIREME_SECRET"), 0);
  Launched without(worker_of(port, "1", "exit 0"));
  EXPECT_EQ(stranger.wait(), 2);
  EXPECT_THAT(stranger.error, HasSubstr("has another secret (TRIREME_SECRET) than this worker"));
  EXPECT_EQ(without.wait(), 2);
  EXPECT_THAT(without.error, HasSubstr("has a secret (TRIREME_SECRET), and this worker has none"));
  ASSERT_EQ(::setenv("TRIREME_SECRET", "0123456789abcdef", 1), 0);
  Launched worker(worker_of(port, "1", "test $TRIREME_SECRET = 0123456789abcdef"));
  ASSERT_EQ(::unsetenv("TRIREME_SECRET"), 0);
  EXPECT_EQ(worker.wait(), 0) << worker.error;
  EXPECT_EQ(scheduler.wait(), 0);
  EXPECT_THAT(scheduler.error, HasSubstr("it does not have the secret of the run"));
}

TEST(SchedulerCommand, NamesTheOwnerOfAPortInUse) {
  const ListeningSocket taken = listen_on(Reach::kLoopback, std::nullopt);
  Launched scheduler(scheduler_of(std::to_string(taken.port), "1"));
  EXPECT_EQ(scheduler.wait(), 2);
  EXPECT_THAT(scheduler.error,
              AllOf(HasSubstr("port " + std::to_string(taken.port) + " is in use by process " +
                              std::to_string(::getpid())),
                    HasSubstr("give another --port")));
}

TEST(SchedulerCommand, NamesWrongOptions) {
  Launched without({"scheduler"});
  EXPECT_EQ(without.wait(), 2);
  EXPECT_THAT(without.error, HasSubstr("was given no number of workers, expected --workers N"));
  Launched late({"scheduler", "--workers", "1", "--timeout", "0"});
  EXPECT_EQ(late.wait(), 2);
  EXPECT_THAT(late.error, HasSubstr("'0', expected an integer from 1 to"));
  Launched zero({"scheduler", "--workers", "0"});
  EXPECT_EQ(zero.wait(), 2);
  EXPECT_THAT(zero.error, HasSubstr("'0', expected a number from 1"));
  Launched address({"worker", "--scheduler", "host0", "--", "true"});
  EXPECT_EQ(address.wait(), 2);
  EXPECT_THAT(address.error, HasSubstr("--scheduler is 'host0', expected host:port"));
  Launched nothing({"worker"});
  EXPECT_EQ(nothing.wait(), 2);
  EXPECT_THAT(nothing.error, HasSubstr("no program to run"));
  Launched missing({"worker", "--", "./no-such-program"});
  EXPECT_EQ(missing.wait(), 2);
  EXPECT_THAT(missing.error, HasSubstr("cannot run ./no-such-program: no such file"));
}

TEST(WorkerCommand, FindsItsOwnErrorsBeforeItJoins) {
  const std::string port = free_port();
  Launched scheduler(scheduler_of(port, "1"));
  scheduler.await_error("listens at");
  Launched wrong(worker_of(port, "1", "exit 0", {"--log-dir", "/proc/none"}));
  EXPECT_EQ(wrong.wait(), 2);
  EXPECT_THAT(wrong.error, HasSubstr("cannot make the log folder /proc/none"));
  Launched right(worker_of(port, "1", "exit 0"));
  EXPECT_EQ(right.wait(), 0) << right.error;
  EXPECT_EQ(scheduler.wait(), 0) << scheduler.error;
  EXPECT_THAT(scheduler.error, HasSubstr("the rank exited with code 0"));
}

TEST(WorkerCommand, TellsTheSchedulerWhyItCannotRunItsRanks) {
  const std::string port = free_port();
  const test::TemporaryFolder logs;
  ASSERT_EQ(::mkdir((logs / "rank_0.log").c_str(), 0700), 0);
  Launched scheduler(scheduler_of(port, "2"));
  Launched worker(worker_of(port, "2", "exec sleep 1000", {"--log-dir", logs.path().string()}));
  EXPECT_EQ(worker.wait(), 2);
  EXPECT_EQ(scheduler.wait(), 2);
  EXPECT_THAT(scheduler.error, AllOf(HasSubstr("rank 0 failed first: "),
                                     HasSubstr("could not be run: "), HasSubstr("rank_0.log")));
}

TEST(WorkerCommand, SaysThatNoSchedulerAnswers) {
  Launched worker(
      {"worker", "--scheduler", "127.0.0.1:" + free_port(), "--timeout", "1", "--", "true"});
  EXPECT_EQ(worker.wait(), 2);
  EXPECT_THAT(worker.error, AllOf(HasSubstr("no scheduler answered at 127.0.0.1:"),
                                  HasSubstr("within 1 s"), HasSubstr("Connection refused")));
}

TEST(RunCommand, RefusesARoleThatItDoesNotTake) {
  ASSERT_EQ(::setenv("MS_ROLE", "MS_WORKER", 1), 0);
  Launched run({"run", "-n", "1", "--", "true"});
  ASSERT_EQ(::unsetenv("MS_ROLE"), 0);
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(run.error, HasSubstr("MS_ROLE is 'MS_WORKER', but trireme run starts a world without "
                                   "a scheduler"));
}

}  // namespace
}  // namespace trireme::launch
