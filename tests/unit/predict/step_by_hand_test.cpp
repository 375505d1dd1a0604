// SPDX-License-Identifier: Apache-2.0
// The step that docs/design/prediction.md computes by hand: each number of the page is computed
// here as there, and compared with the prediction.
#include <models/gpt.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/parallel/deferred.h>
#include <trireme/predict/simulated_step.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <cstdlib>
#include <string>

namespace trireme::predict {
namespace {

std::string in_sources(const std::string& file) {
  const char* const folder = std::getenv("TRIREME_SOURCE");
  return std::string(folder == nullptr ? "." : folder) + "/" + file;
}

SimulatedStep step_by_hand() {
  models::GPT model = deferred([] {
    return models::GPT(models::GPTOptions{
        .vocabulary = 1024, .sequence = 128, .hidden = 256, .layers = 1, .heads = 4});
  });
  const auto tokens =
      torch::empty({8, 128}, torch::TensorOptions().dtype(torch::kInt64).device(torch::kMeta));
  Plan plan = {.mesh = {{"data", 2}}};
  plan.bucket_bytes = plan.first_bucket_bytes = 4 << 20;
  return simulate_step(
      model, plan, cluster::read_cluster(in_sources("docs/design/desk.toml")), [&] {
        return torch::cross_entropy_loss(model->forward(tokens).flatten(0, 1), tokens.flatten());
      });
}

constexpr double kN = 1 << 20;        // bytes of a tensor [1024 tokens, 256]
constexpr double kW = 1 << 10;        // bytes of 256 numbers
constexpr double kIndices = 8 << 10;  // of 1024 tokens; as many bytes have the statistics of a norm
constexpr double kPosition = kN / 8;

// Microseconds, as on the page.
double moving(double bytes) { return 2 * bytes / kN + 5; }
double computing(double units) { return 100 * units + 5; }  // units of 2^29 FLOPs
double sending(double bytes) { return 100 * bytes / kN + 10; }

double forward() {
  const double norm = moving(2 * kN + 2 * kW + kIndices);
  const double embeddings =
      moving(2 * kN + kIndices) + moving(2 * kPosition + kIndices / 8) + moving(2 * kN + kPosition);
  const double attention = norm + computing(0.75) + 25 + 5 + computing(0.25) + moving(3 * kN);
  const double mlp = norm + computing(1) + moving(8 * kN) + computing(1) + moving(3 * kN);
  return embeddings + attention + mlp + norm + computing(1) + moving(8 * kN) +
         moving(4 * kN + kIndices + 8);
}

constexpr double kNormBackward = 3 * kN + 4 * kW + kIndices;

// A gradient is read and written when it is copied to its bucket.
double copying(double copies, double bytes) { return 5 * copies + moving(2 * bytes) - 5; }

// Until the first bucket is there.
double backward_to_bucket() {
  const double head = moving(8) + moving(8 * kN + kIndices + 8) + moving(12 * kN) + computing(2) +
                      moving(kNormBackward);
  const double mlp = moving(kN + kW) + computing(2) + moving(12 * kN) + moving(4 * kN + 4 * kW) +
                     computing(2) + moving(kNormBackward) + moving(3 * kN);
  const double attention =
      moving(kN + kW) + computing(0.5) + 62.5 + 5 + moving(6 * kN) + moving(3 * kN + 3 * kW);
  return head + mlp + attention + copying(10, 3.25 * kN + 13 * kW);
}

double backward_to_end() {
  return copying(4, 1.875 * kN + 2 * kW) + computing(1.5) + moving(kNormBackward) + moving(3 * kN) +
         moving(kN + kPosition) + moving(2 * kPosition + kIndices / 8) + moving(2 * kN + kIndices);
}

constexpr double kParameters = 1'347'328;

TEST(StepByHand, TakesTheTimeOfThePage) {
  const SimulatedStep step = step_by_hand();
  const double compute = forward() + backward_to_bucket() + backward_to_end();
  const double exchange = sending(3.25 * kN + 13 * kW) + sending(1.875 * kN + 2 * kW);
  const double optimizer = 2 * 28 * kParameters / kN + 17 * 12 * 5;
  EXPECT_NEAR(compute, 1781.77, 0.01);
  EXPECT_NEAR(optimizer, 1091.95, 0.01);
  const Prediction& prediction = step.prediction;
  EXPECT_NEAR(prediction.parts.compute * 1e6, compute, 0.001);
  EXPECT_NEAR(prediction.parts.data_exchange * 1e6, exchange - backward_to_end(), 0.001);
  EXPECT_NEAR(prediction.parts.optimizer * 1e6, optimizer, 0.001);
  EXPECT_NEAR(prediction.step_seconds * 1e6,
              forward() + backward_to_bucket() + exchange + optimizer, 0.001);
  EXPECT_NEAR(prediction.step_seconds * 1e6, 3181.39, 0.01);
}

TEST(StepByHand, NeedsTheMemoryOfThePage) {
  const RankMemoryPrediction memory = step_by_hand().prediction.memory[0];
  EXPECT_DOUBLE_EQ(memory.parameters, 4 * kParameters);
  EXPECT_DOUBLE_EQ(memory.gradients, 4 * kParameters);
  EXPECT_DOUBLE_EQ(memory.optimizer, 8 * kParameters);
  EXPECT_EQ(memory.buckets, 0);
  // Kept: 22 N, the statistics of three norms and of attention, and the loss with its weight.
  EXPECT_DOUBLE_EQ(memory.activations, 22 * kN + 3 * kIndices + 16 * kW + 8);
  // Two gradients of the logits, while the loss is not kept any more.
  EXPECT_DOUBLE_EQ(memory.temporary, 8 * kN - 8);
  EXPECT_DOUBLE_EQ(memory.inputs, kIndices + kIndices / 8);
  EXPECT_EQ(memory.peak_module, "");  // the gradient of the loss belongs to no inner module
}

TEST(StepByHand, IsPrintedOnThePage) {
  EXPECT_THAT(test::read_file(in_sources("docs/design/prediction.md")),
              testing::HasSubstr(to_string(step_by_hand().prediction)));
}

}  // namespace
}  // namespace trireme::predict
