// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/queue.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <future>
#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace trireme::shm {
namespace {

using ::testing::ElementsAre;
using trireme::test::message_of;

// Keeps a queue's own thread in a job until it is let go.
class Busy {
 public:
  explicit Busy(Queue& queue)
      : job_(queue.submit([this] {
          has_begun_.count_down();
          may_end_.wait();
        })) {
    has_begun_.wait();
  }
  void end() { may_end_.count_down(); }
  Job& job() { return *job_; }

 private:
  std::latch has_begun_{1};
  std::latch may_end_{1};
  std::shared_ptr<Job> job_;
};

TEST(Queue, RunsJobsInOrderWhetherOrNotAnybodyWaits) {
  Queue queue;
  std::vector<int> order;  // one job runs at a time
  std::promise<void> is_over;
  for (int i = 0; i < 100; ++i) queue.submit([&, i] { order.push_back(i); });
  queue.submit([&] { is_over.set_value(); });
  is_over.get_future().wait();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(Queue, RunsOneJobAtATimeForManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 200;
  Queue queue;
  int num_inside = 0;  // the sanitizer sees it if two threads come here unordered
  int num_run = 0;
  const auto body = [&] {
    EXPECT_EQ(++num_inside, 1);
    ++num_run;
    --num_inside;
  };
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&] {
        for (int round = 0; round < kRounds; ++round) {
          queue.run(body);
          const auto job = queue.submit(body);
          queue.submit(body);
          queue.wait(*job);
        }
      });
    }
  }
  queue.run([&] { EXPECT_EQ(num_run, 3 * kThreads * kRounds); });
}

TEST(Queue, LendsItTheThreadThatWaits) {
  // Its own thread goes for the jobs, too: tried until this one was the first.
  const auto self = std::this_thread::get_id();
  Queue queue;
  for (std::vector<std::thread::id> runners; runners != std::vector{self, self};) {
    runners.clear();
    const auto tell = [&] { runners.push_back(std::this_thread::get_id()); };
    queue.submit(tell);
    queue.wait(*queue.submit(tell));
    ASSERT_EQ(runners.size(), 2U);
  }
}

TEST(Queue, RunsOnTheCallingThreadWhereNothingWaits) {
  Queue queue;
  std::thread::id runner;
  queue.run([&] { runner = std::this_thread::get_id(); });
  EXPECT_EQ(runner, std::this_thread::get_id());
}

TEST(Queue, RunsAfterEverythingSubmittedBefore) {
  Queue queue;
  Busy busy(queue);
  std::vector<int> order;
  queue.submit([&] { order.push_back(1); });
  const std::jthread ends([&] { busy.end(); });
  queue.run([&] { order.push_back(2); });
  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST(Queue, RunsAtOnceWithinAJob) {
  Queue queue;
  std::vector<int> order;
  const auto job = queue.submit([&] {
    queue.submit([&] { order.push_back(3); });
    queue.run([&] { queue.run([&] { order.push_back(1); }); });
    order.push_back(2);
  });
  queue.wait(*job);
  queue.run([] {});
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(Queue, LetsAJobWaitForLaterOnes) {
  // It used to wait for ever: nobody else may run them.
  Queue queue;
  std::vector<int> order;
  const auto job = queue.submit([&] {
    queue.submit([&] { order.push_back(1); });
    queue.wait(*queue.submit([&] { order.push_back(2); }));
    order.push_back(3);
  });
  queue.wait(*job);
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(Queue, GivesExceptionsToWhoeverWaitsAndGoesOn) {
  Queue queue;
  const auto failing = queue.submit([] { throw std::runtime_error("first"); });
  const auto next = queue.submit([] {});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(message_of<std::runtime_error>([&] { queue.wait(*failing); }), "first");
  }
  EXPECT_NE(failing->error(), nullptr);
  queue.wait(*next);
  EXPECT_EQ(next->error(), nullptr);

  EXPECT_EQ(message_of<std::runtime_error>(
                [&] { queue.run([] { throw std::runtime_error("second"); }); }),
            "second");
  Busy busy(queue);
  const std::jthread ends([&] { busy.end(); });
  EXPECT_EQ(
      message_of<std::runtime_error>([&] { queue.run([] { throw std::runtime_error("third"); }); }),
      "third");
}

TEST(Queue, LeavesAJobThatHasBegunToItsWaiter) {
  const auto self = std::this_thread::get_id();
  Queue queue;
  std::vector<std::thread::id> places;
  const auto tell = [&] { places.push_back(std::this_thread::get_id()); };
  const auto begin = [&] {
    tell();
    return true;
  };
  const auto job = queue.submit(tell, begin);
  EXPECT_EQ(places, std::vector{self}) << "it is begun at once";
  queue.wait(*job);
  EXPECT_EQ(places, std::vector({self, self}));
  // Whatever comes next comes after it.
  const auto other = queue.submit(tell, begin);
  queue.run([&] { EXPECT_TRUE(other->is_done()); });
  EXPECT_EQ(places, std::vector(4, self));
}

TEST(Queue, RunsAJobThatHasBegunWhenSomebodyAsksForIt) {
  Queue queue;
  std::promise<void> is_over;
  const auto job = queue.submit([&] { is_over.set_value(); }, [] { return true; });
  queue.hasten();
  is_over.get_future().wait();
  queue.wait(*job);
}

TEST(Queue, BeginsAJobOnlyWhereNothingElseIsUnderWay) {
  Queue queue;
  Busy busy(queue);
  const auto job = queue.submit([] {},
                                [] {
                                  ADD_FAILURE() << "the one before has not ended";
                                  return true;
                                });
  busy.end();
  queue.wait(*job);
}

TEST(Queue, RunsAJobWhoseBeginningFailedLikeAnyOther) {
  Queue queue;
  for (const bool throws : {false, true}) {
    std::promise<void> is_over;
    queue.submit([&] { is_over.set_value(); },
                 [=]() -> bool {
                   if (throws) throw std::runtime_error("the body is to meet it again");
                   return false;
                 });
    is_over.get_future().wait();  // nobody waits for the job
  }
}

TEST(Queue, RunsWhatWasLeftToAWaiterThatNeverCame) {
  for (const bool has_thread : {false, true}) {
    bool has_run = false;
    {
      Queue queue;
      if (has_thread) queue.wait(*queue.submit([] {}));
      queue.submit([&] { has_run = true; }, [] { return true; });
    }
    EXPECT_TRUE(has_run);
  }
}

TEST(Queue, RunsWhatIsLeftBeforeItEnds) {
  std::vector<int> order;
  std::shared_ptr<Job> last;
  {
    Queue queue;
    Busy busy(queue);
    for (int i = 1; i <= 2; ++i) queue.submit([&, i] { order.push_back(i); });
    last = queue.submit([] { throw std::runtime_error("nobody waits"); });
    busy.end();
  }
  EXPECT_THAT(order, ElementsAre(1, 2));
  EXPECT_TRUE(last->is_done());
  EXPECT_NE(last->error(), nullptr);
}

TEST(Queue, MayEndWithoutEverHavingRun) {
  const Queue unused;
  Queue used;
  used.run([] {});
}

// What a queue belongs to, as a group is to its collectives.
struct Owner {
  std::promise<void> is_gone;
  Queue queue;
};

TEST(Queue, MayLoseItsLastOwnerWithinAJobOfItsOwnThread) {
  // It used to join its own thread, which ends the program.
  std::vector<int> order;
  std::promise<void> may_go;
  auto owner = std::make_shared<Owner>();
  auto is_gone = owner->is_gone.get_future();
  Queue& queue = owner->queue;
  queue.submit([&order, owner, gate = may_go.get_future().share()] {
    gate.wait();
    order.push_back(1);
  });
  queue.submit([&order] { order.push_back(2); });
  owner.reset();
  may_go.set_value();
  EXPECT_THROW(is_gone.get(), std::future_error) << "a promise is broken by its end";
  EXPECT_THAT(order, ElementsAre(1, 2)) << "what is left runs first";
}

TEST(Queue, MayLoseItsLastOwnerWithinAJobOfAThreadThatWaits) {
  const auto self = std::this_thread::get_id();
  for (bool was_here = false; !was_here;) {
    std::vector<int> order;
    auto owner = std::make_unique<Owner>();
    const auto job = owner->queue.submit([&] {
      order.push_back(1);
      was_here = std::this_thread::get_id() == self;
      if (was_here) owner.reset();
    });
    owner->queue.submit([&] { order.push_back(2); });
    owner->queue.wait(*job);
    owner.reset();
    EXPECT_THAT(order, ElementsAre(1, 2));
  }
}

}  // namespace
}  // namespace trireme::shm
