// SPDX-License-Identifier: Apache-2.0
// Times training steps of a model under data parallelism and prints the median and the peak of
// memory (bench/cases/data_parallel.py). bench/peers/data_parallel.py is the same in PyTorch.
#include <models/gpt.h>
#include <models/resnet.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/parallel/parallelize.h>

#include <CLI/CLI.hpp>
#include <bench/multi/peak_memory.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

struct Options {
  std::string model = "mlp";
  int zero = 0;
  bool exchange = true;
  int steps = 5;
  int warm_up = 2;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times training steps under data parallelism.");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--model", options.model)
      ->check(CLI::IsMember({"mlp", "resnet18", "gpt", "large"}));
  app.add_option("--zero", options.zero, "ZeRO level")->check(CLI::Range(0, 3));
  app.add_option("--exchange", options.exchange,
                 "no: plain LibTorch, every rank has its own gradients");
  app.add_option("--steps", options.steps, "steps that are timed, an odd number");
  app.add_option("--warm-up", options.warm_up, "steps before those");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

// A model and the batch that it trains on again and again.
struct Training {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor()> loss;
  std::int64_t samples = 0;
};

Training train_mlp(const std::vector<std::int64_t>& widths, std::int64_t batch) {
  torch::nn::Sequential net;
  for (std::size_t layer = 1; layer < widths.size(); ++layer) {
    net->push_back(torch::nn::Linear(widths[layer - 1], widths[layer]));
    if (layer + 1 < widths.size()) net->push_back(torch::nn::ReLU());
  }
  const auto inputs = torch::randn({batch, widths.front()});
  const auto labels = torch::randint(widths.back(), {batch});
  return {.module = net.ptr(),
          .loss = [=]() mutable { return torch::cross_entropy_loss(net->forward(inputs), labels); },
          .samples = batch};
}

Training train_resnet18(std::int64_t batch) {
  auto net = models::resnet18(10, 1, models::Stem::kSmall);
  const auto images = torch::randn({batch, 1, 28, 28});
  const auto labels = torch::randint(10, {batch});
  return {.module = net.ptr(),
          .loss = [=]() mutable { return torch::cross_entropy_loss(net(images), labels); },
          .samples = batch};
}

Training train_gpt(std::int64_t batch) {
  const models::GPTOptions options = {
      .vocabulary = 8192, .sequence = 128, .hidden = 256, .layers = 4, .heads = 4};
  models::GPT net(options);
  const auto tokens = torch::randint(options.vocabulary, {batch, options.sequence + 1});
  const auto inputs = tokens.narrow(1, 0, options.sequence).contiguous();
  const auto targets = tokens.narrow(1, 1, options.sequence).flatten();
  return {
      .module = net.ptr(),
      .loss =
          [=]() mutable { return torch::cross_entropy_loss(net(inputs).flatten(0, 1), targets); },
      .samples = batch};
}

Training make_training(const std::string& model) {
  if (model == "mlp") return train_mlp({784, 2048, 2048, 2048, 10}, 64);   // 10.0 M parameters
  if (model == "resnet18") return train_resnet18(32);                      // 11.2 M
  if (model == "gpt") return train_gpt(4);                                 // 7.4 M
  return train_mlp({2048, 4096, 4096, 4096, 4096, 4096, 4096, 2048}, 16);  // 100.7 M
}

torch::optim::AdamOptions adam() { return torch::optim::AdamOptions(1e-4); }

// Seconds of the median of so many steps.
double median_time(int steps, const std::function<void()>& step) {
  std::vector<double> seconds;
  for (int number = 0; number < steps; ++number) {
    const auto began = std::chrono::steady_clock::now();
    step();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    seconds.push_back(took.count());
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

// What the optimizer does on one rank in a sharded step: it has one consecutive part of all
// elements, in the pieces in which a plan gives them to it.
class PartOptimizer {
 public:
  PartOptimizer(const torch::nn::Module& module, int rank, int size)
      : optimizer_(parts_of(module, rank, size), adam()) {}

  void step() {
    for (auto& [parameter, values, begin] : parts_) {
      values.mutable_grad() = parameter.grad().flatten().narrow(0, begin, values.numel());
    }
    optimizer_.step();
    for (auto& part : parts_) part.values.mutable_grad().reset();
  }

 private:
  struct Part {
    torch::Tensor parameter;
    torch::Tensor values;
    std::int64_t begin = 0;
  };

  std::vector<torch::Tensor> parts_of(const torch::nn::Module& module, int rank, int size) {
    std::int64_t total = 0;
    for (const auto& parameter : module.parameters()) total += parameter.numel();
    const std::int64_t begin = total * rank / size;
    const std::int64_t end = total * (rank + 1) / size;
    std::vector<torch::Tensor> values;
    std::int64_t offset = 0;
    for (const auto& parameter : module.parameters()) {
      const auto from = std::max(begin - offset, std::int64_t{0});
      const auto to = std::min(end - offset, parameter.numel());
      offset += parameter.numel();
      constexpr std::int64_t kPieceElements = 64 << 10;
      for (std::int64_t at = from; at < to; at += kPieceElements) {
        values.push_back(
            parameter.detach().flatten().narrow(0, at, std::min(kPieceElements, to - at)));
        parts_.push_back({.parameter = parameter, .values = values.back(), .begin = at});
      }
    }
    return values;
  }

  std::vector<Part> parts_;
  torch::optim::Adam optimizer_;
};

// Bytes of parameters, gradients and both states of Adam on one rank.
std::int64_t formula(const Training& training, const Options& options, int size) {
  std::int64_t bytes = 0;
  for (const auto& parameter : training.module->parameters()) {
    bytes += static_cast<std::int64_t>(parameter.nbytes());
  }
  const auto from_level = [&](int zero_level) {
    return options.zero >= zero_level ? bytes / size : bytes;
  };
  return from_level(3) + from_level(2) + 2 * from_level(1);
}

// A rank that has unmapped shared memory leaves the others a greater share of it: all look at once.
std::int64_t end_stretch(bench::PeakMemory& memory, const trireme::World& world) {
  trireme::comm::barrier(world.group);
  const std::int64_t bytes = memory.end_stretch();
  trireme::comm::barrier(world.group);
  return bytes;
}

nlohmann::json measure(const Options& options, const trireme::World& world) {
  bench::PeakMemory memory;
  torch::manual_seed(static_cast<std::uint64_t>(world.rank));
  const Training training = make_training(options.model);
  nlohmann::json record = {{"samples", training.samples * world.size},
                           {"formula", formula(training, options, world.size)}};
  std::optional<trireme::Parallelized> parallel;
  if (options.exchange) {
    parallel.emplace(
        trireme::parallelize(*training.module, {.zero_level = options.zero}, world.group));
  }
  torch::optim::Adam optimizer(training.module->parameters(), adam());
  if (options.exchange && options.zero > 0) parallel->shard(optimizer);

  torch::Tensor loss;
  const auto step = [&] {
    optimizer.zero_grad();
    loss = training.loss();
    loss.backward();
    optimizer.step();
  };
  for (int number = 0; number < options.warm_up; ++number) step();
  const auto starting_memory = end_stretch(memory, world);
  record["step_time"] = median_time(options.steps, step);
  record["step_memory"] = end_stretch(memory, world);
  record["peak_memory"] = std::max(starting_memory, record["step_memory"].get<std::int64_t>());

  if (!options.exchange && world.size > 1) {
    // The same step where the optimizer has a part of the elements only.
    PartOptimizer part(*training.module, world.rank, world.size);
    const double whole_time = median_time(options.steps, [&] { optimizer.step(); });
    part.step();  // makes its state
    const double part_time = median_time(options.steps, [&] { part.step(); });
    record["part_step_time"] = record["step_time"].get<double>() - whole_time + part_time;
  }
  record["loss"] = loss.item<double>();  // says at a glance that something was learned
  return record;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  const auto world = trireme::init();
  auto record = measure(options, world);
  for (const auto& text : trireme::comm::all_gather_text(record.dump(), world.group)) {
    const auto other = nlohmann::json::parse(text);
    for (const char* name : {"peak_memory", "step_memory"}) {
      if (record[name] < other[name]) record[name] = other[name];
    }
  }
  if (world.is_first()) std::cout << record << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
