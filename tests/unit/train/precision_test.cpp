// SPDX-License-Identifier: Apache-2.0
// Half precision with a loss scale, and runs that repeat themselves.
#include "tests/ranks/thread_ranks.h"
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>
#include <trireme/optim/autocast.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/loop/determinism.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <cstdint>
#include <optional>

namespace trireme {
namespace {

using ::testing::ElementsAre;
using testing::momentum;
using testing::same_parameters;
using testing::small_network;

data::DataLoader batches(std::int64_t size, const comm::Group& group = {}) {
  data::DataLoader data = testing::points(size);
  data.shard({.index = group.rank(), .count = group.size()}).batch(8);
  return data;
}

TEST(Fp16, LearnsWithMasterWeightsInFp32) {
  const data::DataLoader data = batches(64);
  auto network = small_network();
  auto optimizer = momentum(*network, 0.05);
  Model model(network, CrossEntropy(), optimizer,
              {.autocast = at::kHalf, .loss_scale = {.initial = 1024}});
  const double before = model.evaluate(data).loss;
  LambdaCallback check({.step_end = [&](const StepEndContext& step) {
    EXPECT_EQ(step.loss_scale, 1024);
    EXPECT_FALSE(step.is_skipped);
  }});
  model.train(5, data, {check});
  EXPECT_LT(model.evaluate(data).loss, 0.7 * before);
  for (const auto& parameter : network->parameters()) {
    EXPECT_EQ(parameter.scalar_type(), at::kFloat);
  }
  const auto output = model.predict(torch::ones({2, 4}));
  EXPECT_EQ(output.scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::equal(output, output.to(at::kHalf).to(at::kFloat)));  // was rounded
}

// A scale of a power of two is exact: the loop by hand has the same bits.
TEST(Fp16, DoesWhatALoopWrittenByHandDoes) {
  const data::DataLoader data = batches(32);
  auto manual = small_network();
  auto manual_optimizer = momentum(*manual);
  LossScale scale({.initial = 256});
  const auto stream = data.open(0);
  manual->train();
  while (const auto batch = stream->next()) {
    manual_optimizer.zero_grad();
    at::Tensor output;
    {
      const Autocast autocast(at::kCPU, at::kHalf);
      output = manual->forward((*batch)["features"]);
    }
    scale.scale(CrossEntropy()(output.to(at::kFloat), (*batch)["label"])).backward();
    if (scale.unscale(manual_optimizer)) manual_optimizer.step();
  }
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer,
              {.autocast = at::kHalf, .loss_scale = {.initial = 256}});
  model.train(1, data);
  EXPECT_TRUE(same_parameters(*network, *manual));
}

// What overflows on one rank is skipped by all, whatever the plan cuts.
TEST(Fp16, AnOverflowOnOneRankSkipsTheStepOnAll) {
  const data::DataLoader points = testing::points(48);
  for (int zero_level = 0; zero_level <= 2; ++zero_level) {
    std::array<torch::nn::Sequential, 2> networks{small_network(), small_network()};
    std::array<std::vector<bool>, 2> skipped;
    std::array<std::vector<double>, 2> scales;
    testing::run_ranks(2, [&](const comm::Group& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      auto optimizer = momentum(*networks.at(rank));
      int calls = 0;
      // The gradient of the second step is infinite on rank 1; its loss is not.
      const auto loss = [&](const at::Tensor& output, const at::Tensor& target) {
        at::Tensor value = CrossEntropy()(output, target);
        if (++calls != 2 || group.rank() != 1) return value;
        return value + (output - output.detach()).sum().mul(1e38F).mul(1e38F);
      };
      Model model(networks.at(rank), loss, optimizer,
                  {.group = group,
                   .plan = {.zero_level = zero_level},
                   .autocast = at::kHalf,
                   .loss_scale = {.initial = 64}});
      LambdaCallback record({.step_end = [&](const StepEndContext& step) {
        skipped.at(rank).push_back(step.is_skipped);
        scales.at(rank).push_back(step.loss_scale.value());
      }});
      data::DataLoader data = points;
      data.shard({.index = group.rank(), .count = 2}).batch(8);
      model.train(1, data, {record});
    });
    EXPECT_THAT(skipped[0], ElementsAre(false, true, false)) << "ZeRO level " << zero_level;
    EXPECT_EQ(skipped[0], skipped[1]);
    EXPECT_THAT(scales[0], ElementsAre(64, 64, 32));
    EXPECT_EQ(scales[0], scales[1]);
    EXPECT_TRUE(same_parameters(*networks[0], *networks[1]));
    for (const auto& parameter : networks[0]->parameters()) {
      EXPECT_TRUE(parameter.isfinite().all().item<bool>());
    }
  }
}

TEST(Fp16, CheckpointsHaveTheScale) {
  const test::TemporaryFolder folder;
  const data::DataLoader data = batches(40);  // 5 steps
  const ModelOptions options{.autocast = at::kHalf,
                             .loss_scale = {.initial = 4, .growth_interval = 3}};
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer, options);
  model.train(1, data);
  const auto path = model.save({.folder = folder.path()});
  std::vector<double> scales;
  LambdaCallback record(
      {.step_end = [&](const StepEndContext& step) { scales.push_back(step.loss_scale.value()); }});
  model.train(1, data, {record});
  EXPECT_THAT(scales, ElementsAre(8, 16, 16, 16, 32));

  auto other = small_network();
  auto other_optimizer = momentum(*other);
  Model resumed(other, CrossEntropy(), other_optimizer, options);
  resumed.resume(path);
  scales.clear();
  resumed.train(2, data, {record});
  EXPECT_THAT(scales, ElementsAre(8, 16, 16, 16, 32));
  EXPECT_TRUE(same_parameters(*network, *other));
}

torch::nn::Sequential with_dropout() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::Dropout(0.5),
                               torch::nn::Linear(8, 3));
}

TEST(Deterministic, RepeatsItselfWhateverWasDrawnBefore) {
  const data::DataLoader data = batches(40);
  const auto train = [&](std::uint64_t seed) {
    auto network = with_dropout();
    auto optimizer = momentum(*network);
    Model model(network, CrossEntropy(), optimizer, {.deterministic = seed});
    torch::rand({static_cast<std::int64_t>(seed % 100)});
    model.train(2, data);
    return network;
  };
  const auto first = train(1);
  torch::rand({17});
  EXPECT_TRUE(same_parameters(*first, *train(1)));
  EXPECT_FALSE(same_parameters(*first, *train(2)));
}

// By the random stream in the checkpoint, or because every step has a stream of its own.
class Dropout : public ::testing::TestWithParam<std::optional<std::uint64_t>> {};
INSTANTIATE_TEST_SUITE_P(Seeds, Dropout, ::testing::Values(std::nullopt, 5));

TEST_P(Dropout, IsResumedBitByBit) {
  const test::TemporaryFolder folder;
  const data::DataLoader data = batches(40);
  const ModelOptions options{.deterministic = GetParam()};
  auto straight = with_dropout();
  auto optimizer = momentum(*straight);
  Model model(straight, CrossEntropy(), optimizer, options);
  Checkpoint checkpoint({.save = {.folder = folder.path()}, .every_steps = 3, .every_epochs = 0});
  model.train(2, data, {checkpoint});

  auto resumed = with_dropout();
  auto resumed_optimizer = momentum(*resumed);
  Model other(resumed, CrossEntropy(), resumed_optimizer, options);
  other.resume(folder / "checkpoint-1_3");
  other.train(2, data);
  EXPECT_TRUE(same_parameters(*straight, *resumed));
}

TEST(Deterministic, RefusesOperatorsThatHaveNoSuchAlgorithmWhileTheModelWorks) {
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer, {.deterministic = 0});
  bool was_on = false;
  LambdaCallback look({.step_end = [&](const StepEndContext&) {
    was_on = at::globalContext().deterministicAlgorithms();
  }});
  model.train(1, batches(16), {look});
  EXPECT_TRUE(was_on);
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

TEST(RandomStreams, ArePutBack) {
  const auto streams = detail::random_streams(at::kCPU);
  const auto drawn = torch::rand({3});
  detail::set_random_streams({}, at::kCPU);
  EXPECT_FALSE(torch::rand({3}).equal(drawn));
  detail::set_random_streams(streams, at::kCPU);
  EXPECT_TRUE(torch::rand({3}).equal(drawn));
  EXPECT_THAT([] { detail::set_random_streams({{"random.cpu", "short"}}, at::kCPU); },
              ::testing::ThrowsMessage<CheckpointError>(::testing::HasSubstr("5 bytes")));
}

TEST(Deterministic, StepsAndRanksDrawUnlikeNumbers) {
  const auto draw = [](std::uint64_t seed, std::int64_t step, int rank) {
    detail::seed_step(seed, step, rank);
    return torch::rand({4});
  };
  EXPECT_TRUE(draw(1, 2, 3).equal(draw(1, 2, 3)));
  EXPECT_FALSE(draw(1, 2, 3).equal(draw(1, 3, 2)));
  EXPECT_FALSE(draw(1, 2, 3).equal(draw(1, 2, 4)));
  EXPECT_FALSE(draw(1, 2, 3).equal(draw(2, 1, 3)));
}

}  // namespace
}  // namespace trireme
