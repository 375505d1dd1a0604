// SPDX-License-Identifier: Apache-2.0
// What a model in stages cannot do, and failures of single ranks: one clear error on all of them.
#include <trireme/base/error.h>
#include <trireme/train/monitors.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/train/in_stages.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace trireme {
namespace {

using test::in_stages;
using test::kPerceptronStages;
using test::perceptron;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_catching;

const std::vector<std::int64_t> kRow = {6};

struct Parts {
  std::shared_ptr<test::PerceptronImpl> network = perceptron();
  torch::optim::SGD optimizer{network->parameters(), 0.1};
};

data::DataLoader part_for(const Plan& plan, const comm::Group& group,
                          data::LastBatch last = data::LastBatch::kKeep) {
  const DataPart part = data_part(plan, group);
  auto data = test::rows_of(22, kRow);
  data.shard({.index = part.index, .count = part.count}).batch(4, last);
  return data;
}

template <typename Error>
void expect_on_all(const std::vector<std::exception_ptr>& thrown,
                   const ::testing::Matcher<std::string>& message) {
  for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
    EXPECT_THAT(message_of<Error>(thrown[rank]), message) << "rank " << rank;
  }
}

TEST(ModelInStagesRefuses, RanksOfOnePipelineThatReadDifferentRows) {
  expect_on_all<TrainingError>(
      run_ranks_catching(2,
                         [](const comm::Group& group) {
                           Parts parts;
                           Model model(
                               parts.network, CrossEntropy(), parts.optimizer,
                               {.group = group, .plan = in_stages(2, 1, kPerceptronStages)});
                           model.train(1, part_for({}, group));  // each its own
                         }),
      AllOf(HasSubstr("have read different batches"), HasSubstr("data_part")));
}

// The other ranks waited until the deadline.
TEST(ModelInStagesRefuses, OptionsThatOneRankAloneHas) {
  for (const bool is_in_stages : {true, false}) {
    const Plan plan = is_in_stages ? in_stages(2, 1, kPerceptronStages) : Plan();
    expect_on_all<UsageError>(run_ranks_catching(2,
                                                 [&](const comm::Group& group) {
                                                   Parts parts;
                                                   ModelOptions options = {.group = group,
                                                                           .plan = plan};
                                                   if (group.rank() == 1) options.clip_norm = -1;
                                                   const Model model(parts.network, CrossEntropy(),
                                                                     parts.optimizer, options);
                                                 }),
                              HasSubstr("clip gradients to a norm of -1"));
  }
}

TEST(ModelInStagesRefuses, BatchesThatAreFilledUp) {
  const Plan plan = in_stages(2, 1, kPerceptronStages);
  const auto thrown = run_ranks_catching(2, [&](const comm::Group& group) {
    Parts parts;
    Model model(parts.network, CrossEntropy(), parts.optimizer, {.group = group, .plan = plan});
    model.train(1, part_for(plan, group, data::LastBatch::kPad));
  });
  expect_on_all<TrainingError>(
      thrown, AllOf(HasSubstr("2 that fill it up"), HasSubstr("LastBatch::kKeep")));
}

// What a record cannot have. Callbacks hear of nothing: the training has not begun.
TEST(ModelInStagesRefuses, ALossThatLooksAtValues) {
  struct Listener : Callback {
    void on_run_begin(const RunContext& /*run*/) override { heard.emplace_back("run begin"); }
    void on_failure(const FailureContext& /*failure*/) noexcept override {
      heard.emplace_back("failure");
    }
    std::vector<std::string> heard;
  };
  const Plan plan = in_stages(2, 1, kPerceptronStages);
  const auto loss = [](const torch::Tensor& output, const torch::Tensor& target) {
    const auto value = torch::cross_entropy_loss(output, target);
    return value.item<float>() > 1 ? value : value * 2;
  };
  const auto thrown = run_ranks_catching(2, [&](const comm::Group& group) {
    Parts parts;
    Model model(parts.network, loss, parts.optimizer, {.group = group, .plan = plan});
    Listener listener;
    EXPECT_THROW(model.train(1, part_for(plan, group), {listener}), UsageError);
    EXPECT_THAT(listener.heard, IsEmpty());
    EXPECT_EQ(model.progress().global_step, 0);
    model.train(1, part_for(plan, group));
  });
  expect_on_all<UsageError>(thrown, HasSubstr("item"));
}

TEST(ModelInStagesRefuses, NormsOfEachParameter) {
  const Plan plan = in_stages(2, 1, kPerceptronStages);
  const auto thrown = run_ranks_catching(2, [&](const comm::Group& group) {
    Parts parts;
    Model model(parts.network, CrossEntropy(), parts.optimizer, {.group = group, .plan = plan});
    GradientNorms norms({.of_parameters = true});
    model.train(1, part_for(plan, group), {norms});
  });
  expect_on_all<TrainingError>(thrown, HasSubstr("the plan has stages"));
}

TEST(ModelInStagesRefuses, PlansThatTrainingStepsDoNotHave) {
  Plan plan = in_stages(2, 1, kPerceptronStages);
  plan.sync_batch_norm = true;
  const auto thrown = run_ranks_catching(2, [&](const comm::Group& group) {
    Parts parts;
    Model model(parts.network, CrossEntropy(), parts.optimizer, {.group = group, .plan = plan});
  });
  expect_on_all<UsageError>(thrown, HasSubstr("a training step cannot have sync_batch_norm"));
}

TEST(ModelInStagesRefuses, ALossThatIsNoNumberBeforeTheOptimizerHasUsedIt) {
  const Plan plan = in_stages(2, 2, kPerceptronStages);
  const auto thrown = run_ranks_catching(4, [&](const comm::Group& group) {
    Parts parts;
    const auto input = test::numbers({16, 6}, 1);
    if (data_part(plan, group).index == 1) input[0][0] = std::numeric_limits<float>::infinity();
    data::DataLoader data(data::tensors({{"input", input}, {"label", torch::arange(16) % 5}}));
    data.batch(4);
    Model model(parts.network, CrossEntropy(), parts.optimizer,
                {.group = group, .plan = plan, .shards_data = false});
    try {
      model.train(1, data);
    } catch (const TrainingError&) {
      for (std::size_t i = 0; i < parts.network->parameters().size(); ++i) {
        if (test::is_trained_elsewhere(parts.network->parameters()[i])) continue;
        EXPECT_TRUE(torch::equal(parts.network->parameters()[i], perceptron()->parameters()[i]));
      }
      throw;
    }
  });
  expect_on_all<TrainingError>(
      thrown, AllOf(HasSubstr("nan on rank 2"), HasSubstr("no parameter was changed")));
}

// The group lives on.
TEST(ModelInStagesRefuses, StopsOnAllRanksWhereDataFailsOnOne) {
  const Plan plan = in_stages(2, 2, kPerceptronStages);
  run_ranks(4, [&](const comm::Group& group) {
    Parts parts;
    auto failing = part_for(plan, group);
    int batches = 0;
    failing.map_batch([&](data::Batch batch) {
      if (group.rank() == 2 && ++batches > 3) throw std::runtime_error("no such file today");
      return batch;
    });
    Model model(parts.network, CrossEntropy(), parts.optimizer, {.group = group, .plan = plan});
    std::string message;
    try {
      model.train(1, failing);
    } catch (const TrainingError& error) {
      message = error.what();
    }
    EXPECT_THAT(message, AllOf(HasSubstr("rank 2, reading data in epoch 1, step"),
                               HasSubstr("no such file today")));
    message.clear();
    try {
      model.evaluate(failing);
    } catch (const TrainingError& error) {
      message = error.what();
    }
    EXPECT_THAT(message, AllOf(HasSubstr("rank 2, reading data in an evaluation"),
                               HasSubstr("no such file today")));
    // Predictions are made by the ranks of one pipeline alone.
    message.clear();
    try {
      model.predict(failing);
    } catch (const TrainingError& error) {
      message = error.what();
    }
    EXPECT_THAT(message, data_part(plan, group).index == 0
                             ? ::testing::Matcher<std::string>(::testing::IsEmpty())
                             : AllOf(HasSubstr("rank 2, reading data in a prediction"),
                                     HasSubstr("no such file today")));
    EXPECT_EQ(model.train(1, part_for(plan, group)).epochs.size(), 1);
  });
}

TEST(ModelInStagesRefuses, EndsOnAllRanksWhereAStageFails) {
  const Plan plan = in_stages(2, 2, kPerceptronStages);
  const auto thrown = run_ranks_catching(4, [&](const comm::Group& group) {
    Parts parts;
    const auto label = torch::arange(16) % 5;
    if (data_part(plan, group).index == 1) label[9] = 77;
    data::DataLoader data(data::tensors({{"input", test::numbers({16, 6}, 1)}, {"label", label}}));
    data.batch(4);
    Model model(parts.network, CrossEntropy(), parts.optimizer, {.group = group, .plan = plan});
    model.train(1, data);
  });
  for (const std::exception_ptr& exception : thrown) {
    ASSERT_TRUE(exception);
    try {
      std::rethrow_exception(exception);
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("out of bounds"));
    }
  }
}

}  // namespace
}  // namespace trireme
