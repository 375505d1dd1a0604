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

#include <cstdint>
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

  cluster::Cluster cluster = cluster::read_cluster("a100-80");

  Prediction predict(const Plan& plan, const TrainingOptions& options = {}) {
    return predict::predict(
        model, plan, cluster,
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
  // Of 24 s h^2 FLOPs of the products of a block, those of its last linear layer, 8 s h^2, make
  // nothing that backward reads. Attention has 2 s^2 h with a causal mask.
  const double products = 16 * kSequence * kLayers * kHidden * kHidden;
  const double attention = 2 * kSequence * kSequence * kHidden * kLayers;
  EXPECT_DOUBLE_EQ(repeated.repeated_flops, products + attention);
  const Prediction whole = gpt.predict({.mesh = {{"data", 2}}, .recompute = {"blocks.*"}},
                                       {.repeats_whole_regions = true});
  EXPECT_NEAR(whole.repeated_flops, plain.flops_per_rank / 3, 0.1 * whole.repeated_flops);
  EXPECT_GT(whole.step_seconds, repeated.step_seconds);
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

// What a micro-batch keeps on the first rank along `pipe`.
double kept_by_micro_batch(const Prediction& prediction) {
  double kept = 0;
  for (const auto& [module, bytes] : prediction.memory.front().activations_by_module) kept += bytes;
  return kept;
}

// A rank keeps what it is allowed to, and repeats the more the less that is.
TEST(Predict, ChoosesWhatIsRecomputedWithinALimit) {
  Case gpt;
  for (const int pipe : {1, 2}) {
    // The first rank of 1F1B keeps as many micro-batches as there are ranks.
    Plan plan = {.mesh = {{"pipe", pipe}}, .micro_batches = 4};
    const double in_flight = pipe;
    const Prediction all = gpt.predict(plan);
    EXPECT_EQ(all.repeated_flops, 0);
    const double kept = kept_by_micro_batch(all);
    double repeated = 0;
    for (const double share : {1.5, 0.7, 0.4}) {
      SCOPED_TRACE(share);
      plan.activation_bytes = static_cast<std::int64_t>(share * in_flight * kept);
      const Prediction limited = gpt.predict(plan);
      EXPECT_LE(kept_by_micro_batch(limited), share * kept);
      EXPECT_EQ(limited.parts.recomputation > 0, share < 1);
      EXPECT_GE(limited.repeated_flops, repeated);
      EXPECT_GE(limited.step_seconds, all.step_seconds);
      repeated = limited.repeated_flops;
    }
    EXPECT_LT(repeated, all.flops_per_rank / 3);
    plan.activation_bytes = 1000;
    EXPECT_THAT([&] { (void)gpt.predict(plan); },
                testing::ThrowsMessage<UsageError>(testing::HasSubstr("needs at least")));
  }
}

// A rank may have several stages without an axis `pipe` of several ranks.
TEST(Predict, TakesSchedulesOfSeveralStagesOnOneRank) {
  Case gpt;
  Plan plan = {.mesh = {{"pipe", 1}}, .schedule = "zb-v", .micro_batches = 4};
  const Prediction all = gpt.predict(plan);
  EXPECT_EQ(all.stage_seconds.size(), 2U);
  plan.activation_bytes = 1 << 30;
  EXPECT_EQ(gpt.predict(plan).step_seconds, all.step_seconds);
  plan.schedule = "interleaved";
  EXPECT_EQ(gpt.predict(plan).stage_seconds.size(), 2U);
}

TEST(Predict, OffloadsActivationsAsFastAsTheHostTakesThem) {
  Case gpt;
  Plan plan = {.mesh = {{"pipe", 2}}, .schedule = "gpipe", .micro_batches = 8};
  const Prediction kept = gpt.predict(plan);
  plan.offload_activations = true;
  gpt.cluster.devices.front().host_gb_per_s = 1e4;
  const Prediction fast = gpt.predict(plan);
  EXPECT_NEAR(fast.step_seconds, kept.step_seconds, 1e-2 * kept.step_seconds);
  EXPECT_LT(fast.memory[0].activations, kept.memory[0].activations / 2);
  // What is not on the device is on the host: of all micro-batches but those in use.
  EXPECT_GT(fast.memory[0].host, kept.memory[0].activations / 2);
  EXPECT_LE(fast.memory[0].host, kept.memory[0].activations);

  // On a slow link, the copies of a rank in one direction take the step: 6 of 8 micro-batches are
  // copied there and back.
  gpt.cluster.devices.front().host_gb_per_s = 0.1;
  const Prediction slow = gpt.predict(plan);
  const double one_way = slow.memory[0].host / 0.1e9;
  EXPECT_GT(slow.step_seconds, one_way);
  EXPECT_LT(slow.step_seconds, 3 * one_way + kept.step_seconds);
  EXPECT_NEAR(sum_of_parts(slow), slow.step_seconds, 1e-9 * slow.step_seconds);

  gpt.cluster.devices.front().host_gb_per_s = 0;
  EXPECT_THAT(
      [&] { (void)gpt.predict(plan); },
      testing::ThrowsMessage<UsageError>(testing::HasSubstr("host_gb_per_s of device A100-80")));
}

TEST(Predict, StepsAnOffloadedOptimizerAtTheRateOfTheHost) {
  Case gpt;
  Plan plan = {.mesh = {{"data", 8}}, .zero_level = 2};
  const Prediction kept = gpt.predict(plan);
  plan.offload_optimizer = true;
  const Prediction offloaded = gpt.predict(plan);
  EXPECT_EQ(offloaded.memory[0].host, kept.memory[0].optimizer);
  EXPECT_EQ(offloaded.memory[0].optimizer, 0);
  // A gradient and a parameter of 4 bytes are copied; Adam's two numbers are read and written, the
  // gradient is read, the parameter is read and written.
  const double elements = kept.memory[0].optimizer / 8;
  const cluster::DeviceKind& device = gpt.cluster.devices.front();
  const double host = gpt.cluster.hosts.front().memory_gb_per_s / 8;
  const double copies = elements * 8 / (device.host_gb_per_s * 1e9);
  const double step = elements * 28 / (host * device.efficiency.memory * 1e9);
  EXPECT_NEAR(offloaded.parts.optimizer, copies + step, 1e-9);

  gpt.cluster.hosts.front().memory_gb_per_s = 0;
  EXPECT_THAT(
      [&] { (void)gpt.predict(plan); },
      testing::ThrowsMessage<UsageError>(testing::HasSubstr("memory_gb_per_s of the hosts")));
}

TEST(Predict, RefusesWhatItDoesNotKnow) {
  Case gpt;
  EXPECT_THROW((void)gpt.predict({}), UsageError);
  EXPECT_THROW((void)gpt.predict({.mesh = {{"data", 2}}, .recompute = {"block.*"}}), UsageError);
  // Which a TrainingStep refuses.
  EXPECT_THAT(
      [&] {
        (void)gpt.predict({.mesh = {{"pipe", 2}, {"tensor", 2}},
                           .layouts = column_parallel("blocks.*.mlp_input"),
                           .activation_bytes = 1 << 20,
                           .micro_batches = 2});
      },
      testing::ThrowsMessage<UsageError>(testing::HasSubstr("cannot have activation_bytes")));
  EXPECT_THAT(
      [&] {
        (void)gpt.predict({.mesh = {{"pipe", 2}},
                           .stages = {{"blocks.2", 0}, {"token_embedding", 1}},
                           .micro_batches = 2});
      },
      testing::ThrowsMessage<UsageError>(testing::HasSubstr("in the order in which forward")));
  try {
    (void)gpt.predict({.mesh = {{"pipe", 2}}, .stages = {{"blocks.9", 1}}, .micro_batches = 2});
    FAIL() << "expected an error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("blocks.9"));
  }
}

// A weight of 4 cache lines and a bias of 1: of 4 ranks with 2 lines each, two have none. The
// engine refuses that, too (ranks/pipeline/sharded_test.cpp).
TEST(Predict, RefusesToShardWhatIsTooSmallForTheRanks) {
  const auto step_of = [](std::int64_t data, int zero_level) {
    torch::nn::Linear tiny(4, 16);
    return predict::predict(*tiny, {.mesh = {{"data", data}}, .zero_level = zero_level},
                            cluster::read_cluster("a100-80"),
                            [&] { return tiny->forward(torch::ones({2, 4})).sum(); })
        .step_seconds;
  };
  EXPECT_GT(step_of(4, 0), 0);
  EXPECT_GT(step_of(3, 1), 0);
  EXPECT_THAT([&] { (void)step_of(4, 1); },
              testing::ThrowsMessage<UsageError>(testing::HasSubstr(
                  "shards 320 bytes of parameters of a stage over 4 ranks, which leaves ranks "
                  "without any of them")));
}

TEST(Predict, PrintsATableAndJson) {
  const Prediction prediction = Case().predict({.mesh = {{"data", 8}}});
  EXPECT_THAT(to_string(prediction), testing::HasSubstr("prediction for 8 ranks"));
  EXPECT_THAT(to_json(prediction), testing::HasSubstr("\"step_seconds\""));
}

}  // namespace
}  // namespace trireme::predict
