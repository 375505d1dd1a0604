// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/count_monitor.h>

#include "tests/ranks/thread_ranks.h"
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>
#include <trireme/train/lambda_callback.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <string>
#include <vector>

namespace trireme {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// Counts rows, and rows by whether their first feature is above zero.
struct CountingImpl : torch::nn::Module {
  CountingImpl()
      : linear(register_module("linear", torch::nn::Linear(2, 2))),
        rows(register_buffer("rows", torch::zeros({}, torch::kInt64))),
        by_sign(register_buffer("by_sign", torch::zeros({2}, torch::kInt64))),
        mean(register_buffer("mean", torch::zeros({2}))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    if (is_training()) {
      const torch::NoGradGuard no_grad;
      rows += x.size(0);
      const auto positive = x.select(1, 0).gt(0).sum();
      by_sign += torch::stack({x.size(0) - positive, positive});
    }
    return linear(x);
  }
  torch::nn::Linear linear;
  torch::Tensor rows, by_sign, mean;
};
TORCH_MODULE(Counting);

data::DataLoader signs() {
  // Of 16 rows, the first of each four is positive.
  auto features = torch::full({16, 2}, -1.0);
  features.slice(0, 0, 16, 4).fill_(1.0);
  return data::DataLoader(
             data::tensors({{"x", features}, {"y", torch::zeros({16}, torch::kInt64)}}))
      .batch(4);
}

std::vector<Scalars> logged(const CountMonitorOptions& options, const Plan& plan = {},
                            const comm::Group& group = {}) {
  Counting network;
  torch::optim::SGD optimizer(network->parameters(), 0.1);
  Model model(network, CrossEntropy(), optimizer, {.group = group, .plan = plan});
  CountMonitor monitor(options);
  std::vector<Scalars> all;
  LambdaCallback read(
      {.step_end = [&](const StepEndContext& step) { all.push_back(*step.run.scalars); }});
  model.train(1, signs(), {monitor, read});
  return all;
}

TEST(CountMonitor, LogsWhatBuffersHaveCounted) {
  const auto all = logged({.buffers = {"rows", "by_*"}});
  ASSERT_EQ(all.size(), 4);
  for (const Scalars& step : all) {
    EXPECT_THAT(step,
                UnorderedElementsAre(Pair("rows", 4), Pair("by_sign/0", 3), Pair("by_sign/1", 1)));
  }
}

TEST(CountMonitor, SumsTheStepsSinceTheLastTime) {
  const auto all = logged({.buffers = {"by_sign"}, .every_steps = 3});
  EXPECT_TRUE(all[1].empty());
  EXPECT_THAT(all[2], ElementsAre(Pair("by_sign/0", 9), Pair("by_sign/1", 3)));
  EXPECT_TRUE(all[3].empty());
}

TEST(CountMonitor, SumsTheRowsOfAllRanks) {
  Plan plan{.micro_batches = 2, .broadcast_buffers = false};
  testing::run_ranks(2, [&](const comm::Group& group) {
    const auto all = logged({.buffers = {"rows"}}, plan, group);
    ASSERT_EQ(all.size(), 1);
    EXPECT_EQ(all[0].at("rows"), 16);
  });
}

TEST(CountMonitor, RefusesWhatItCannotCount) {
  const auto error_of = [](const CountMonitorOptions& options) {
    return message_of<UsageError>([&] { logged(options); });
  };
  EXPECT_THAT(error_of({}), HasSubstr("was given no buffers"));
  EXPECT_THAT(error_of({.buffers = {"rows"}, .every_steps = 0}), HasSubstr("got n = 0"));
  EXPECT_THAT(error_of({.buffers = {"tokens"}}),
              AllOf(HasSubstr("the pattern tokens matches no buffer"),
                    HasSubstr("the buffers rows, by_sign, mean")));
  EXPECT_THAT(error_of({.buffers = {"mean"}}),
              HasSubstr("the buffer mean, which is Float [2], expected integers"));
  testing::run_ranks(2, [&](const comm::Group& group) {
    EXPECT_THAT(message_of<TrainingError>([&] { logged({.buffers = {"rows"}}, Plan{}, group); }),
                HasSubstr("set plan.broadcast_buffers to false"));
  });
}

}  // namespace
}  // namespace trireme
