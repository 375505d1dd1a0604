// SPDX-License-Identifier: Apache-2.0
// Predictions against closed formulas: FLOPs, memory of ZeRO, bubbles of pipelines.
#include <trireme/predict/predict.h>

#include <models/gpt.h>
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/parallel/deferred.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/one_host.h>
#include <torch/torch.h>

#include <string>

namespace trireme::predict {
namespace {

constexpr double kLayers = 8;
constexpr double kHidden = 512;
constexpr double kSequence = 256;
constexpr double kVocabulary = 1024;

// A GPT with a record of one row.
struct Case {
  models::GPT model = deferred([] {
    return models::GPT(models::GPTOptions{
        .vocabulary = 1024, .sequence = 256, .hidden = 512, .layers = 8, .heads = 8});
  });
  torch::Tensor tokens =
      torch::empty({1, 256}, torch::TensorOptions().dtype(torch::kInt64).device(torch::kMeta));

  Prediction predict(const Plan& plan, const TrainingOptions& options = {}) {
    return predict::predict(
        model, plan, cluster::read_cluster("a100-80"),
        [&] {
          return torch::cross_entropy_loss(model->forward(tokens).flatten(0, 1), tokens.flatten());
        },
        options);
  }
};

double sum_of_parts(const Prediction& prediction) {
  const StepParts& parts = prediction.parts;
  return parts.compute + parts.recomputation + parts.layouts + parts.data_exchange +
         parts.pipeline + parts.optimizer;
}

TEST(Predict, CountsTheFlopsOfMegatronsFormula) {
  const Prediction prediction = Case().predict({.mesh = {{"data", 1}}});
  // Narayanan et al. (2021), section 5.1, without recomputation. A causal mask halves attention,
  // and fused attention repeats one product of five in backward.
  const double products =
      72 * kSequence * kLayers * kHidden * kHidden * (1 + kVocabulary / (12 * kLayers * kHidden));
  const double attention = 3.5 * 2 * kSequence * kSequence * kHidden * kLayers;
  EXPECT_NEAR(prediction.flops_per_rank, products + attention, 0.001 * prediction.flops_per_rank);
}

TEST(Predict, PartsAddUpToTheStep) {
  Case gpt;
  for (const Plan& plan : {Plan{.mesh = {{"data", 16}}},
                           Plan{.mesh = {{"data", 16}}, .micro_batches = 9, .zero_level = 3},
                           Plan{.mesh = {{"pipe", 4}, {"data", 4}}, .micro_batches = 8},
                           Plan{.mesh = {{"data", 4}}, .recompute = {"blocks.*"}}}) {
    const Prediction prediction = gpt.predict(plan);
    EXPECT_GT(prediction.step_seconds, 0);
    EXPECT_NEAR(sum_of_parts(prediction), prediction.step_seconds, 1e-9 * prediction.step_seconds);
  }
}

TEST(Predict, ZeroLeavesItsShareOfSixteenBytes) {
  Case gpt;
  const auto memory = [&](int level) {
    return gpt.predict({.mesh = {{"data", 8}}, .zero_level = level}).memory.front();
  };
  const double parameters = memory(0).parameters;  // fp32: 4 bytes each
  const RankMemoryPrediction whole = memory(0);
  EXPECT_DOUBLE_EQ(whole.gradients, parameters);
  EXPECT_DOUBLE_EQ(whole.optimizer, 2 * parameters);
  EXPECT_DOUBLE_EQ(memory(1).optimizer, 2 * parameters / 8);
  EXPECT_DOUBLE_EQ(memory(1).gradients, parameters);
  EXPECT_DOUBLE_EQ(memory(2).gradients, parameters / 8);
  EXPECT_DOUBLE_EQ(memory(3).parameters, parameters / 8);
}

TEST(Predict, RecomputationRepeatsForwardAndKeepsInputs) {
  Case gpt;
  const Prediction plain = gpt.predict({.mesh = {{"data", 2}}});
  const Prediction repeated = gpt.predict({.mesh = {{"data", 2}}, .recompute = {"blocks.*"}});
  EXPECT_EQ(plain.parts.recomputation, 0);
  EXPECT_NEAR(repeated.repeated_flops, plain.flops_per_rank / 3, 0.1 * repeated.repeated_flops);
  EXPECT_DOUBLE_EQ(repeated.flops_per_rank, plain.flops_per_rank);
  EXPECT_LT(repeated.memory[0].activations, 0.4 * plain.memory[0].activations);
}

TEST(Predict, GradientsAreReservedOnlyIfTheyAreExchangedOrAdded) {
  Case gpt;
  const auto memory = [&](const Plan& plan) { return gpt.predict(plan).memory[0]; };
  const RankMemoryPrediction alone = memory({.mesh = {{"data", 1}}});
  const RankMemoryPrediction exchanged = memory({.mesh = {{"data", 2}}});
  const RankMemoryPrediction added = memory({.mesh = {{"data", 1}}, .micro_batches = 2});
  // The last gradient is made when activations are gone, so all of them are there together, too.
  EXPECT_LE(alone.gradients, exchanged.gradients);
  EXPECT_GE(alone.total(), alone.parameters + alone.optimizer + exchanged.gradients);
  EXPECT_LT(alone.total(), exchanged.total());
  EXPECT_DOUBLE_EQ(added.gradients, exchanged.gradients);
}

TEST(Predict, AGPipePipelineHasTheBubbleOfItsFormula) {
  Plan plan = {.mesh = {{"pipe", 4}}, .schedule = "gpipe", .micro_batches = 8};
  for (int stage = 1; stage < 4; ++stage) {
    plan.stages.emplace_back("blocks." + std::to_string(2 * stage), stage);
  }
  const Prediction prediction = Case().predict(plan);
  // The last stage is the slowest, since it has the head: 8 of its micro-batches, and once the
  // forward and backward of each other stage. Messages are small.
  double expected = 7 * prediction.stage_seconds.back();
  for (const double stage : prediction.stage_seconds) expected += stage;
  EXPECT_NEAR(prediction.step_seconds - prediction.parts.optimizer, expected, 0.05 * expected);
}

TEST(Predict, EarlyStagesOf1F1BKeepMoreMicroBatches) {
  Plan plan = {.mesh = {{"pipe", 4}}, .schedule = "1f1b", .micro_batches = 8};
  for (int stage = 1; stage < 4; ++stage) {
    plan.stages.emplace_back("blocks." + std::to_string(2 * stage), stage);
  }
  const Prediction prediction = Case().predict(plan);
  ASSERT_EQ(prediction.memory.size(), 4);
  // Stages 1 and 2 have the same blocks; three micro-batches are in flight in one, two in the
  // other.
  EXPECT_NEAR(prediction.memory[1].activations / prediction.memory[2].activations, 1.5, 0.05);
}

TEST(Predict, MoreRanksAlongTensorHoldLess) {
  Case gpt;
  Plan plan = {
      .mesh = {{"tensor", 4}},
      .layouts = join({column_parallel("*.attention.input"), row_parallel("*.attention.output"),
                       column_parallel("*.mlp_input"), row_parallel("*.mlp_output")})};
  const Prediction cut = gpt.predict(plan);
  const Prediction whole = gpt.predict({.mesh = {{"data", 1}}});
  EXPECT_GT(cut.parts.layouts, 0);
  EXPECT_LT(cut.memory[0].parameters, 0.5 * whole.memory[0].parameters);
  EXPECT_LT(cut.flops_per_rank, 0.4 * whole.flops_per_rank);
}

// The record of the module is made for the cluster of the prediction.
TEST(Predict, ChoosesLayoutsByTheLinksOfTheCluster) {
  using torch::nn::Linear;
  using torch::nn::LinearOptions;
  torch::nn::Sequential model(Linear(LinearOptions(256, 256).bias(false)), torch::nn::ReLU(),
                              Linear(LinearOptions(256, 256).bias(false)));
  const auto forward = [&] { return model->forward(torch::ones({80, 256})).square().mean(); };
  const Plan plan = {.mesh = {{"tensor", 4}}, .layouts = {{"*.weight", {{"tensor", Shard{0}}}}}};
  const cluster::Cluster slow = test::one_host(0.05);
  const auto layouts_of = [&](const ModuleRecord& record) {
    return predict::predict(record, plan, slow).parts.layouts;
  };
  const double predicted = predict::predict(model, plan, slow, forward).parts.layouts;
  EXPECT_DOUBLE_EQ(predicted, layouts_of(record_module(model, plan, forward, &slow)));
  EXPECT_NE(predicted, layouts_of(record_module(model, plan, forward)));
}

TEST(Predict, RefusesWhatItDoesNotKnow) {
  Case gpt;
  EXPECT_THROW((void)gpt.predict({}), UsageError);
  EXPECT_THROW((void)gpt.predict({.mesh = {{"data", 2}}, .activation_bytes = 1}), UsageError);
  EXPECT_THROW((void)gpt.predict({.mesh = {{"data", 2}}, .recompute = {"block.*"}}), UsageError);
  try {
    (void)gpt.predict({.mesh = {{"pipe", 2}}, .stages = {{"blocks.9", 1}}, .micro_batches = 2});
    FAIL() << "expected an error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("blocks.9"));
  }
}

TEST(Predict, PrintsATableAndJson) {
  const Prediction prediction = Case().predict({.mesh = {{"data", 8}}});
  EXPECT_THAT(to_string(prediction), testing::HasSubstr("prediction for 8 ranks"));
  EXPECT_THAT(to_json(prediction), testing::HasSubstr("\"step_seconds\""));
}

}  // namespace
}  // namespace trireme::predict
