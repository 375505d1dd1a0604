// SPDX-License-Identifier: Apache-2.0
// A callback that throws on one rank stops all of them, at the same step and with its name.
#include "tests/ranks/thread_ranks.h"
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/loop/callback_calls.h>
#include <trireme/train/writers.h>

#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <memory>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::same_parameters;
using testing::small_network;

// Random numbers of LibTorch are drawn before the ranks start: its generator is shared by all
// threads.
class CallbackFailures : public ::testing::Test {
 protected:
  CallbackFailures() {
    for (auto& network : networks_) network = small_network();
  }

  // Trains 2 epochs of 4 steps over three ranks, where each gives its callbacks.
  std::vector<std::exception_ptr> train(
      const std::function<Callbacks(const comm::Group&)>& callbacks_of, int zero_level = 0) {
    steps_ = {};
    return testing::run_ranks_catching(3, [&](const comm::Group& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      auto optimizer = testing::momentum(*networks_.at(rank));
      Model model(networks_.at(rank), CrossEntropy(), optimizer,
                  {.group = group, .plan = {.zero_level = zero_level}});
      LambdaCallback count({.step_end = [&](const StepEndContext&) { ++steps_.at(rank); }});
      Callbacks callbacks = callbacks_of(group);
      callbacks.emplace_back(count);
      data::DataLoader data = points_;
      data.shard({.index = group.rank(), .count = 3}).batch(4);
      model.train(2, data, callbacks, &data);
    });
  }

  // All ranks took as many steps, and say the same.
  void expect_all(const std::vector<std::exception_ptr>& thrown, std::int64_t steps,
                  const ::testing::Matcher<std::string>& message) const {
    for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
      EXPECT_THAT(message_of<TrainingError>(thrown[rank]), message) << "rank " << rank;
      EXPECT_EQ(steps_.at(rank), steps) << "rank " << rank;
      EXPECT_TRUE(same_parameters(*networks_.at(rank), *networks_[0]));
    }
  }

  data::DataLoader points_ = testing::points(48);
  std::array<torch::nn::Sequential, 3> networks_{nullptr, nullptr, nullptr};
  std::array<std::int64_t, 3> steps_{};
};

LambdaCallback::Hooks named(LambdaCallback::Hooks hooks) {
  hooks.name = "Per-rank thrower";
  return hooks;
}

TEST_F(CallbackFailures, InAnyHookStopsAllRanksBeforeTheNextChangeOfAParameter) {
  int rank_that_throws = 1;
  const auto fail = [&](const RunContext& run, bool now) {
    if (run.rank == rank_that_throws && now) throw std::out_of_range("mine");
  };
  struct Case {
    const char* hook;
    LambdaCallback::Hooks hooks;
    std::int64_t steps;  // that are taken
  };
  const std::vector<Case> cases = {
      {"on_run_begin", {.run_begin = [&](const auto& run) { fail(run, true); }}, 0},
      {"on_epoch_begin",
       {.epoch_begin = [&](const auto& epoch) { fail(epoch.run, epoch.epoch == 2); }},
       4},
      {"on_step_begin",
       {.step_begin = [&](const auto& step) { fail(step.run, step.global_step == 3); }},
       2},
      {"on_backward_end",
       {.backward_end = [&](const auto& step) { fail(step.run, step.global_step == 3); }},
       3},
      {"on_step_end",
       {.step_end = [&](const auto& step) { fail(step.run, step.global_step == 3); }},
       3},
      {"on_step_end",
       {.step_end = [&](const auto& step) { fail(step.run, step.global_step == 4); }},
       4},
      {"on_evaluation_begin",
       {.evaluation_begin = [&](const auto& evaluation) { fail(evaluation.run, true); }},
       4},
      {"on_evaluation_end",
       {.evaluation_end = [&](const auto& evaluation) { fail(evaluation.run, true); }},
       4},
      {"on_epoch_end", {.epoch_end = [&](const auto& epoch) { fail(epoch.run, true); }}, 4},
      {"on_run_end", {.run_end = [&](const auto& run) { fail(run, true); }}, 8},
  };
  for (const Case& item : cases) {
    rank_that_throws = (rank_that_throws + 1) % 3;
    std::array<std::unique_ptr<LambdaCallback>, 3> throwers;
    const auto thrown = train([&](const comm::Group& group) {
      auto& thrower = throwers.at(static_cast<std::size_t>(group.rank()));
      thrower = std::make_unique<LambdaCallback>(named(item.hooks));
      return Callbacks{*thrower};
    });
    expect_all(thrown, item.steps,
               AllOf(HasSubstr(join_message("Per-rank thrower on rank ", rank_that_throws)),
                     HasSubstr(item.hook), HasSubstr("mine")));
    // The rank that threw has its exception too.
    try {
      std::rethrow_exception(thrown[static_cast<std::size_t>(rank_that_throws)]);
    } catch (const std::exception& error) {
      EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
    }
  }
}

TEST_F(CallbackFailures, NamesTypeEpochAndStep) {
  struct Clumsy : Callback {
    void on_step_end(const StepEndContext& step) override {
      if (step.global_step == 6)
        throw 5;  // NOLINT(bugprone-std-exception-baseclass): the case that is tested
    }
  };
  std::array<Clumsy, 3> clumsy;
  const auto thrown = train([&](const comm::Group& group) {
    return Callbacks{clumsy.at(static_cast<std::size_t>(group.rank()))};
  });
  expect_all(thrown, 6,
             AllOf(HasSubstr("Clumsy on ranks 0 to 2, in on_step_end in epoch 2, step 6 of all"),
                   HasSubstr("no std::exception")));
}

TEST_F(CallbackFailures, CallsThoseBehindSinceOtherRanksMayWaitForThem) {
  std::array<std::unique_ptr<LambdaCallback>, 3> throwers;
  std::array<std::unique_ptr<LambdaCallback>, 3> collectives;
  for (int zero_level = 0; zero_level < 3; ++zero_level) {
    const auto thrown = train(
        [&](const comm::Group& group) {
          const auto rank = static_cast<std::size_t>(group.rank());
          throwers.at(rank) =
              std::make_unique<LambdaCallback>(named({.step_end = [](const StepEndContext& step) {
                if (step.run.rank == 2) throw std::runtime_error("mine");
              }}));
          collectives.at(rank) = std::make_unique<LambdaCallback>(LambdaCallback::Hooks{
              .step_end = [group](const StepEndContext&) { comm::barrier(group); }});
          return Callbacks{*throwers.at(rank), *collectives.at(rank)};
        },
        zero_level);
    for (const auto& exception : thrown) {
      EXPECT_THAT(message_of<TrainingError>(exception), HasSubstr("Per-rank thrower on rank 2"));
    }
    EXPECT_EQ(steps_, (std::array<std::int64_t, 3>{1, 1, 1}));
  }
}

TEST_F(CallbackFailures, AWriterThatCannotWriteIsFoundBeforeTrainingOnAllRanks) {
  std::array<std::unique_ptr<CsvWriter>, 3> writers;
  const auto thrown = train([&](const comm::Group& group) {
    auto& writer = writers.at(static_cast<std::size_t>(group.rank()));
    writer = std::make_unique<CsvWriter>(CsvWriterOptions{.folder = "/dev/null/nowhere"});
    return Callbacks{*writer};
  });
  expect_all(thrown, 0,
             AllOf(HasSubstr("trireme::CsvWriter on rank 0, in on_run_begin before the first step"),
                   HasSubstr("/dev/null/nowhere")));
}

TEST_F(CallbackFailures, TrainingMayBeginAgain) {
  testing::run_ranks(2, [&](const comm::Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    auto optimizer = testing::momentum(*networks_.at(rank));
    Model model(networks_.at(rank), CrossEntropy(), optimizer, {.group = group});
    LambdaCallback thrower({.step_end = [&](const StepEndContext& step) {
      if (step.run.rank == 1 && step.global_step == 2) throw std::runtime_error("mine");
    }});
    data::DataLoader data = points_;
    data.shard({.index = group.rank(), .count = 2}).batch(4);
    EXPECT_THROW(model.train(1, data, {thrower}), TrainingError);
    EXPECT_EQ(model.progress().global_step, 2);
    model.train(1, data);
    EXPECT_EQ(model.progress().global_step, 6);
  });
  EXPECT_TRUE(same_parameters(*networks_[0], *networks_[1]));
}

}  // namespace
}  // namespace trireme
