// SPDX-License-Identifier: Apache-2.0
// Times training steps of transformers in several dimensions and prints the median, losses and the
// peak of memory (bench/cases/workloads.py). bench/peers/workloads.py is the same in PyTorch.
#include <models/bert.h>
#include <models/gpt.h>
#include <models/mixture.h>
#include <trireme/base/config/configuration.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/optim/fused_adam.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/training_step.h>
#include <trireme/plan/expert_layouts.h>
#include <trireme/plan/plan_config.h>
#include <trireme/plan/transformer_layouts.h>
#include <trireme/tensor/distributed_tensor.h>

#include <CLI/CLI.hpp>
#include <bench/multi/beside.h>
#include <bench/multi/peak_memory.h>
#include <bench/multi/pipeline/weights.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Settings {
  std::string model = "gpt";
  std::int64_t rows = 4;
  int steps = 5;
  int warm_up = 3;
  trireme::Plan plan;
};

Settings parse(int argc, char** argv) {
  Settings settings;
  std::vector<std::string> assignments;
  CLI::App app("Times training steps of transformers in several dimensions.");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--model", settings.model)
      ->check(CLI::IsMember({"gpt", "bert", "long", "experts"}));
  app.add_option("--rows", settings.rows, "sequences in the batch of one part of the data");
  app.add_option("--steps", settings.steps, "steps that are timed, an odd number");
  app.add_option("--warm-up", settings.warm_up, "steps before those, whose losses are printed");
  app.add_option("--plan-set", assignments,
                 "a field of the plan and its value, such as zero_level=2")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  trireme::PlanSettings plan;
  trireme::config::Configuration configuration(plan);
  for (const std::string& assignment : assignments) configuration.set(assignment);
  configuration.check();
  settings.plan = plan.plan;
  return settings;
}

// A model, and the batch of a part of the data: inputs and targets, [rows, sequence] each.
struct Training {
  std::shared_ptr<torch::nn::Module> module;
  trireme::graph::Forward forward;
  std::function<std::vector<torch::Tensor>(std::int64_t part)> batch;
  trireme::ParameterLayouts layouts;  // along `tensor` or `expert`
};

// The tokens of one part of the data, in both programs.
torch::Tensor tokens_of(std::int64_t vocabulary, std::int64_t rows, std::int64_t sequence,
                        std::int64_t part) {
  return torch::randint(vocabulary, {rows, sequence},
                        bench::numbers(1000 + static_cast<std::uint64_t>(part)), torch::kInt64);
}

std::vector<torch::Tensor> next_tokens(const torch::Tensor& tokens) {
  const std::int64_t length = tokens.size(1) - 1;
  return {tokens.narrow(1, 0, length).contiguous(), tokens.narrow(1, 1, length).contiguous()};
}

torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

Training train_gpt(const models::GPTOptions& options, std::int64_t rows) {
  models::GPT net(options);
  return {
      .module = net.ptr(),
      .forward = [net](const std::vector<torch::Tensor>& in) mutable -> std::vector<torch::Tensor> {
        return {loss_of(net(in[0]), in[1])};
      },
      .batch =
          [=](std::int64_t part) {
            return next_tokens(tokens_of(options.vocabulary, rows, options.sequence + 1, part));
          },
      .layouts = trireme::transformer_layouts(*net)};
}

// Masked tokens, 15 % of all, are predicted.
Training train_bert(std::int64_t rows) {
  const models::BERTOptions options = {
      .vocabulary = 8192, .sequence = 128, .hidden = 256, .layers = 4, .heads = 4, .dropout = 0};
  models::BERT net(options);
  constexpr std::int64_t kMask = 4;
  constexpr std::int64_t kIgnored = -100;
  const auto batch = [=](std::int64_t part) -> std::vector<torch::Tensor> {
    const auto tokens = tokens_of(options.vocabulary, rows, options.sequence, part);
    const auto is_masked =
        torch::rand(tokens.sizes(), bench::numbers(2000 + static_cast<std::uint64_t>(part))) < 0.15;
    return {tokens.masked_fill(is_masked, kMask),
            tokens.masked_fill(is_masked.logical_not(), kIgnored)};
  };
  return {
      .module = net.ptr(),
      .forward = [net](const std::vector<torch::Tensor>& in) mutable -> std::vector<torch::Tensor> {
        return {loss_of(net(in[0]), in[1])};
      },
      .batch = batch,
      .layouts = trireme::transformer_layouts(*net)};
}

Training train_experts(std::int64_t rows) {
  const models::MixtureOptions options = {
      .gpt = {.vocabulary = 2048, .sequence = 128, .hidden = 256, .layers = 4, .heads = 4}};
  models::MixtureGPT net(options);
  return {
      .module = net.ptr(),
      .forward = [net](const std::vector<torch::Tensor>& in) mutable -> std::vector<torch::Tensor> {
        const auto [logits, balance_loss] = net(in[0]);
        return {loss_of(logits, in[1]) + 0.01 * balance_loss};
      },
      .batch =
          [=](std::int64_t part) {
            return next_tokens(
                tokens_of(options.gpt.vocabulary, rows, options.gpt.sequence + 1, part));
          },
      .layouts = trireme::expert_layouts(*net)};
}

Training make_training(const Settings& settings) {
  Training training;
  if (settings.model == "gpt") {
    training =
        train_gpt({.vocabulary = 8192, .sequence = 128, .hidden = 256, .layers = 4, .heads = 4},
                  settings.rows);
  } else if (settings.model == "long") {
    training =
        train_gpt({.vocabulary = 512, .sequence = 8192, .hidden = 256, .layers = 2, .heads = 4},
                  settings.rows);
  } else if (settings.model == "bert") {
    training = train_bert(settings.rows);
  } else {
    training = train_experts(settings.rows);
  }
  bench::fill(*training.module);
  return training;
}

bool has_axis(const trireme::Plan& plan, const std::string& name) {
  return std::any_of(plan.mesh.begin(), plan.mesh.end(),
                     [&](const auto& axis) { return axis.name == name; });
}

// A loop with forward and backward, or a recorded step if the plan has stages.
class Trainer {
 public:
  Trainer(const Settings& settings, const trireme::World& world)
      : training_(make_training(settings)),
        optimizer_(trireme::fused_adamw(training_.module->parameters(), 1e-3)) {
    trireme::Plan plan = settings.plan;
    if (has_axis(plan, "tensor") || has_axis(plan, "expert")) plan.layouts = training_.layouts;
    batch_ = training_.batch(trireme::data_part(plan, world.group).index);
    if (has_axis(plan, trireme::kStageAxis)) {
      recorded_.emplace(*training_.module, training_.forward, plan, world.group);
      if (plan.zero_level > 0) recorded_->shard(*optimizer_);
    } else {
      parallel_.emplace(trireme::parallelize(*training_.module, plan, world.group));
      if (plan.zero_level > 0) parallel_->shard(*optimizer_);
    }
  }

  // Returns the loss of this rank's part of the data.
  double step() {
    optimizer_->zero_grad();
    torch::Tensor loss;
    if (recorded_) {
      loss = recorded_->step(batch_).loss;
    } else {
      loss = training_.forward(batch_).front();
      loss.backward();
    }
    optimizer_->step();
    return trireme::full(loss).item<double>();
  }

 private:
  Training training_;
  std::vector<torch::Tensor> batch_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  std::optional<trireme::TrainingStep> recorded_;
  std::optional<trireme::Parallelized> parallel_;
};

// A rank that has unmapped shared memory leaves the others a greater share of it: all look at once.
std::int64_t end_stretch(bench::PeakMemory& memory, const trireme::World& world) {
  trireme::comm::barrier(world.group);
  const std::int64_t bytes = memory.end_stretch();
  trireme::comm::barrier(world.group);
  return bytes;
}

nlohmann::json measure(const Settings& settings, const trireme::World& world) {
  bench::PeakMemory memory;
  Trainer trainer(settings, world);
  std::vector<double> losses;
  for (int number = 0; number < settings.warm_up; ++number) losses.push_back(trainer.step());
  // Ranks that share a part of the data have the same loss, so that the mean is that of the parts.
  const auto mean = torch::tensor(losses, torch::kDouble);
  trireme::comm::all_reduce(mean, world.group);
  nlohmann::json record;
  record["losses"] = losses;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    record["losses"][i] = mean[static_cast<std::int64_t>(i)].item<double>() / world.size;
  }
  const auto starting_memory = end_stretch(memory, world);
  std::vector<double> seconds;
  for (int number = 0; number < settings.steps; ++number) {
    seconds.push_back(bench::seconds_of([&] { trainer.step(); }, 1));
  }
  record["step_time"] = bench::median(seconds);
  record["peak_memory"] = std::max(starting_memory, end_stretch(memory, world));
  return record;
}

}  // namespace

int main(int argc, char** argv) try {
  const Settings settings = parse(argc, argv);
  const auto world = trireme::init();
  auto record = measure(settings, world);
  for (const auto& text : trireme::comm::all_gather_text(record.dump(), world.group)) {
    const auto other = nlohmann::json::parse(text);
    if (record["peak_memory"] < other["peak_memory"]) record["peak_memory"] = other["peak_memory"];
  }
  if (world.is_first()) std::cout << record << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
