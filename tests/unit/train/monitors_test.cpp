// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/monitors.h>

#include "tests/ranks/thread_ranks.h"
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>
#include <trireme/optim/gradients.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/trace_writer.h>

#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <cmath>

namespace trireme {
namespace {

using ::testing::Key;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class Monitors : public ::testing::Test {
 protected:
  // What was logged in every step.
  std::vector<Scalars> train(const Callbacks& monitors) {
    std::vector<Scalars> all;
    LambdaCallback read(
        {.step_end = [&](const StepEndContext& step) { all.push_back(*step.run.scalars); }});
    Callbacks callbacks = monitors;
    callbacks.emplace_back(read);
    model_.train(1, data_, callbacks);
    return all;
  }

  data::DataLoader data_ = testing::points(32).batch(8);
  torch::nn::Sequential network_ = testing::small_network();
  torch::optim::SGD optimizer_ = testing::momentum(*network_);
  Model model_{network_, CrossEntropy(), optimizer_, {.clip_norm = 0.1}};
};

TEST_F(Monitors, LogTheRateOfEveryGroup) {
  LearningRateMonitor monitor;
  const torch::Tensor other = torch::zeros({1}).set_requires_grad(true);
  optimizer_.add_param_group(
      torch::optim::OptimizerParamGroup({other}, std::make_unique<torch::optim::SGDOptions>(0.5)));
  const auto logged = train({monitor});
  EXPECT_THAT(logged[2],
              UnorderedElementsAre(Pair("learning_rate/0", 0.1), Pair("learning_rate/1", 0.5)));
}

TEST_F(Monitors, MeasureThroughputOverTheLastSteps) {
  double now = 0;
  ThroughputMonitor monitor(2, [&] { return now; });
  LambdaCallback wait(
      {.step_begin = [&](const StepContext& step) { now += static_cast<double>(step.step); }});
  const auto logged = train({wait, monitor});
  EXPECT_EQ(logged[0].at("samples_per_second"), 8);
  EXPECT_EQ(logged[1].at("samples_per_second"), 16 / 3.0);
  EXPECT_EQ(logged[3].at("samples_per_second"), 16 / 7.0);
  EXPECT_EQ(logged[3].at("steps_per_second"), 2 / 7.0);
  EXPECT_THROW(ThroughputMonitor(0), UsageError);
}

// It used to be of each rank alone here, and of all in the progress bar.
TEST_F(Monitors, MeasureTheThroughputOfAllRanks) {
  std::array<torch::nn::Sequential, 2> networks{testing::small_network(), testing::small_network()};
  testing::run_ranks(2, [&](const comm::Group& group) {
    const auto& network = networks.at(static_cast<std::size_t>(group.rank()));
    auto optimizer = testing::momentum(*network);
    Model model(network, CrossEntropy(), optimizer, {.group = group});
    double now = 0;
    ThroughputMonitor monitor(2, [&] { return now; });
    LambdaCallback look({.step_begin = [&](const StepContext& /*step*/) { now += 1; }});
    LambdaCallback read({.step_end = [&](const StepEndContext& step) {
      EXPECT_EQ(step.samples, 8);
      EXPECT_EQ(step.all_samples, 16);
      EXPECT_EQ(step.run.scalars->at("samples_per_second"), 16);
    }});
    model.train(1, data_, {look, monitor, read});
  });
}

TEST_F(Monitors, TellTheMemoryOfTheProcess) {
  MemoryMonitor monitor(2);
  const auto logged = train({monitor});
  EXPECT_TRUE(logged[0].empty());
  EXPECT_THAT(logged[1], UnorderedElementsAre(Key("memory/resident"), Key("memory/peak_resident")));
  EXPECT_GT(logged[1].at("memory/resident"), 1e6);
  EXPECT_GE(logged[1].at("memory/peak_resident"), 0.9 * logged[1].at("memory/resident"));
  EXPECT_THROW(MemoryMonitor(0), UsageError);
}

TEST_F(Monitors, GiveNormsOfGradientsBeforeTheyAreClipped) {
  GradientNorms norms({.every_steps = 2, .of_parameters = true});
  std::vector<double> clipped;
  LambdaCallback look({.step_end = [&](const StepEndContext& step) {
    clipped.push_back(step.gradient_norm.value());
  }});
  const auto logged = train({norms, look});
  EXPECT_TRUE(logged[0].empty());
  EXPECT_EQ(logged[1].at("gradient_norm/all"), clipped[1]);
  double squares = 0;
  for (const auto& item : network_->named_parameters()) {
    squares += std::pow(logged[1].at("gradient_norm/" + item.key()), 2);
  }
  EXPECT_NEAR(std::sqrt(squares), clipped[1], 1e-6);
  EXPECT_GT(clipped[1], 0.1);
  EXPECT_THROW(GradientNorms({.every_steps = 0}), UsageError);
}

TEST_F(Monitors, GiveTheSameNormWhateverThePlanCuts) {
  std::array<std::vector<double>, 4> norms;
  for (int zero_level = 0; zero_level <= 3; ++zero_level) {
    std::array<torch::nn::Sequential, 2> networks{testing::small_network(),
                                                  testing::small_network()};
    testing::run_ranks(2, [&](const comm::Group& group) {
      const auto& network = networks.at(static_cast<std::size_t>(group.rank()));
      auto optimizer = testing::momentum(*network);
      Model model(network, CrossEntropy(), optimizer,
                  {.group = group, .plan = {.zero_level = zero_level}});
      GradientNorms monitor({.every_steps = 1});
      LambdaCallback read({.step_end = [&](const StepEndContext& step) {
        if (group.rank() == 0) {
          norms.at(static_cast<std::size_t>(zero_level))
              .push_back(step.run.scalars->at("gradient_norm/all"));
        }
      }});
      data::DataLoader data = data_;
      data.shard({.index = group.rank(), .count = 2}).batch(4);
      model.train(1, data, {monitor, read});
      if (zero_level == 0) return;
      GradientNorms of_parameters({.of_parameters = true});
      EXPECT_THROW(model.train(1, data, {of_parameters}), TrainingError);
    });
    EXPECT_EQ(norms.at(static_cast<std::size_t>(zero_level)), norms[0]);
  }
  EXPECT_EQ(norms[0].size(), 4U);
}

// Clocks that are far apart, of ranks on one machine, whose true offset is known.
TEST(ClockOffsets, AreFoundWithinTheirBounds) {
  testing::run_ranks(3, [](const comm::Group& group) {
    const std::int64_t ahead = 1'000'000'000'000LL * group.rank();
    const auto clock = [ahead] {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() + ahead;
    };
    const auto offsets = detail::measure_clock_offsets(group, clock);
    ASSERT_EQ(offsets.size(), 3U);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const std::int64_t expected = -1'000'000'000'000LL * static_cast<std::int64_t>(rank);
      EXPECT_GE(offsets[rank].error, 0);
      EXPECT_LE(std::abs(offsets[rank].offset - expected), offsets[rank].error + 1);
    }
  });
  EXPECT_EQ(detail::measure_clock_offsets({}, [] { return 5; })[0].offset, 0);
}

}  // namespace
}  // namespace trireme
