// SPDX-License-Identifier: Apache-2.0
// What data, network, loss, optimizer or an evaluation throw on one rank stops all of them, with
// the rank, what it was doing, and the message; no rank waits for one that does not come.
#include "tests/ranks/thread_ranks.h"
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/comm/collectives.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/loop/callback_calls.h>

#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using testing::same_parameters;

constexpr int kRanks = 3;
constexpr int kFailing = 1;

// What a rank does when the moment has come.
using Trap = std::function<void()>;

class TrapInBackward : public torch::autograd::Function<TrapInBackward> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const std::shared_ptr<Trap>& trap) {
    context->saved_data["trap"] = reinterpret_cast<std::int64_t>(trap.get());  // which outlives it
    return input.view_as(input);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a context keeps numbers and tensors alone
    (*reinterpret_cast<const Trap*>(context->saved_data["trap"].toInt()))();
    return {gradients[0], at::Tensor()};
  }
};

// Between the two layers, so that the gradients of the second one are on their way when backward
// fails.
class Network : public torch::nn::Module {
 public:
  Network() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
  }

  at::Tensor forward(const at::Tensor& input) {
    (*in_forward)();
    const at::Tensor hidden = torch::relu(norm->forward(first->forward(input)));
    return second->forward(TrapInBackward::apply(hidden, in_backward));
  }

  std::shared_ptr<Trap> in_forward = std::make_shared<Trap>([] {});
  std::shared_ptr<Trap> in_backward = std::make_shared<Trap>([] {});
  // Wide enough for every rank to have a part.
  torch::nn::Linear first{4, 32};
  torch::nn::BatchNorm1d norm{32};
  torch::nn::Linear second{32, 3};
};

class Optimizer : public torch::optim::SGD {
 public:
  Optimizer(std::vector<at::Tensor> parameters, Trap trap)
      : SGD(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9)),
        trap_(std::move(trap)) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    trap_();
    return SGD::step(std::move(closure));
  }

 private:
  Trap trap_;
};

class BrokenMetric : public Metric {
 public:
  explicit BrokenMetric(Trap trap) : trap_(std::move(trap)) {}
  void clear() override {}
  void add(const at::Tensor& /*output*/, const at::Tensor& /*target*/) override { trap_(); }
  void all_reduce(const comm::Group& group) override { comm::barrier(group); }

 private:
  Trap trap_;
};

enum class Place { kData, kForward, kLoss, kBackward, kOptimizer, kMetric, kNowhere };

struct Case {
  Place place = Place::kNowhere;
  std::int64_t step = 0;   // in which it fails; 0: in the evaluation
  std::int64_t after = 0;  // so many times that go well there
  std::string text{};
  Plan plan{};
};

// Fails on one rank, in one step or in the evaluation.
struct Rank {
  Rank(const Case& the_case, const comm::Group& the_group, std::shared_ptr<Network> the_network)
      : item(the_case),
        group(the_group),
        network(std::move(the_network)),
        optimizer(network->parameters(), trap(Place::kOptimizer)),
        metric(trap(Place::kMetric)),
        model(network,
              [this](const at::Tensor& output, const at::Tensor& target) {
                trap(Place::kLoss)();
                return CrossEntropy()(output, target);
              },
              optimizer, {.group = group, .plan = item.plan, .metrics = {metric}}) {
    *network->in_forward = trap(Place::kForward);
    *network->in_backward = trap(Place::kBackward);
  }

  Trap trap(Place place) {
    return [this, place] {
      const bool is_here = is_armed && place == item.place && group.rank() == kFailing &&
                           (item.step == 0 ? is_evaluating : step == item.step);
      if (is_here && num_passed++ >= item.after) throw std::out_of_range("mine");
    };
  }

  // Two epochs of 4 steps, if two batches are one step.
  data::DataLoader data(const data::DataLoader& points) {
    data::DataLoader data = points;
    const Trap read = trap(Place::kData);
    data.shard({.index = group.rank(), .count = kRanks}).batch(2);
    data.map("features", [read](at::Tensor features) {
      read();
      return features;
    });
    return data;
  }

  void train(const data::DataLoader& points) {
    LambdaCallback count({.step_begin = [&](const StepContext& next) { step = next.global_step; },
                          .step_end = [&](const StepEndContext&) { ++num_steps; },
                          .evaluation_begin = [&](const auto&) { is_evaluating = true; }});
    const data::DataLoader own = data(points);
    model.train(2, own, {count}, &own);
  }

  const Case& item;
  comm::Group group;
  std::shared_ptr<Network> network;
  std::int64_t step = 0;
  std::int64_t num_steps = 0;
  std::int64_t num_passed = 0;
  bool is_evaluating = false;
  bool is_armed = true;
  Optimizer optimizer;
  BrokenMetric metric;
  Model model;
};

// Random numbers of LibTorch are drawn before the ranks start: its generator is shared by all
// threads.
class Failures : public ::testing::Test {
 protected:
  Failures() { clear(); }

  void clear() {
    for (auto& network : networks_) {
      torch::manual_seed(11);
      network = std::make_shared<Network>();
    }
  }

  std::shared_ptr<Network>& network(const comm::Group& group) {
    return networks_.at(static_cast<std::size_t>(group.rank()));
  }

  void expect_same_parameters() const {
    for (const auto& network : networks_) EXPECT_TRUE(same_parameters(*network, *networks_[0]));
  }

  data::DataLoader points_ = testing::points(48);
  std::array<std::shared_ptr<Network>, kRanks> networks_;
};

Plan plan_of(int zero_level) {
  // A bucket for each parameter: some have gone when backward fails.
  return {.micro_batches = 2, .bucket_bytes = 1, .first_bucket_bytes = 1, .zero_level = zero_level};
}

std::vector<Case> cases(int zero_level) {
  const Plan plan = plan_of(zero_level);
  return {
      {Place::kData, 3, 0, "reading data in epoch 1, step 3 of all: ", plan},
      {Place::kData, 2, 3, "reading data in epoch 1, step 2 of all: ", plan},
      {Place::kForward, 1, 0, "computing forward in epoch 1, step 1 of all: ", plan},
      {Place::kForward, 6, 1, "computing forward in epoch 2, step 6 of all: ", plan},
      {Place::kLoss, 2, 1, "computing forward in epoch 1, step 2 of all: ", plan},
      {Place::kBackward, 4, 0, "computing backward in epoch 1, step 4 of all: ", plan},
      {Place::kBackward, 1, 1, "computing backward in epoch 1, step 1 of all: ", plan},
      {Place::kBackward, 3, 1, "computing backward in epoch 1, step 3 of all: ", plan},
  };
}

TEST_F(Failures, InAStepStopAllRanksInItAndTheGroupLivesOn) {
  for (int zero_level = 0; zero_level <= 2; ++zero_level) {
    for (const Case& item : cases(zero_level)) {
      SCOPED_TRACE(join_message("ZeRO level ", zero_level, ", ", item.text));
      clear();
      std::array<std::string, kRanks> messages;
      testing::run_ranks(kRanks, [&](const comm::Group& group) {
        Rank rank(item, group, network(group));
        try {
          rank.train(points_);
        } catch (const TrainingError& error) {
          messages.at(static_cast<std::size_t>(group.rank())) = error.what();
          bool has_cause = false;
          try {
            std::rethrow_if_nested(error);
          } catch (const std::exception&) {
            has_cause = true;
          }
          EXPECT_EQ(has_cause, group.rank() == kFailing);
        }
        EXPECT_EQ(rank.num_steps, item.step - 1);
        EXPECT_EQ(rank.model.progress().global_step, item.step - 1);
        // What was interrupted is forgotten: the same ranks train on.
        rank.is_armed = false;
        rank.train(points_);
        EXPECT_EQ(rank.model.progress().global_step, 8);
      });
      for (const std::string& message : messages) {
        EXPECT_THAT(message,
                    AllOf(HasSubstr("training failed: rank 1, " + item.text), HasSubstr("mine")));
        EXPECT_EQ(message, messages[0]);
      }
      expect_same_parameters();
    }
  }
}

TEST_F(Failures, OfTheOptimizerStopAllRanksBeforeTheNextStep) {
  for (int zero_level = 0; zero_level <= 3; ++zero_level) {
    for (const std::int64_t step : {2, 4, 8}) {
      SCOPED_TRACE(join_message("ZeRO level ", zero_level, ", step ", step));
      clear();
      const Case item{.place = Place::kOptimizer, .step = step, .plan = plan_of(zero_level)};
      std::array<std::int64_t, kRanks> steps{};
      const auto thrown = testing::run_ranks_catching(kRanks, [&](const comm::Group& group) {
        Rank rank(item, group, network(group));
        try {
          rank.train(points_);
        } catch (...) {
          steps.at(static_cast<std::size_t>(group.rank())) = rank.num_steps;
          throw;
        }
      });
      for (const auto& exception : thrown) {
        EXPECT_THAT(
            message_of<TrainingError>(exception),
            HasSubstr(join_message("training failed: rank 1, stepping the optimizer in ", "epoch ",
                                   (step + 3) / 4, ", step ", step, " of all: ", "mine")));
      }
      EXPECT_EQ(steps, (std::array<std::int64_t, kRanks>{step, step, step}));
    }
  }
}

TEST_F(Failures, OfEveryRankAreToldTogether) {
  const auto thrown = testing::run_ranks_catching(2, [&](const comm::Group& group) {
    auto optimizer = testing::momentum(*network(group));
    Model model(network(group), CrossEntropy(), optimizer, {.group = group});
    const std::int64_t columns = 2 + group.rank();
    data::DataLoader data(data::tensors(
        {{"features", torch::zeros({8, 4})}, {"label", torch::zeros({8, columns}, torch::kLong)}}));
    data.shard({.index = group.rank(), .count = 2}).batch(4);
    model.train(1, data);
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(message_of<TrainingError>(exception),
                AllOf(HasSubstr("rank 0, computing forward"), HasSubstr("; rank 1, computing"),
                      HasSubstr("expected target [4]")));
  }
}

TEST_F(Failures, InAnEvaluationStopAllRanks) {
  for (const auto& [place, doing] :
       {std::pair{Place::kData, "reading data"}, std::pair{Place::kForward, "computing forward"},
        std::pair{Place::kLoss, "computing forward"}, std::pair{Place::kMetric, "counting"}}) {
    for (const int zero_level : {0, 2}) {
      SCOPED_TRACE(join_message(doing, ", ZeRO level ", zero_level));
      clear();
      const Case item{.place = place, .text = doing, .plan = plan_of(zero_level)};
      testing::run_ranks(kRanks, [&](const comm::Group& group) {
        Rank rank(item, group, network(group));
        EXPECT_THAT(
            [&] { rank.train(points_); },
            ::testing::ThrowsMessage<TrainingError>(AllOf(
                HasSubstr(join_message("the evaluation failed: rank 1, ", doing, " in an eval")),
                HasSubstr("mine"))));
        EXPECT_EQ(rank.num_steps, 4);
        // Outside of a training too.
        EXPECT_THROW(rank.model.evaluate(rank.data(points_)), TrainingError);
        rank.is_armed = false;
        EXPECT_EQ(rank.model.evaluate(rank.data(points_)).samples, 48);
      });
    }
  }
}

TEST_F(Failures, OfDataThatCannotBeCountedStopAllRanksBeforeTheFirstStep) {
  const auto thrown = testing::run_ranks_catching(2, [&](const comm::Group& group) {
    auto optimizer = testing::momentum(*network(group));
    Model model(network(group), CrossEntropy(), optimizer, {.group = group});
    data::DataLoader data = points_;
    data.batch(group.rank() == 1 ? 100 : 4, data::LastBatch::kDrop);
    model.train(1, data);
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(message_of<TrainingError>(exception),
                HasSubstr("training failed: rank 1, counting batches before the first step: "));
  }
}

// The rank that fails keeps its model until the others have thrown: they do not wait for its end.
TEST_F(Failures, WhereForwardNeedsAllRanksEndTheGroupAtOnce) {
  const Plan stage_3 = plan_of(3);
  Plan streams = stage_3;
  streams.allreduce_streams = 2;
  Plan norm = plan_of(0);
  norm.sync_batch_norm = true;
  for (const Plan& plan : {stage_3, streams, norm}) {
    for (Case item : cases(0)) {
      item.plan = plan;
      SCOPED_TRACE(to_string(plan) + item.text);
      clear();
      std::latch others(kRanks - 1);
      const auto thrown = testing::run_ranks_catching(kRanks, [&](const comm::Group& group) {
        Rank rank(item, group, network(group));
        try {
          rank.train(points_);
        } catch (...) {
          group.rank() == kFailing ? others.wait() : others.count_down();
          throw;
        }
      });
      for (int number = 0; number < kRanks; ++number) {
        const auto& exception = thrown.at(static_cast<std::size_t>(number));
        if (number == kFailing) {
          EXPECT_THAT(trireme::message_of(exception), HasSubstr("mine"));
        } else {
          EXPECT_THAT(message_of<CommError>(exception),
                      AllOf(HasSubstr("rank 1, " + item.text), HasSubstr("mine")));
        }
      }
    }
  }
}

// A wrong shape in forward, which fails alike on all ranks, took a screen of stack frames for each.
TEST_F(Failures, OfAllRanksAreToldOnceAndWithoutStackFrames) {
  const auto thrown = testing::run_ranks_catching(kRanks, [&](const comm::Group& group) {
    torch::nn::Linear linear(7, 3);
    torch::optim::SGD optimizer(linear->parameters(), 0.1);
    Model model(linear, CrossEntropy(), optimizer, {.group = group});
    data::DataLoader data = points_;
    data.batch(4, data::LastBatch::kDrop);
    model.train(1, data);
  });
  for (const auto& exception : thrown) {
    const auto text = message_of<TrainingError>(exception);
    EXPECT_THAT(text, AllOf(HasSubstr("training failed: ranks 0 to 2, "),
                            HasSubstr("mat1 and mat2 shapes cannot be multiplied (4x4 and 7x3)"),
                            Not(HasSubstr("frame #")), Not(HasSubstr("; rank"))));
    EXPECT_EQ(text, trireme::message_of(exception));  // what is nested says nothing else
  }
}

TEST_F(Failures, InAGroupOfOneComeOutAsTheyAre) {
  torch::nn::Linear linear(4, 3);
  torch::optim::SGD optimizer(linear->parameters(), 0.1);
  Model model(
      linear,
      [](const at::Tensor&, const at::Tensor&) -> at::Tensor { throw std::out_of_range("mine"); },
      optimizer);
  data::DataLoader data = points_;
  data.batch(4);
  EXPECT_THROW(model.train(1, data), std::out_of_range);
  EXPECT_THROW(model.evaluate(data), std::out_of_range);
}

}  // namespace
}  // namespace trireme
