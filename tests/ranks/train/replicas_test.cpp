// SPDX-License-Identifier: Apache-2.0
// A Model finds faults that end no rank. It compares what several ranks hold after every n-th step
// and before it saves, and names the samples of a step whose loss is not finite.
#include <trireme/base/error.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <tests/ranks/train/in_stages.h>
#include <tests/temporary_folder.h>

#include <algorithm>
#include <filesystem>
#include <limits>

namespace trireme {
namespace {

using test::in_stages;
using test::kPerceptronStages;
using test::perceptron;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Trains with a bit that flips on a rank after a step, and returns what all ranks throw.
std::string error_of(int ranks, const ModelOptions& asked, int faulty, std::int64_t at_step,
                     const Callbacks& more = {}) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  testing::run_ranks(ranks, [&](const comm::Group& group) {
    const auto network = perceptron();
    torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    ModelOptions options = asked;
    options.group = group;
    Model model(network, CrossEntropy(), optimizer, options);
    LambdaCallback corrupt({.step_begin = [&](const StepContext& step) {
      if (group.rank() != faulty || step.global_step != at_step) return;
      const torch::NoGradGuard no_grad;
      *static_cast<std::uint32_t*>(network->last->weight.data_ptr()) ^= 1U << 20U;
    }});
    Callbacks callbacks{corrupt};
    callbacks.insert(callbacks.end(), more.begin(), more.end());
    data::DataLoader data = test::rows_of(48, {6});
    data.batch(2);
    try {
      model.train(2, data, callbacks);
    } catch (const TrainingError& error) {
      errors[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors.front());
  return errors.front();
}

TEST(ModelReplicas, AreComparedAfterEveryFewSteps) {
  EXPECT_THAT(error_of(3, {.check_replicas = 3}, 1, 4),
              AllOf(HasSubstr("after step 6 the ranks do not hold the same bits"),
                    HasSubstr("parameter last.weight: rank 1 differs from ranks 0, 2")));
  EXPECT_EQ(error_of(3, {.check_replicas = 0}, 1, 4), "");
  EXPECT_EQ(error_of(3, {.check_replicas = 3}, -1, 4), "");
}

// A checkpoint must not contain what is wrong.
TEST(ModelReplicas, AreComparedBeforeACheckpoint) {
  const test::TemporaryFolder temporary;
  LambdaCallback save({.step_end = [&](const StepEndContext& step) {
    if (step.global_step == 5) step.run.model.save({.folder = temporary.path()});
  }});
  EXPECT_THAT(error_of(3, {.check_replicas = 1000}, 1, 4, {save}),
              HasSubstr("after step 5 the ranks do not hold the same bits"));
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path()));
}

TEST(ModelReplicas, AreComparedInStages) {
  Plan plan = in_stages(2, 3, kPerceptronStages);
  plan.micro_batches = 2;
  // The second stage of the rank in the middle.
  EXPECT_THAT(error_of(6, {.plan = plan, .check_replicas = 2}, 3, 2),
              AllOf(HasSubstr("after step 2 the ranks do not hold"),
                    HasSubstr("parameter last.weight: rank 3 differs from ranks 1, 5")));
}

TEST(ModelReplicas, AreEqualInEveryPlan) {
  for (const int zero_level : {0, 1, 2, 3}) {
    EXPECT_EQ(error_of(2, {.plan = {.zero_level = zero_level}, .check_replicas = 1}, -1, 0), "");
    Plan plan = in_stages(2, 2, kPerceptronStages);
    plan.micro_batches = 2;
    plan.zero_level = zero_level;
    EXPECT_EQ(error_of(4, {.plan = plan, .clip_norm = 0.1, .check_replicas = 1}, -1, 0), "");
  }
}

// Every second sample belongs to a rank, and a step has two batches.
TEST(ModelLoss, ThatIsNotFiniteIsReportedWithItsSamples) {
  std::vector<std::string> errors(2);
  testing::run_ranks(2, [&](const comm::Group& group) {
    const auto network = perceptron();
    torch::optim::SGD optimizer(network->parameters(), 0.1);
    const at::Tensor input = torch::zeros({24, 6});
    input[13].fill_(std::numeric_limits<float>::infinity());
    data::DataLoader data(
        data::tensors({{"input", input}, {"label", torch::zeros(24, at::kLong)}}));
    data.batch(2);
    Model model(network, CrossEntropy(), optimizer, {.group = group, .plan = {.micro_batches = 2}});
    try {
      model.train(1, data);
    } catch (const TrainingError& error) {
      errors[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_THAT(errors[0], AllOf(HasSubstr("the loss is not a number in epoch 1, step 2: "),
                               HasSubstr(" on rank 1; no parameter was changed by this step\n"
                                         "    samples of rank 1: 9, 11, 13, 15\n"),
                               HasSubstr("lower the learning rate")));
}

TEST(ModelReplicas, RefuseANegativeNumber) {
  const auto network = perceptron();
  torch::optim::SGD optimizer(network->parameters(), 0.1);
  try {
    const Model model(network, CrossEntropy(), optimizer, {.check_replicas = -2});
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("was told to compare replicas every -2 steps"));
  }
}

}  // namespace
}  // namespace trireme
