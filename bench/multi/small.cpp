// SPDX-License-Identifier: Apache-2.0
// Times the steps of a training that take a tenth of a millisecond or less: three parameters, or a
// small network, fitted to 160 points by a Model (examples/linear_regression), and the same
// arithmetic in a loop without Trireme (bench/cases/small.py). bench/peers/ddp_small.py is the same
// with PyTorch's DistributedDataParallel.
#include <trireme/data/dataset.h>
#include <trireme/trireme.h>

#include <ATen/CPUGeneratorImpl.h>
#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <iostream>
#include <vector>

namespace {

namespace data = trireme::data;

constexpr std::int64_t kPoints = 160;
constexpr std::int64_t kBatch = 16;
constexpr std::int64_t kRepeats = 20;

data::DataLoader points() {
  at::Generator random = at::detail::createCPUGenerator(/*seed=*/1);
  const at::Tensor x = 2 * torch::rand({kPoints, 1}, random) - 1;
  const at::Tensor y = 2 * torch::rand({kPoints, 1}, random) - 1;
  const at::Tensor features = torch::cat({x.pow(2), y.pow(3)}, 1);
  const at::Tensor noise = 0.03 * torch::randn({kPoints, 1}, random);
  data::DataLoader loader(
      data::tensors({{"features", features},
                     {"z", 2 * features.slice(1, 0, 1) + 3 * features.slice(1, 1) + 5 + noise}}));
  return loader.batch(kBatch).repeat(kRepeats).prefetch(4);
}

// A line for 0 layers, else so many hidden layers of 16 units before it.
torch::nn::Sequential network(int layers) {
  torch::manual_seed(1);
  torch::nn::Sequential result;
  std::int64_t width = 2;
  for (int layer = 0; layer < layers; ++layer) {
    result->push_back(torch::nn::Linear(width, 16));
    result->push_back(torch::nn::Tanh());
    width = 16;
  }
  result->push_back(torch::nn::Linear(width, 1));
  return result;
}

torch::optim::SGD optimizer_of(torch::nn::Sequential& module) {
  return torch::optim::SGD(module->parameters(), torch::optim::SGDOptions(0.01).momentum(0.6));
}

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Seconds of an epoch of the Model on this rank.
double time_model(const trireme::World& world, bool whole, int layers, int epochs) {
  auto module = network(layers);
  auto optimizer = optimizer_of(module);
  trireme::Model model(module, trireme::MeanSquaredError(), optimizer,
                       {.group = world.group,
                        .input_column = "features",
                        .target_column = "z",
                        .shards_data = !whole});
  const auto loader = points();
  model.train(1, loader);
  const auto began = std::chrono::steady_clock::now();
  model.train(epochs, loader);
  return seconds_since(began) / epochs;
}

// Seconds of a step of arithmetic alone: forward, loss, backward and optimizer.
double time_arithmetic(int layers, int epochs) {
  auto module = network(layers);
  auto optimizer = optimizer_of(module);
  std::vector<data::Batch> batches;
  const auto stream = points().open(0);
  while (auto batch = stream->next()) batches.push_back(*batch);
  const auto epoch = [&] {
    for (data::Batch& batch : batches) {
      optimizer.zero_grad();
      torch::mse_loss(module->forward(batch["features"]), batch["z"]).backward();
      optimizer.step();
    }
  };
  epoch();
  const auto began = std::chrono::steady_clock::now();
  for (int number = 0; number < epochs; ++number) epoch();
  return seconds_since(began) / epochs / static_cast<double>(batches.size());
}

}  // namespace

int main(int argc, char** argv) try {
  bool whole = false;
  int layers = 0;
  int epochs = 20;
  CLI::App app("Times a training whose steps take a tenth of a millisecond or less.");
  app.add_flag("--whole", whole, "let every rank train on all points, not on its part");
  app.add_option("--layers", layers, "hidden layers of 16 units");
  app.add_option("--epochs", epochs, "epochs that are timed");
  CLI11_PARSE(app, argc, argv);
  const auto world = trireme::init();
  const double arithmetic = time_arithmetic(layers, epochs);
  const double epoch = time_model(world, whole, layers, epochs);
  const std::int64_t all_steps = kPoints * kRepeats / kBatch;
  const double steps = static_cast<double>(all_steps) / (whole ? 1 : world.size);
  if (world.is_first()) {
    std::cout << R"({"epoch_time": )" << epoch << R"(, "step_time": )" << epoch / steps
              << R"(, "arithmetic_time": )" << arithmetic << R"(, "added_time": )"
              << epoch / steps - arithmetic << "}\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << trireme::message_of(error) << '\n';
  return 1;
}
