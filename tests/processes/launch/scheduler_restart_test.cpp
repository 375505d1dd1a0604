// SPDX-License-Identifier: Apache-2.0
// A scheduler that forms its world anew after a failure, with scripts as ranks.
#include <gmock/gmock.h>
#include <tests/processes/free_port.h>
#include <tests/processes/launch/launched.h>
#include <tests/processes/launch/worker_words.h>

#include <csignal>
#include <string>
#include <vector>

namespace trireme::launch {
namespace {

using test::free_port;
using test::Launched;
using test::worker_of;
using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> restarting_scheduler(const std::string& port, const std::string& workers,
                                              const std::vector<std::string>& more) {
  std::vector<std::string> words{"scheduler", "--workers", workers, "--port", port, "--grace", "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Says who it is, and waits in the first attempt.
constexpr const char* kWaits =
    "echo rank $RANK of $WORLD_SIZE, attempt $TORCHELASTIC_RESTART_COUNT; "
    "[ $TORCHELASTIC_RESTART_COUNT -gt 0 ] || sleep 100";

TEST(SchedulerRestart, StartsAllRanksAgainIfOneFails) {
  const std::string port = free_port();
  const std::string script =
      std::string("[ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ] || exit 5; ") + kWaits;
  Launched scheduler(restarting_scheduler(port, "3", {"--restarts", "2"}));
  Launched one(worker_of(port, "2", script));
  Launched two(worker_of(port, "1", script));
  EXPECT_EQ(scheduler.wait(), 0) << scheduler.error;
  EXPECT_EQ(one.wait(), 0) << one.error;
  EXPECT_EQ(two.wait(), 0) << two.error;
  EXPECT_THAT(scheduler.error, AllOf(HasSubstr("rank 1 failed first"),
                                     HasSubstr("restart 1 of 2: waits for 3 ranks to come again"),
                                     HasSubstr("all 3 ranks exited with code 0")));
  EXPECT_THAT(one.output + two.output,
              AllOf(HasSubstr("rank 0 of 3, attempt 1"), HasSubstr("rank 1 of 3, attempt 1"),
                    HasSubstr("rank 2 of 3, attempt 1")));
}

TEST(SchedulerRestart, GivesThePlaceOfALostWorkerToASpare) {
  const std::string port = free_port();
  Launched scheduler(restarting_scheduler(port, "2", {"--restarts", "1"}));
  Launched one(worker_of(port, "1", kWaits));
  Launched two(worker_of(port, "1", kWaits));
  scheduler.await_error("the world is complete");
  Launched spare(worker_of(port, "1", kWaits));
  scheduler.await_error("is kept as a spare");
  two.await_output("attempt 0");
  two.signal(SIGKILL);
  EXPECT_EQ(scheduler.wait(), 0) << scheduler.error;
  EXPECT_EQ(one.wait(), 0) << one.error;
  EXPECT_EQ(spare.wait(), 0) << spare.error;
  EXPECT_THAT(scheduler.error, HasSubstr(", a spare, takes a place"));
  EXPECT_THAT(spare.output, HasSubstr("of 2, attempt 1"));
}

TEST(SchedulerRestart, WaitsForAWorkerThatIsStartedAgain) {
  const std::string port = free_port();
  Launched scheduler(restarting_scheduler(port, "2", {"--restarts", "1"}));
  Launched one(worker_of(port, "1", kWaits));
  Launched two(worker_of(port, "1", kWaits));
  two.await_output("attempt 0");
  one.await_output("attempt 0");
  two.signal(SIGKILL);
  scheduler.await_error("waits for 2 ranks to come again");
  Launched again(worker_of(port, "1", kWaits));
  EXPECT_EQ(scheduler.wait(), 0) << scheduler.error;
  EXPECT_EQ(one.wait(), 0) << one.error;
  EXPECT_EQ(again.wait(), 0) << again.error;
  EXPECT_THAT(again.output, HasSubstr("of 2, attempt 1"));
}

TEST(SchedulerRestart, EndsIfNobodyComes) {
  const std::string port = free_port();
  Launched scheduler(restarting_scheduler(port, "2", {"--restarts", "1", "--timeout", "3"}));
  Launched one(worker_of(port, "1", kWaits));
  Launched two(worker_of(port, "1", kWaits));
  two.await_output("attempt 0");
  two.signal(SIGKILL);
  EXPECT_EQ(scheduler.wait(), 1) << scheduler.error;
  EXPECT_EQ(one.wait(), 2) << one.error;
  EXPECT_THAT(scheduler.error, HasSubstr("waited 3 s for 2 ranks, 1 came:"));
  EXPECT_TRUE(one.await_nothing_left());
}

TEST(SchedulerRestart, GoesOnWithFewerRanks) {
  const std::string port = free_port();
  Launched scheduler(
      restarting_scheduler(port, "2:3", {"--restarts", "1", "--replace-timeout", "2"}));
  Launched one(worker_of(port, "2", kWaits));
  Launched two(worker_of(port, "1", kWaits));
  two.await_output("of 3, attempt 0");
  one.await_output("of 3, attempt 0");
  two.signal(SIGKILL);
  EXPECT_EQ(scheduler.wait(), 0) << scheduler.error;
  EXPECT_EQ(one.wait(), 0) << one.error;
  EXPECT_THAT(scheduler.error, AllOf(HasSubstr("goes on with 2 ranks, of 2 to 3"),
                                     HasSubstr("all 2 ranks exited with code 0")));
  EXPECT_THAT(one.output,
              AllOf(HasSubstr("rank 0 of 2, attempt 1"), HasSubstr("rank 1 of 2, attempt 1")));
}

TEST(SchedulerRestart, BeginsWithFewerRanksAtTheDeadline) {
  const std::string port = free_port();
  Launched scheduler(restarting_scheduler(port, "1:4", {"--timeout", "1"}));
  Launched one(worker_of(port, "2", "echo $RANK of $WORLD_SIZE"));
  EXPECT_EQ(scheduler.wait(), 0) << scheduler.error;
  EXPECT_EQ(one.wait(), 0) << one.error;
  EXPECT_THAT(one.output, HasSubstr("1 of 2"));
}

TEST(SchedulerRestart, RefusesNumbersOfWorkersThatCannotBe) {
  Launched order(restarting_scheduler("1", "4:2", {}));
  EXPECT_EQ(order.wait(), 2) << order.error;
  EXPECT_THAT(order.error, HasSubstr("--workers is '4:2', and its first number is larger"));
  Launched text(restarting_scheduler("1", "many", {}));
  EXPECT_EQ(text.wait(), 2) << text.error;
  EXPECT_THAT(text.error, HasSubstr("--workers is 'many', expected a number from 1 to"));
  Launched useless(restarting_scheduler("1", "4", {"--replace-timeout", "3"}));
  EXPECT_EQ(useless.wait(), 2) << useless.error;
  EXPECT_THAT(useless.error, HasSubstr("--replace-timeout has no effect without --restarts"));
}

TEST(SchedulerRestart, EndsWithTheCodeOfTheLastFailure) {
  const std::string port = free_port();
  Launched scheduler(restarting_scheduler(port, "1", {"--restarts", "1"}));
  Launched one(worker_of(port, "1", "exit $((3 + TORCHELASTIC_RESTART_COUNT))"));
  EXPECT_EQ(scheduler.wait(), 4) << scheduler.error;
  EXPECT_EQ(one.wait(), 4) << one.error;
  EXPECT_THAT(scheduler.error, HasSubstr("no restart is left (--restarts 1)"));
}

TEST(SchedulerRestart, IsEndedByASignalWhileAWorkerWaits) {
  const std::string port = free_port();
  Launched scheduler(restarting_scheduler(port, "2", {"--restarts", "1"}));
  Launched one(worker_of(port, "1", kWaits));
  Launched two(worker_of(port, "1", kWaits));
  two.await_output("attempt 0");
  two.signal(SIGKILL);
  one.await_error("ended by the scheduler for a restart");
  one.signal(SIGTERM);
  EXPECT_EQ(one.wait(), 128 + SIGTERM) << one.error;
  EXPECT_TRUE(one.await_nothing_left());
  scheduler.signal(SIGTERM);
  EXPECT_EQ(scheduler.wait(), 128 + SIGTERM) << scheduler.error;
}

}  // namespace
}  // namespace trireme::launch
