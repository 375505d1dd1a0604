// SPDX-License-Identifier: Apache-2.0
// Model trains a mixture of experts along an axis `expert`, whole and in stages, to the losses and
// parameters of one process, and CountMonitor logs the same numbers of tokens.
#include <models/mixture.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/data/data_loader.h>
#include <trireme/plan/expert_layouts.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/train/count_monitor.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/model.h>

#include <gtest/gtest.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace trireme {
namespace {

using testing::run_ranks;

constexpr std::int64_t kRows = 16;
constexpr std::int64_t kTokens = 9;
constexpr std::int64_t kVocabulary = 23;

models::MixtureGPT seeded_mixture() {
  static std::mutex seeding;  // ranks are threads and share the generator
  const std::scoped_lock lock(seeding);
  torch::manual_seed(7);
  models::MixtureGPT network(models::MixtureOptions{
      .gpt = {.vocabulary = kVocabulary, .sequence = 16, .hidden = 16, .layers = 2, .heads = 4},
      .experts = 4,
      .counts_tokens = true});
  network->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : network->parameters()) parameter.mul_(8);  // so that experts drop tokens
  for (auto& buffer : network->buffers()) buffer.set_data(buffer.to(torch::kInt64));
  return network;
}

struct Outcome {
  History history;
  double evaluation = 0;
  std::vector<torch::Tensor> parameters;
  std::vector<Scalars> counts;
};

// Trains for three epochs. With a folder, two of them are saved there, or taken from there.
Outcome train(Plan plan, const comm::Group& group, std::int64_t rows_of_rank,
              const std::filesystem::path& saved_in = {}, bool resumes = false) {
  auto network = seeded_mixture();
  if (!plan.mesh.empty()) plan.layouts = expert_layouts(*network);
  plan.broadcast_buffers = false;
  torch::optim::AdamW optimizer(network->parameters(), 1e-3);
  const auto tokens = (torch::arange(kRows * (kTokens + 1)) * 5).remainder(kVocabulary);
  const auto all = tokens.reshape({kRows, kTokens + 1});
  const auto data = data::DataLoader(data::tensors({{"input", all.narrow(1, 0, kTokens)},
                                                    {"target", all.narrow(1, 1, kTokens)}}))
                        .batch(rows_of_rank);
  const auto loss = [&](const data::Batch& batch) {
    const auto [logits, balance_loss] = network->forward(batch["input"]);
    return torch::cross_entropy_loss(logits.transpose(1, 2), batch["target"]) + 0.01 * balance_loss;
  };
  Model model(loss, network.ptr(), optimizer, {.group = group, .plan = plan, .clip_norm = 1.0});
  Outcome outcome;
  CountMonitor monitor({.buffers = {"*.tokens_taken", "*.tokens_dropped"}});
  LambdaCallback read({.step_end = [&](const StepEndContext& step) {
    outcome.counts.push_back(*step.run.scalars);
  }});
  if (resumes) {
    model.resume(*checkpoint::latest(saved_in, "mixture"));
  } else if (!saved_in.empty()) {
    model.train(2, data);
    model.save({.folder = saved_in, .prefix = "mixture"});
    return outcome;
  }
  outcome.history = model.train(3, data, {monitor, read});
  outcome.evaluation = model.evaluate(data).loss;
  for (const auto& parameter : network->parameters()) {
    outcome.parameters.push_back(full(parameter.detach()).clone());
  }
  return outcome;
}

void expect_same(const Outcome& outcome, const Outcome& expected, const std::string& name) {
  ASSERT_EQ(outcome.history.epochs.size(), 3) << name;
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    // Ranks exchange losses in single precision.
    EXPECT_NEAR(outcome.history.epochs[epoch].loss, expected.history.epochs[epoch].loss, 1e-6)
        << name;
  }
  EXPECT_NEAR(outcome.evaluation, expected.evaluation, 1e-8) << name;
  for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
    // AdamW scales up the gradients of the biases of keys, which are zero but for rounding.
    EXPECT_TRUE(torch::allclose(outcome.parameters[i], expected.parameters[i], 1e-8, 1e-8))
        << name << ": " << i;
  }
  EXPECT_EQ(outcome.counts, expected.counts) << name;
}

TEST(ExpertTraining, ModelTrainsAndCountsAsOneProcess) {
  Outcome expected;
  run_ranks(1, [&](const comm::Group& group) { expected = train({}, group, 8); });
  ASSERT_EQ(expected.counts.size(), 6);
  double taken = 0;
  double dropped = 0;
  for (const auto& [name, count] : expected.counts[0]) {
    (name.find("taken") != std::string::npos ? taken : dropped) += count;
  }
  EXPECT_EQ(taken + dropped, 2 * 8 * kTokens);
  EXPECT_GT(dropped, 0);
  run_ranks(2, [&](const comm::Group& group) {
    expect_same(train({.mesh = {{"expert", 2}}}, group, 8), expected, "expert");
  });
  run_ranks(4, [&](const comm::Group& group) {
    expect_same(train({.mesh = {{"data", 2}, {"expert", 2}}, .zero_level = 1}, group, 4), expected,
                "data and expert");
    expect_same(train({.mesh = {{"pipe", 2}, {"expert", 2}}, .recompute = {"blocks.*"}}, group, 8),
                expected, "stages");
  });
}

// A checkpoint holds whole tensors, whichever rank had the experts.
TEST(ExpertTraining, GoesOnWithAnotherMesh) {
  const test::TemporaryFolder folder;
  Outcome expected;
  run_ranks(1, [&](const comm::Group& group) { expected = train({}, group, 8); });
  run_ranks(2, [&](const comm::Group& group) {
    train({.mesh = {{"expert", 2}}}, group, 8, folder.path());
  });
  const auto expect_end = [&](const Outcome& outcome, const char* name) {
    ASSERT_EQ(outcome.history.epochs.size(), 1) << name;
    EXPECT_NEAR(outcome.history.epochs[0].loss, expected.history.epochs[2].loss, 1e-6) << name;
    EXPECT_NEAR(outcome.evaluation, expected.evaluation, 1e-8) << name;
  };
  run_ranks(1, [&](const comm::Group& group) {
    expect_end(train({}, group, 8, folder.path(), true), "one process");
  });
  run_ranks(4, [&](const comm::Group& group) {
    const Plan plan = {.mesh = {{"data", 2}, {"expert", 2}}, .zero_level = 2};
    expect_end(train(plan, group, 4, folder.path(), true), "data and expert");
  });
}

}  // namespace
}  // namespace trireme
