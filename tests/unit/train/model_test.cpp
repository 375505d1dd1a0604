// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/learning_rate.h>

#include <gmock/gmock.h>

#include <limits>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::momentum;
using testing::points;
using testing::same_parameters;
using testing::small_network;
using ::testing::ThrowsMessage;

struct Doubler : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x * scale; }
  torch::Tensor scale = register_parameter("scale", torch::full({1}, 2.0));
};

TEST(Model, DoesWhatALoopWrittenByHandDoes) {
  auto data = points(40);
  data.shuffle(5).batch(8);

  auto manual = small_network();
  auto manual_optimizer = momentum(*manual);
  manual->train();
  for (int epoch = 0; epoch < 2; ++epoch) {
    const auto batches = data.open(epoch);
    while (const auto batch = batches->next()) {
      manual_optimizer.zero_grad();
      CrossEntropy()(manual->forward((*batch)["features"]), (*batch)["label"]).backward();
      manual_optimizer.step();
    }
  }

  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  model.train(2, data);
  EXPECT_TRUE(same_parameters(*network, *manual));
}

TEST(Model, TrainsAFunctionOfTheBatch) {
  auto data = points(40);
  data.batch(8);
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  model.train(1, data);

  auto other = small_network();
  auto other_optimizer = momentum(*other);
  Model of_function(
      [&](const data::Batch& batch) {
        return CrossEntropy()(other->forward(batch["features"]), batch["label"]);
      },
      other.ptr(), other_optimizer);
  of_function.train(1, data);
  EXPECT_TRUE(same_parameters(*network, *other));
  EXPECT_DOUBLE_EQ(of_function.evaluate(data).loss, model.evaluate(data).loss);
  EXPECT_FALSE(of_function.evaluate(data).accuracy.has_value());
  EXPECT_THAT([&] { of_function.predict(torch::zeros({1, 4})); },
              ThrowsMessage<UsageError>(HasSubstr("cannot predict")));
}

TEST(Model, TakesModulesInEveryFormOfLibTorch) {
  const auto input = torch::ones({2, 1});
  auto shared = std::make_shared<Doubler>();
  torch::optim::SGD optimizer(shared->parameters(), 0.1);
  EXPECT_TRUE(Model(shared, MeanSquaredError(), optimizer).predict(input).equal(input * 2));

  const torch::nn::AnyModule any(std::make_shared<Doubler>());
  torch::optim::SGD any_optimizer(any.ptr()->parameters(), 0.1);
  EXPECT_TRUE(Model(any, MeanSquaredError(), any_optimizer).predict(input).equal(input * 2));

  torch::nn::Linear linear(1, 3);
  torch::optim::SGD linear_optimizer(linear->parameters(), 0.1);
  EXPECT_EQ(Model(linear, MeanSquaredError(), linear_optimizer).predict(input).sizes(),
            torch::IntArrayRef({2, 3}));
}

TEST(Model, MicroBatchesMakeOneStepOfTheMeanGradientAndTheRestIsLeftOut) {
  const auto x = torch::tensor({1.0F, 2.0F, 3.0F, 4.0F, 100.0F}).unsqueeze(1);
  data::DataLoader data(data::tensors({{"x", x}, {"y", torch::zeros({5, 1})}}));
  data.batch(1);
  auto module = std::make_shared<Doubler>();
  torch::optim::SGD optimizer(module->parameters(), 0.01);
  Model model(module, MeanSquaredError(), optimizer, {.plan = {.micro_batches = 2}});
  std::vector<float> losses;
  LambdaCallback record({.step_end = [&](const StepEndContext& step) {
    losses.push_back(step.loss);
    EXPECT_EQ(step.samples, 2);
    EXPECT_EQ(step.run.steps_in_epoch, 2);
  }});
  model.train(1, data, {record});
  // d/ds mean((s x)^2) = 2 s x^2: first (2 * 2 * 1 + 2 * 2 * 4) / 2 = 10, s becomes 1.9.
  ASSERT_EQ(losses.size(), 2U);
  EXPECT_FLOAT_EQ(losses[0], (4.0F + 16.0F) / 2);
  EXPECT_FLOAT_EQ(losses[1], 1.9F * 1.9F * (9.0F + 16.0F) / 2);
}

// The mean of micro-batches of different length would not be the mean of the samples.
TEST(Model, ALossIsTheMeanOfAllRowsThatCountInMicroBatchesOfDifferentLength) {
  const auto x = torch::tensor({1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F, 7.0F}).unsqueeze(1);
  for (const auto last : {data::LastBatch::kKeep, data::LastBatch::kPad}) {
    data::DataLoader data(data::tensors({{"x", x}, {"y", torch::zeros({7, 1})}}));
    data.batch(4, last);
    auto module = std::make_shared<Doubler>();
    torch::optim::SGD optimizer(module->parameters(), 0.0);
    Model model(module, MeanSquaredError(), optimizer, {.plan = {.micro_batches = 2}});
    LambdaCallback check({.step_end = [&](const StepEndContext& step) {
      EXPECT_EQ(step.samples, 7);
      EXPECT_FLOAT_EQ(step.loss, 4.0F * 140 / 7);
    }});
    const History history = model.train(1, data, {check});
    EXPECT_FLOAT_EQ(static_cast<float>(history.epochs.at(0).loss), 4.0F * 140 / 7);
    EXPECT_FLOAT_EQ(static_cast<float>(model.evaluate(data).loss), 4.0F * 140 / 7);
  }
}

TEST(Model, CountsEpochsAndStepsOnFromCallToCallAndTellsCallbacksInOrder) {
  auto data = points(16);
  data.batch(8);
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  std::vector<std::string> calls;
  LambdaCallback record(
      {.run_begin =
           [&](const RunContext& run) {
             calls.push_back("run to " + std::to_string(run.last_epoch));
           },
       .epoch_begin =
           [&](const EpochContext& epoch) {
             calls.push_back("epoch " + std::to_string(epoch.epoch));
           },
       .step_end =
           [&](const StepEndContext& step) {
             calls.push_back(join_message(step.step, " of ", step.run.steps_in_epoch, ", ",
                                          step.global_step, " in all"));
           },
       .epoch_end = [&](const EpochEndContext& epoch) { EXPECT_EQ(epoch.samples, 16); },
       .run_end = [&](const RunContext&) { calls.emplace_back("end"); }});
  model.train(1, data, {record});
  model.train(1, data, {record});
  EXPECT_THAT(calls,
              ElementsAre("run to 1", "epoch 1", "1 of 2, 1 in all", "2 of 2, 2 in all", "end",
                          "run to 2", "epoch 2", "1 of 2, 3 in all", "2 of 2, 4 in all", "end"));
}

TEST(Model, EvaluatesInEvaluationModeAndLeavesModesAndGradientsAlone) {
  auto data = points(10);
  data.batch(4);
  auto network = small_network();
  network->train();
  network[1]->eval();  // a frozen batch norm
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  const Evaluation result = model.evaluate(data);
  EXPECT_TRUE(network->is_training());
  EXPECT_FALSE(network[1]->is_training());
  EXPECT_EQ(result.samples, 10);

  network->eval();
  auto whole = points(10);
  const auto batch = whole.batch(10).open(0)->next();
  const auto logits = network->forward((*batch)["features"]);
  EXPECT_NEAR(result.loss, CrossEntropy()(logits, (*batch)["label"]).item<double>(), 1e-6);
  EXPECT_DOUBLE_EQ(result.accuracy.value(),
                   logits.argmax(1).eq((*batch)["label"]).sum().item<double>() / 10);
  EXPECT_TRUE(torch::allclose(model.predict(data), logits, 1e-5, 1e-6));
  EXPECT_FALSE(model.predict(data).requires_grad());
}

TEST(Model, EvaluatesAfterEveryEpochWhereItIsGivenSomethingToEvaluateWith) {
  auto data = points(16);
  data.batch(8);
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  int epochs = 0;
  LambdaCallback check({.epoch_end = [&](const EpochEndContext& epoch) {
    ++epochs;
    EXPECT_DOUBLE_EQ(epoch.evaluation.value().loss, epoch.run.model.evaluate(data).loss);
  }});
  model.train(2, data, {check}, &data);
  EXPECT_EQ(epochs, 2);
}

TEST(Model, SetsTheLearningRateOfEachStep) {
  auto data = points(16);
  data.batch(8);
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  LearningRate schedule(optimizer, [](const StepContext& step) {
    return 0.5 / static_cast<double>(step.global_step);
  });
  std::vector<double> rates;
  LambdaCallback record({.step_end = [&](const StepEndContext&) {
    rates.push_back(optimizer.param_groups()[0].options().get_lr());
  }});
  model.train(1, data, {schedule, record});
  EXPECT_THAT(rates, ElementsAre(0.5, 0.25));

  rates.clear();
  LearningRate by_number(optimizer, LearningRateSchedule::milestones(0.5, {3}));
  model.train(1, data, {by_number, record});  // steps 3 and 4
  EXPECT_THAT(rates, ElementsAre(0.5, 0.05));
}

TEST(Model, ClipsGradientsByTheirNorm) {
  auto data = points(16);
  data.batch(8);
  auto plain = small_network();
  auto plain_optimizer = momentum(*plain);
  std::vector<double> expected;
  const auto batches = data.open(0);
  while (const auto batch = batches->next()) {
    plain_optimizer.zero_grad();
    CrossEntropy()(plain->forward((*batch)["features"]), (*batch)["label"]).backward();
    expected.push_back(torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.25));
    plain_optimizer.step();
  }

  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer, {.clip_norm = 0.25});
  std::vector<double> norms;
  LambdaCallback record({.step_end = [&](const StepEndContext& step) {
    norms.push_back(step.gradient_norm.value());
  }});
  model.train(1, data, {record});
  ASSERT_EQ(norms.size(), expected.size());
  for (std::size_t i = 0; i < norms.size(); ++i) EXPECT_NEAR(norms[i], expected[i], 1e-5);
  EXPECT_GT(expected[0], 0.25);  // so something was clipped
  const auto parameters = network->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(torch::allclose(parameters[i], plain->parameters()[i], 1e-5, 1e-6));
  }
}

TEST(Model, ComputesInBf16WithMasterWeightsInFp32) {
  auto data = points(64);
  data.batch(16);
  auto network = small_network();
  auto optimizer = momentum(*network, 0.05);
  Model model(network, CrossEntropy(), optimizer, {.autocast = at::kBFloat16});
  const double before = model.evaluate(data).loss;
  model.train(5, data);
  EXPECT_LT(model.evaluate(data).loss, 0.7 * before);
  for (const auto& parameter : network->parameters()) {
    EXPECT_EQ(parameter.scalar_type(), at::kFloat);
  }
  const auto input = torch::ones({2, 4});
  const auto output = model.predict(input);
  EXPECT_EQ(output.scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::equal(output, output.to(at::kBFloat16).to(at::kFloat)));  // was rounded
}

TEST(Model, RefusesOptionsThatCannotBe) {
  auto network = small_network();
  auto optimizer = momentum(*network);
  EXPECT_THROW(Model(network, CrossEntropy(), optimizer, {.clip_norm = 0}), UsageError);
  EXPECT_THROW(Model(network, CrossEntropy(), optimizer, {.autocast = at::kDouble}), UsageError);
  EXPECT_THROW(Model(network, CrossEntropy(), optimizer, {.loss_scale = {.initial = 0}}),
               UsageError);
}

TEST(Model, ChoosesColumnsByNameAndListsThemWhereOneIsMissing) {
  const auto y = torch::zeros({2, 1});
  const data::DataLoader data(data::tensors({{"y", y}, {"x", torch::ones({2, 1})}}));
  auto module = std::make_shared<Doubler>();
  torch::optim::SGD optimizer(module->parameters(), 0.1);
  Model named(module, MeanSquaredError(), optimizer, {.input_column = "x", .target_column = "y"});
  EXPECT_DOUBLE_EQ(named.evaluate(data).loss, 4);
  Model in_order(module, MeanSquaredError(), optimizer);
  EXPECT_DOUBLE_EQ(in_order.evaluate(data).loss, 1);
  Model wrong(module, MeanSquaredError(), optimizer, {.input_column = "z"});
  EXPECT_THAT([&] { wrong.evaluate(data); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("z"), HasSubstr("x"))));
  const data::DataLoader one_column(data::tensors({{"x", y}}));
  EXPECT_THAT([&] { in_order.evaluate(one_column); },
              ThrowsMessage<UsageError>(HasSubstr("the batch has 1")));
}

TEST(Model, StopsAtALossThatIsNotANumberBeforeTheOptimizerUsesIt) {
  auto x = torch::ones({4, 1});
  x[2][0] = std::numeric_limits<float>::quiet_NaN();
  data::DataLoader data(data::tensors({{"x", x}, {"y", torch::zeros({4, 1})}}));
  data.batch(1);
  auto module = std::make_shared<Doubler>();
  torch::optim::SGD optimizer(module->parameters(), 0.01);
  Model model(module, MeanSquaredError(), optimizer);
  EXPECT_THAT(
      [&] { model.train(1, data); },
      ThrowsMessage<TrainingError>(AllOf(HasSubstr("epoch 1, step 3: nan"), HasSubstr("hint:"))));
  EXPECT_TRUE(std::isfinite(module->scale.item<float>()));
}

TEST(Model, RefusesALossThatIsNotOneNumber) {
  const data::DataLoader data(
      data::tensors({{"x", torch::ones({4, 1})}, {"y", torch::zeros({4, 1})}}));
  auto module = std::make_shared<Doubler>();
  torch::optim::SGD optimizer(module->parameters(), 0.01);
  auto wide = data;
  wide.batch(4);
  Model model(
      module, [](const at::Tensor& output, const at::Tensor& target) { return output - target; },
      optimizer);
  EXPECT_THAT([&] { model.train(1, wide); },
              ThrowsMessage<UsageError>(HasSubstr("got a tensor [4, 1]")));
}

TEST(Model, RefusesAnEpochThatIsTooShortForOneStep) {
  auto data = points(16);
  data.batch(8);
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer, {.plan = {.micro_batches = 3}});
  EXPECT_THAT([&] { model.train(1, data); },
              ThrowsMessage<UsageError>(HasSubstr("2 batches, a step takes 3")));
  EXPECT_THAT([&] { model.train(-1, data); }, ThrowsMessage<UsageError>(HasSubstr("-1 epochs")));
}

TEST(Model, PassesOnWhatACallbackThrowsAfterTellingTheOthers) {
  struct Listener : Callback {
    void on_failure(const FailureContext& failure) noexcept override {
      messages.push_back(join_message(failure.global_step, ": ", failure.message));
    }
    std::vector<std::string> messages;
  };
  auto data = points(16);
  data.batch(8);
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  Listener listener;
  LambdaCallback thrower(
      {.step_end = [](const StepEndContext&) { throw std::out_of_range("mine"); }});
  EXPECT_THAT([&] { model.train(1, data, {listener, thrower}); },
              ::testing::Throws<std::out_of_range>());
  EXPECT_THAT(listener.messages, ElementsAre("1: mine"));
}

}  // namespace
}  // namespace trireme
