// SPDX-License-Identifier: Apache-2.0
// Model over several ranks, which are threads here.
#include "tests/ranks/thread_ranks.h"
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>
#include <trireme/train/lambda_callback.h>

#include <gmock/gmock.h>

#include <limits>
#include <mutex>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::momentum;
using testing::same_parameters;
using testing::small_network;

// Random numbers of LibTorch are drawn before the ranks start: its generator is shared by all
// threads.
class ModelParallel : public ::testing::Test {
 protected:
  ModelParallel() {
    for (auto& network : networks_) network = small_network();
  }

  data::DataLoader part(const comm::Group& group,
                        data::Remainder remainder = data::Remainder::kWrap) const {
    auto data = points_;
    data.shuffle(5)
        .shard({.index = group.rank(), .count = group.size(), .remainder = remainder})
        .batch(4);
    return data;
  }

  torch::nn::Sequential& network(const comm::Group& group) {
    return networks_[static_cast<std::size_t>(group.rank())];
  }

  data::DataLoader points_ = testing::points(45);
  std::array<torch::nn::Sequential, 3> networks_{nullptr, nullptr, nullptr};
};

TEST_F(ModelParallel, TwoRanksEqualOneProcessThatAccumulatesTheirBatchesBitByBit) {
  testing::run_ranks(2, [&](const comm::Group& group) {
    auto optimizer = momentum(*network(group));
    Model model(network(group), CrossEntropy(), optimizer, {.group = group});
    model.train(2, part(group));
  });
  EXPECT_TRUE(same_parameters(*networks_[0], *networks_[1]));

  // The batches of both ranks in turn, as one process would see them.
  auto alone = networks_[2];
  auto optimizer = momentum(*alone);
  alone->train();
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::array<std::unique_ptr<data::BatchStream>, 2> streams;
    for (int rank = 0; rank < 2; ++rank) {
      auto data = points_;
      data.shuffle(5).shard({.index = rank, .count = 2}).batch(4);
      streams[static_cast<std::size_t>(rank)] = data.open(epoch);
    }
    while (const auto first = streams[0]->next()) {
      const auto second = streams[1]->next();
      optimizer.zero_grad();
      for (const auto* batch : {&*first, &*second}) {
        CrossEntropy()(alone->forward((*batch)["features"]), (*batch)["label"]).backward();
      }
      for (auto& parameter : alone->parameters()) parameter.mutable_grad().div_(2);
      optimizer.step();
    }
  }
  EXPECT_TRUE(same_parameters(*networks_[0], *alone));
}

TEST_F(ModelParallel, EvaluationCountsEverySampleOnceAndIsTheSameOnAllRanks) {
  std::array<Evaluation, 3> results;
  testing::run_ranks(3, [&](const comm::Group& group) {
    auto optimizer = momentum(*network(group));
    Model model(network(group), CrossEntropy(), optimizer, {.group = group});
    auto data = points_;
    data.shard({.index = group.rank(), .count = 3, .remainder = data::Remainder::kUneven}).batch(7);
    results[static_cast<std::size_t>(group.rank())] = model.evaluate(data);
  });
  auto alone = testing::small_network();
  auto optimizer = momentum(*alone);
  Model model(alone, CrossEntropy(), optimizer);
  auto all = points_;
  const Evaluation expected = model.evaluate(all.batch(45));
  for (const Evaluation& result : results) {
    EXPECT_EQ(result.samples, 45);
    EXPECT_NEAR(result.loss, expected.loss, 1e-6);
    EXPECT_DOUBLE_EQ(result.accuracy.value(), expected.accuracy.value());
  }
}

TEST_F(ModelParallel, MeanLossOfAnEpochIsThatOfAllRanks) {
  std::mutex mutex;
  double sum = 0;
  std::vector<double> means;
  testing::run_ranks(2, [&](const comm::Group& group) {
    auto optimizer = momentum(*network(group));
    Model model(network(group), CrossEntropy(), optimizer, {.group = group});
    LambdaCallback record({.step_end =
                               [&](const StepEndContext& step) {
                                 const std::lock_guard lock(mutex);
                                 sum += static_cast<double>(step.loss) *
                                        static_cast<double>(step.samples);
                               },
                           .epoch_end =
                               [&](const EpochEndContext& epoch) {
                                 const std::lock_guard lock(mutex);
                                 means.push_back(epoch.mean_loss);
                                 EXPECT_EQ(epoch.samples, 46);  // 45, and one that comes twice
                               }});
    model.train(1, part(group), {record});
  });
  ASSERT_EQ(means.size(), 2U);
  EXPECT_DOUBLE_EQ(means[0], means[1]);
  EXPECT_NEAR(means[0], sum / 46, 1e-9);
}

TEST_F(ModelParallel, ALossThatIsNotANumberOnOneRankStopsAllWithOneMessageAndNoneChanges) {
  const auto before = testing::small_network();
  const auto thrown = testing::run_ranks_catching(3, [&](const comm::Group& group) {
    auto optimizer = momentum(*network(group));
    const bool faulty = group.rank() == 1;
    Model model(network(group),
                [&](const at::Tensor& output, const at::Tensor& target) {
                  const auto loss = CrossEntropy()(output, target);
                  return faulty ? loss * std::numeric_limits<float>::infinity() : loss;
                },
                optimizer, {.group = group});
    model.train(1, part(group));
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(
        message_of<TrainingError>(exception),
        AllOf(HasSubstr("epoch 1, step 1: inf on rank 1;"), HasSubstr("no parameter was changed")));
    EXPECT_EQ(message_of<TrainingError>(exception), message_of<TrainingError>(thrown[0]));
  }
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_TRUE(same_parameters(*networks_[static_cast<std::size_t>(rank)], *before));
}

TEST_F(ModelParallel, RefusesPartsOfDifferentLengthOnAllRanks) {
  const auto thrown = testing::run_ranks_catching(2, [&](const comm::Group& group) {
    auto optimizer = momentum(*network(group));
    Model model(network(group), CrossEntropy(), optimizer, {.group = group});
    auto data = part(group);
    if (group.rank() == 1) data.repeat(2);
    model.train(1, data);
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(message_of<UsageError>(exception), HasSubstr("6 on rank 0, 12 on rank 1"));
  }
}

}  // namespace
}  // namespace trireme
