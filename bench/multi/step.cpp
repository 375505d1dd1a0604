// SPDX-License-Identifier: Apache-2.0
// Times training steps of ResNet-18 on random 28x28 images and prints the median
// (bench/cases/step.py). bench/peers/ddp_step.py is the same with PyTorch's
// DistributedDataParallel.
#include <models/resnet.h>
#include <trireme/comm/world.h>
#include <trireme/parallel/data_parallel.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iostream>
#include <optional>
#include <vector>

namespace {

struct Options {
  std::int64_t batch = 32;
  std::int64_t batches = 1;
  int steps = 5;
  int warm_up = 2;
  bool no_communication = false;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times training steps of ResNet-18 on random 28x28 images.");
  app.add_option("--batch", options.batch, "images on a rank at a time");
  app.add_option("--batches", options.batches, "batches whose gradients make one step");
  app.add_option("--steps", options.steps, "steps that are timed");
  app.add_option("--warm-up", options.warm_up, "steps before those");
  app.add_flag("--no-communication", options.no_communication,
               "leave every rank its own gradients");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

// Seconds of each timed step on this rank.
std::vector<double> time_steps(const Options& options, const trireme::World& world) {
  torch::manual_seed(static_cast<std::uint64_t>(world.rank));
  auto model = models::resnet18(10, 1, models::Stem::kSmall);
  std::optional<trireme::DataParallel> parallel;
  if (!options.no_communication) parallel.emplace(*model, world.group, options.batches);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  const auto images = torch::randn({options.batch, 1, 28, 28});
  const auto labels = torch::randint(10, {options.batch});

  std::vector<double> seconds;
  for (int step = 0; step < options.warm_up + options.steps; ++step) {
    const auto began = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    for (std::int64_t batch = 0; batch < options.batches; ++batch) {
      torch::nn::functional::cross_entropy(model(images), labels).backward();
    }
    optimizer.step();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (step >= options.warm_up) seconds.push_back(took.count());
  }
  return seconds;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  const auto world = trireme::init();
  const double seconds = median(time_steps(options, world));
  if (world.is_first()) {
    std::cout << R"({"step_time": )" << seconds << R"(, "samples": )"
              << options.batch * options.batches * world.size << "}\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
