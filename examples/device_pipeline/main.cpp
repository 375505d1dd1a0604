// SPDX-License-Identifier: Apache-2.0
// A residual network on two devices of one process, as in PyTorch's tutorial on model parallelism:
// the first layers on one, the rest on the other, and batches split so that both work at once. The
// network knows of no device, and into how many parts a batch is split is found by measuring.
#include <models/resnet.h>
#include <trireme/base/exception_text.h>
#include <trireme/parallel/training_step.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

struct Settings {
  std::vector<std::string> devices;
  std::int64_t rows = 32;
  std::int64_t side = 128;
  std::int64_t width = 64;
  int steps = 20;
};

// Images whose brightest quarter is their class.
std::vector<torch::Tensor> make_batch(const Settings& settings) {
  const auto labels = torch::arange(settings.rows).remainder(4);
  auto images = torch::rand({settings.rows, 3, settings.side, settings.side});
  const std::int64_t half = settings.side / 2;
  for (std::int64_t row = 0; row < settings.rows; ++row) {
    const std::int64_t quarter = row % 4;
    images[row].narrow(1, quarter / 2 * half, half).narrow(2, quarter % 2 * half, half).add_(0.5);
  }
  return {images, labels};
}

int run(const Settings& settings) {
  torch::manual_seed(1);
  models::ResNet net(models::ResNetOptions{.block = models::Block::kBottleneck,
                                           .blocks = {3, 4, 6, 3},
                                           .width = settings.width,
                                           .classes = 4});
  torch::optim::SGD optimizer(net->parameters(), 0.02);

  trireme::Plan plan;
  plan.stages = {{"conv1", 0}, {"layer3", 1}};
  plan.micro_batches = 0;  // found below
  std::vector<at::Device> devices;
  for (const std::string& name : settings.devices) devices.emplace_back(name);
  trireme::TrainingStep pipeline(*net,
                                 [&](const auto& in) -> std::vector<torch::Tensor> {
                                   return {torch::cross_entropy_loss(net->forward(in[0]), in[1])};
                                 },
                                 plan, trireme::comm::Group::self(), {.devices = devices});

  const std::vector<torch::Tensor> batch = make_batch(settings);
  const auto times = pipeline.find_micro_batches(batch);
  std::cout << std::fixed;
  for (const trireme::SplitTime& time : times) {
    std::cout << std::setw(4) << time.micro_batches << " parts of " << std::setw(3) << time.rows
              << " rows: " << std::setprecision(1) << time.seconds * 1e3 << " ms\n";
  }
  const auto best = std::ranges::min_element(times, {}, &trireme::SplitTime::seconds);
  std::cout << "a batch goes in " << pipeline.plan().micro_batches << " parts, "
            << std::setprecision(2) << times.front().seconds / best->seconds
            << " times as fast as one device after the other" << std::endl;

  double first = 0;
  double loss = 0;
  for (int step = 0; step < settings.steps; ++step) {
    optimizer.zero_grad();
    loss = pipeline.step(batch).loss.item<double>();
    optimizer.step();
    if (step == 0) {
      first = loss;
      std::cout << pipeline.to_string();
    }
  }
  const bool fell = loss < 0.5 * first;
  std::cout << "the loss " << (fell ? "fell" : "DID NOT FALL") << " from " << std::setprecision(4)
            << first << " to " << loss << std::endl;
  return fell ? 0 : 1;
}

int main(int argc, char** argv) {
  Settings settings;
  settings.devices = torch::cuda::device_count() >= 2 ? std::vector<std::string>{"cuda:0", "cuda:1"}
                                                      : std::vector<std::string>{"cpu", "cpu"};
  CLI::App app("Trains a residual network on several devices of one process");
  app.add_option("--devices", settings.devices, "Where the stages are, such as cuda:0 cuda:1")
      ->capture_default_str();
  app.add_option("--rows", settings.rows, "Of a batch")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--side", settings.side, "Of the images, in pixels")
      ->check(CLI::Range(32, 1024))
      ->capture_default_str();
  app.add_option("--width", settings.width, "Channels of the first layers; 64 is ResNet-50")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--steps", settings.steps, "Steps to train")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return run(settings);
  } catch (const std::exception& error) {
    std::cerr << "device_pipeline: " << trireme::message_of(error) << '\n';
    return 1;
  }
}
