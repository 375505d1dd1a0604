// SPDX-License-Identifier: Apache-2.0
// Hosts that fail or are slow, in the world of a scheduler. The workers are connections of the test
// that say on which host they are.
#include <trireme/launch/scheduler/channel.h>
#include <trireme/launch/scheduler/messages.h>
#include <trireme/launch/scheduler/scheduler.h>
#include <trireme/launch/secret.h>
#include <trireme/version.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <tests/unit/launch/scheduler/running_scheduler.h>

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace trireme::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A scheduler with restarts, in a thread.
class Restarting {
 public:
  explicit Restarting(SchedulerOptions options) : options_(std::move(options)) {
    options_.place = {.host = "127.0.0.1", .port = listen_at("127.0.0.1", std::nullopt).port};
    options_.timeout = seconds(60);
    options_.grace = milliseconds(0);
    options_.start_store = [](StoreAddress place) {
      return std::make_unique<test::NoStore>(std::move(place));
    };
    testing::internal::CaptureStderr();
    code_ = std::async(std::launch::async, [this] { return run_scheduler(options_); });
  }

  const HostAndPort& place() const { return options_.place; }
  int wait() {
    const int code = code_.get();
    printed = testing::internal::GetCapturedStderr();
    return code;
  }

  std::string printed;

 private:
  SchedulerOptions options_;
  std::future<int> code_;
};

// A worker with one rank on a host that the test names.
class FakeWorker {
 public:
  FakeWorker(const Restarting& scheduler, const std::string& host)
      : channel_(connect(scheduler.place()), ChannelSide::kWorker, "") {
    const auto challenge = await<Challenge>();
    const std::string nonce = make_secret();
    channel_.begin_session(challenge.nonce);
    channel_.send(encode(Hello{.version = TRIREME_VERSION,
                               .nonce = nonce,
                               .host = host,
                               .machine = "machine of " + host,
                               .process = 7,
                               .program = {.path = "/bin/train", .bytes = 1, .checksum = "aa"}}));
    channel_.begin_session(challenge.nonce + nonce);
  }

  // Returns the next message of a kind; others are left out.
  template <typename Kind>
  Kind await() {
    while (true) {
      while (const auto text = channel_.receive()) {
        const Message message = decode(*text);
        if (const auto* found = std::get_if<Kind>(&message)) return *found;
      }
      pollfd waited{.fd = channel_.fd(), .events = POLLIN, .revents = 0};
      if (channel_.end() != ChannelEnd::kNone || ::poll(&waited, 1, test::kDeadlineMs) != 1)
        throw std::runtime_error("no such message came");
    }
  }

  // Returns the next message of a kind if it comes within a time.
  template <typename Kind>
  std::optional<Kind> look(milliseconds time) {
    pollfd waited{.fd = channel_.fd(), .events = POLLIN, .revents = 0};
    if (::poll(&waited, 1, static_cast<int>(time.count())) != 1) return std::nullopt;
    return await<Kind>();
  }

  void begin() { place_ = await<Assignment>(); }
  const Assignment& place() const { return place_; }
  void end(int code, const FailureReport& report = {}) {
    channel_.send(encode(RankEnded{
        .rank = place_.first_rank, .process = 7, .code = code, .how = "ended", .report = report}));
  }
  void end_well() {
    end(0);
    channel_.close();
  }
  void report(std::int64_t reports, std::int64_t own_microseconds) {
    channel_.send(encode(Progress{{{.rank = place_.first_rank,
                                    .process = 7,
                                    .step = reports,
                                    .reports = reports,
                                    .own_microseconds = own_microseconds}}}));
  }

 private:
  static UniqueFd connect(const HostAndPort& place) {
    std::string problem;
    UniqueFd fd;
    while (!fd) fd = try_connect(place, std::chrono::steady_clock::now() + seconds(60), problem);
    return fd;
  }

  Channel channel_;
  Assignment place_;
};

TEST(SchedulerHosts, AreExcludedAfterSomeFailuresIfThereAreSpares) {
  Restarting scheduler({.workers = 2, .restarts = 3, .most_host_failures = 1});
  FakeWorker good(scheduler, "good");
  FakeWorker bad(scheduler, "bad");
  good.begin();
  bad.begin();
  FakeWorker spare(scheduler, "third");
  spare.await<Accepted>();
  bad.end(5);
  const auto request = bad.await<EndRequest>();
  EXPECT_FALSE(request.restarts);
  EXPECT_THAT(request.reason,
              HasSubstr("the host bad is excluded from the run: it has had 1 failure"));
  EXPECT_TRUE(good.await<EndRequest>().restarts);
  FakeWorker again(scheduler, "bad");
  EXPECT_THAT(again.await<Refused>().reason, HasSubstr("(--max-host-failures 1)"));
  FakeWorker good_again(scheduler, "good");
  good_again.begin();
  spare.begin();
  good_again.end_well();
  spare.end_well();
  EXPECT_EQ(scheduler.wait(), 0);
  EXPECT_THAT(scheduler.printed,
              HasSubstr("the host bad is excluded: it has had 1 failure (--max-host-failures 1)"));
}

TEST(SchedulerHosts, EndTheRunIfThereAreNoSpares) {
  Restarting scheduler({.workers = 2, .restarts = 5, .most_host_failures = 2});
  for (int attempt = 0; attempt < 2; ++attempt) {
    FakeWorker good(scheduler, "good");
    FakeWorker bad(scheduler, "bad");
    good.begin();
    bad.begin();
    EXPECT_EQ(bad.place().restart, attempt);
    bad.end(5);
    const auto request = good.await<EndRequest>();
    EXPECT_EQ(request.restarts, attempt == 0);
    EXPECT_EQ(request.code, attempt == 0 ? 1 : 5);
  }
  EXPECT_EQ(scheduler.wait(), 5);
  EXPECT_THAT(scheduler.printed,
              AllOf(HasSubstr("the host bad would be excluded, because it has had 2 failures "
                              "(--max-host-failures 2), but the workers of other hosts have 1 of 2 "
                              "ranks"),
                    HasSubstr("start spare workers on other hosts")));
}

TEST(SchedulerHosts, AreExcludedIfFewerRanksAreEnough) {
  Restarting scheduler({.workers = 2,
                        .fewest_workers = 1,
                        .restarts = 3,
                        .replace_timeout = milliseconds(100),
                        .most_host_failures = 1});
  FakeWorker good(scheduler, "good");
  FakeWorker bad(scheduler, "bad");
  good.begin();
  bad.begin();
  bad.end(5);
  good.await<EndRequest>();
  FakeWorker good_again(scheduler, "good");
  good_again.begin();
  EXPECT_EQ(good_again.place().world_size, 1);
  good_again.end_well();
  EXPECT_EQ(scheduler.wait(), 0);
}

// The rank that ends first has found the fault of another one.
TEST(SchedulerHosts, AreExcludedIfARankOfTheirsIsFaulty) {
  Restarting scheduler({.workers = 2, .restarts = 3, .excludes_faulty = true});
  FakeWorker good(scheduler, "good");
  FakeWorker bad(scheduler, "bad");
  good.begin();
  bad.begin();
  FakeWorker spare(scheduler, "third");
  spare.await<Accepted>();
  good.end(1, {.faulty_rank = bad.place().first_rank});
  EXPECT_FALSE(bad.await<EndRequest>().restarts);
  EXPECT_TRUE(good.await<EndRequest>().restarts);
  FakeWorker good_again(scheduler, "good");
  good_again.begin();
  spare.begin();
  good_again.end_well();
  spare.end_well();
  EXPECT_EQ(scheduler.wait(), 0);
  EXPECT_THAT(scheduler.printed,
              AllOf(HasSubstr("the host bad is excluded: its rank 1 holds other values than its "
                              "replicas, so its memory or its processor may be at fault "
                              "(--exclude-faulty)"),
                    HasSubstr("rank 0 failed first"), HasSubstr("restart 1 of 3")));
}

TEST(SchedulerHosts, EndTheRunIfAFaultyOneCannotBeReplaced) {
  Restarting scheduler({.workers = 2, .restarts = 3, .excludes_faulty = true});
  {
    FakeWorker good(scheduler, "good");
    FakeWorker bad(scheduler, "bad");
    good.begin();
    bad.begin();
    good.end(1, {.faulty_rank = bad.place().first_rank});
    EXPECT_FALSE(bad.await<EndRequest>().restarts);
  }  // the scheduler waits for their connections to end
  EXPECT_EQ(scheduler.wait(), 1);
  EXPECT_THAT(scheduler.printed,
              AllOf(HasSubstr("the host bad would be excluded, because its rank 1 holds other "
                              "values than its replicas"),
                    HasSubstr("the workers of other hosts have 1 of 2 ranks")));
}

TEST(SchedulerHosts, HaveFailedIfARankOfTheirsIsFaulty) {
  Restarting scheduler({.workers = 2, .restarts = 3, .most_host_failures = 2});
  for (int attempt = 0; attempt < 2; ++attempt) {
    FakeWorker good(scheduler, "good");
    FakeWorker bad(scheduler, "bad");
    good.begin();
    bad.begin();
    good.end(1, {.faulty_rank = bad.place().first_rank});
    EXPECT_EQ(bad.await<EndRequest>().restarts, attempt == 0);
  }
  EXPECT_EQ(scheduler.wait(), 1);
  EXPECT_THAT(scheduler.printed, HasSubstr("the host bad would be excluded, because it has had 2 "
                                           "failures (--max-host-failures 2)"));
}

// Two ranks differ, and nobody knows which of them is right.
TEST(SchedulerHosts, HaveNotFailedIfTheFaultyRankIsUnknown) {
  Restarting scheduler({.workers = 2, .restarts = 1, .most_host_failures = 1});
  for (int attempt = 0; attempt < 2; ++attempt) {
    FakeWorker one(scheduler, "one");
    FakeWorker two(scheduler, "two");
    one.begin();
    two.begin();
    one.end(1, {.is_of_unknown_rank = true});
    EXPECT_EQ(two.await<EndRequest>().restarts, attempt == 0);
  }
  EXPECT_EQ(scheduler.wait(), 1);
  EXPECT_THAT(scheduler.printed,
              AllOf(HasSubstr("no restart is left"), Not(HasSubstr("excluded"))));
}

TEST(SchedulerHosts, AreNotStartedAgainIfTheFailureWouldComeAgain) {
  Restarting scheduler({.workers = 1, .restarts = 3});
  {
    FakeWorker worker(scheduler, "host");
    worker.begin();
    worker.end(1, {.is_final = true});
  }
  EXPECT_EQ(scheduler.wait(), 1);
  EXPECT_THAT(scheduler.printed,
              AllOf(HasSubstr("no restart follows: the failure would come again"),
                    Not(HasSubstr("restart 1 of 3"))));
}

TEST(SchedulerHosts, AreExcludedIfTheyAreSlow) {
  Restarting scheduler(
      {.workers = 2, .restarts = 3, .excludes_slow = true, .monitor = {.slow_factor = 2}});
  FakeWorker good(scheduler, "good");
  FakeWorker slow(scheduler, "slow");
  good.begin();
  slow.begin();
  FakeWorker spare(scheduler, "third");
  spare.await<Accepted>();
  // Three looks, one second apart, find it.
  std::optional<EndRequest> request;
  for (std::int64_t steps = 5; !request && steps < 3000; steps += 5) {
    good.report(steps, steps * 1000);
    slow.report(steps, steps * 3000);
    request = slow.look<EndRequest>(milliseconds(200));
  }
  ASSERT_TRUE(request);
  EXPECT_FALSE(request->restarts);
  FakeWorker good_again(scheduler, "good");
  good_again.begin();
  spare.begin();
  EXPECT_EQ(spare.place().restart, 1);
  good_again.end_well();
  spare.end_well();
  EXPECT_EQ(scheduler.wait(), 0);
  EXPECT_THAT(scheduler.printed, AllOf(HasSubstr(" on slow) is slow: 0.003 s of its own in a step"),
                                       HasSubstr("the host slow is excluded: rank ")));
}

// Strangers hold all connections of the status, and say rubbish there.
TEST(SchedulerStatus, DelaysNoWorkerIfStrangersFloodIt) {
  const test::TemporaryFolder temporary;
  const HostAndPort status{.host = "127.0.0.1", .port = listen_at("127.0.0.1", std::nullopt).port};
  Restarting scheduler({.workers = 1, .monitor = {.status = status}, .folder = temporary.path()});
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 400; ++i) {
    std::string problem;
    UniqueFd& one = strangers.emplace_back();
    while (!one) one = try_connect(status, std::chrono::steady_clock::now() + seconds(60), problem);
    const std::string said = i % 2 == 0 ? "GET / HTTP/1.1\r\nHost:" : std::string(5000, '\1');
    ::send(one.get(), said.data(), said.size(), MSG_NOSIGNAL);
  }
  FakeWorker worker(scheduler, "host");
  worker.begin();
  worker.report(1, 1000);
  worker.end_well();
  EXPECT_EQ(scheduler.wait(), 0);
  EXPECT_TRUE(test::await_end(strangers.front()));
}

}  // namespace
}  // namespace trireme::launch
