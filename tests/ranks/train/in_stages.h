// SPDX-License-Identifier: Apache-2.0
// One program that trains with Model under any plan, and what comes of it.
#pragma once

#include <trireme/data/data_loader.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/losses.h>
#include <trireme/train/metrics.h>
#include <trireme/train/model.h>

#include <gtest/gtest.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {

/// Linear layers in half precision have all their operators on processors.
struct PerceptronImpl : torch::nn::Module {
  explicit PerceptronImpl(double dropout = 0) : rate(dropout) {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 8));
    third = register_module("third", torch::nn::Linear(8, 8));
    last = register_module("last", torch::nn::Linear(8, 5));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::dropout(torch::relu(first(x)), rate, is_training());
    h = torch::dropout(torch::gelu(second(h)), rate, is_training());
    h = torch::dropout(torch::tanh(third(h)), rate, is_training());
    return last(h);
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr}, last{nullptr};
  double rate;
};

inline std::shared_ptr<PerceptronImpl> dropping(double dropout) {
  auto net = std::make_shared<PerceptronImpl>(dropout);
  fill(*net);
  return net;
}

inline std::shared_ptr<PerceptronImpl> perceptron() { return dropping(0); }

inline std::shared_ptr<ResidualNetImpl> residual() {
  auto net = std::make_shared<ResidualNetImpl>();
  fill(*net);
  return net;
}

inline const std::vector<std::string> kPerceptronStages = {"first", "second", "third", "last"};
inline const std::vector<std::string> kResidualStages = {"head", "blocks.0", "blocks.1",
                                                         "blocks.2"};

/// Rows of numbers and class numbers of five classes.
inline data::DataLoader rows_of(std::int64_t rows, std::vector<std::int64_t> sizes) {
  sizes.insert(sizes.begin(), rows);
  return data::DataLoader(data::tensors(
      {{"input", numbers(sizes, 3)}, {"label", (torch::arange(rows) * 3).remainder(5)}}));
}

/// What does not change with the plan.
struct Program {
  std::int64_t epochs = 2;
  std::int64_t rows = 24;  ///< for training
  std::int64_t tested_rows = 17;
  std::int64_t batch = 4;
  std::optional<double> clip_norm = 0.5;
  std::optional<at::ScalarType> autocast{};
  LossScaleOptions loss_scale{};
  std::optional<std::uint64_t> deterministic{};
  std::optional<CheckpointOptions> saves{};
  std::filesystem::path resume{};  ///< empty: from the beginning
  std::function<void(const StepEndContext&)> at_step_end{};
  at::Device device = at::kCPU;     ///< of the network
  bool moves_batches_ahead = true;  ///< the loader moves them to the device
};

struct Trained {
  History history;
  Evaluation evaluation;
  std::vector<float> losses;
  std::vector<std::optional<double>> norms;
  std::vector<bool> skipped;
  torch::Tensor predicted;
  double top = 0;
  torch::Tensor confusion;
  std::vector<torch::Tensor> parameters;
  std::vector<torch::Tensor> buffers;
};

/// @param stages modules that begin stages, the first of `plan.mesh` along pipe of them.
inline Plan in_stages(int pipe, int along_data, const std::vector<std::string>& modules) {
  Plan plan;
  plan.mesh = {{kDataAxis, along_data}, {kStageAxis, pipe}};
  for (int stage = 0; stage < pipe; ++stage) {
    plan.stages.emplace_back(modules[static_cast<std::size_t>(stage)], stage);
  }
  plan.bucket_bytes = plan.first_bucket_bytes = 512;
  return plan;
}

template <typename NetworkType>
Trained run_program(const std::shared_ptr<NetworkType>& network,
                    const std::vector<std::int64_t>& sizes, const Program& program,
                    const Plan& plan, const comm::Group& group) {
  network->to(program.device);
  torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const DataPart part = data_part(plan, group);
  auto training = rows_of(program.rows * part.count, sizes);
  training.shard({.index = part.index, .count = part.count}).batch(program.batch);
  auto test = rows_of(program.tested_rows, sizes);
  test.shard({.index = part.index, .count = part.count, .remainder = data::Remainder::kUneven})
      .batch(program.batch);
  if (program.moves_batches_ahead) training.to(program.device);
  ConfusionMatrix matrix(5);
  TopK top(2);
  Model model(network, CrossEntropy(), optimizer,
              {.group = group,
               .plan = plan,
               .metrics = {matrix, top},
               .clip_norm = program.clip_norm,
               .autocast = program.autocast,
               .loss_scale = program.loss_scale,
               .deterministic = program.deterministic});
  if (!program.resume.empty()) model.resume(program.resume);
  Trained trained;
  LambdaCallback record({.step_end = [&](const StepEndContext& step) {
    trained.losses.push_back(step.loss);
    trained.norms.push_back(step.gradient_norm);
    trained.skipped.push_back(step.is_skipped);
    if (program.at_step_end) program.at_step_end(step);
  }});
  Callbacks callbacks = {record};
  std::optional<Checkpoint> checkpoint;
  if (program.saves) callbacks.emplace_back(checkpoint.emplace(*program.saves));
  trained.history = model.fit(training, test, {.epochs = program.epochs, .callbacks = callbacks});
  trained.evaluation = model.evaluate(test);
  trained.top = top.value();
  trained.confusion = matrix.counts().cpu().clone();
  trained.predicted = model.predict(test).cpu().clone();
  model.gather_parameters();
  for (const auto& item : network->parameters()) {
    trained.parameters.push_back(full(item.detach()).cpu().clone());
  }
  for (const auto& item : network->buffers())
    trained.buffers.push_back(item.detach().cpu().clone());
  return trained;
}

inline void expect_same(const Trained& got, const Trained& expected) {
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.norms, expected.norms);
  EXPECT_EQ(got.skipped, expected.skipped);
  ASSERT_EQ(got.history.epochs.size(), expected.history.epochs.size());
  for (std::size_t i = 0; i < got.history.epochs.size(); ++i) {
    EXPECT_EQ(got.history.epochs[i].loss, expected.history.epochs[i].loss);
    EXPECT_EQ(got.history.epochs[i].samples, expected.history.epochs[i].samples);
    EXPECT_EQ(got.history.epochs[i].evaluation->loss, expected.history.epochs[i].evaluation->loss);
  }
  EXPECT_EQ(got.evaluation.loss, expected.evaluation.loss);
  EXPECT_EQ(got.evaluation.samples, expected.evaluation.samples);
  EXPECT_EQ(got.evaluation.accuracy, expected.evaluation.accuracy);
  EXPECT_EQ(got.top, expected.top);
  EXPECT_TRUE(torch::equal(got.confusion, expected.confusion));
  EXPECT_TRUE(torch::equal(got.predicted, expected.predicted));
  ASSERT_EQ(got.parameters.size(), expected.parameters.size());
  for (std::size_t i = 0; i < got.parameters.size(); ++i) {
    EXPECT_TRUE(torch::equal(got.parameters[i], expected.parameters[i])) << "parameter " << i;
  }
  for (std::size_t i = 0; i < got.buffers.size(); ++i) {
    EXPECT_TRUE(torch::equal(got.buffers[i], expected.buffers[i])) << "buffer " << i;
  }
}

/// By rank along data: what the same program does without stages.
template <typename Make>
std::vector<Trained> without_stages(const Make& make, const std::vector<std::int64_t>& sizes,
                                    const Program& program, Plan plan, int along_data) {
  plan.mesh.clear();
  plan.stages.clear();
  std::vector<Trained> all(static_cast<std::size_t>(along_data));
  testing::run_ranks(along_data, [&](const comm::Group& group) {
    all[static_cast<std::size_t>(group.rank())] = run_program(make(), sizes, program, plan, group);
  });
  return all;
}

/// Every rank of a plan with stages has what the rank with its data has without.
template <typename Make>
void expect_as_without_stages(const Make& make, const std::vector<std::int64_t>& sizes,
                              const Program& program, const Plan& plan) {
  const int along_data = data_ranks(plan, 1);
  const auto expected = without_stages(make, sizes, program, plan, along_data);
  testing::run_ranks(along_data * stage_ranks(plan), [&](const comm::Group& group) {
    const Trained got = run_program(make(), sizes, program, plan, group);
    const DataPart part = data_part(plan, group);
    SCOPED_TRACE(to_string(plan));
    expect_same(got, expected[static_cast<std::size_t>(part.index)]);
  });
}

}  // namespace trireme::test
