// SPDX-License-Identifier: Apache-2.0
// Times the steps of a training that take less than a tenth of a millisecond: three parameters
// fitted to 160 points by a Model (examples/linear_regression), and the same arithmetic in a loop
// without Trireme (bench/cases/small.py). bench/peers/ddp_small.py is the same with PyTorch's
// DistributedDataParallel.
#include <trireme/data/philox.h>
#include <trireme/trireme.h>

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

std::vector<at::Tensor> point(std::int64_t index) {
  data::Random random(/*seed=*/1, /*pass=*/0, static_cast<std::uint64_t>(index), /*operation=*/0);
  const double x = 2 * random.uniform() - 1;
  const double y = 2 * random.uniform() - 1;
  const double z = 2 * x * x + 3 * y * y * y + 5 + 0.03 * random.normal();
  return {torch::tensor({x * x, y * y * y}, torch::kFloat), torch::tensor({z}, torch::kFloat)};
}

data::DataLoader points() {
  data::DataLoader loader(data::generator(kPoints, {"features", "z"}, point));
  return loader.batch(kBatch).repeat(kRepeats).prefetch(4);
}

torch::nn::Linear line() {
  torch::nn::Linear dense(2, 1);
  for (at::Tensor& parameter : dense->parameters()) torch::nn::init::constant_(parameter, 0.02);
  return dense;
}

torch::optim::SGD optimizer_of(torch::nn::Linear& dense) {
  return torch::optim::SGD(dense->parameters(), torch::optim::SGDOptions(0.01).momentum(0.6));
}

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Seconds of an epoch of the Model on this rank.
double time_model(const trireme::World& world, bool whole, int epochs) {
  auto dense = line();
  auto optimizer = optimizer_of(dense);
  trireme::Model model(dense, trireme::MeanSquaredError(), optimizer,
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
double time_arithmetic(int epochs) {
  auto dense = line();
  auto optimizer = optimizer_of(dense);
  std::vector<data::Batch> batches;
  const auto stream = points().open(0);
  while (auto batch = stream->next()) batches.push_back(*batch);
  const auto epoch = [&] {
    for (data::Batch& batch : batches) {
      optimizer.zero_grad();
      torch::mse_loss(dense(batch["features"]), batch["z"]).backward();
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
  int epochs = 20;
  CLI::App app("Times a training whose steps take less than a tenth of a millisecond.");
  app.add_flag("--whole", whole, "let every rank train on all points, not on its part");
  app.add_option("--epochs", epochs, "epochs that are timed");
  CLI11_PARSE(app, argc, argv);
  const auto world = trireme::init();
  const double arithmetic = time_arithmetic(epochs);
  const double epoch = time_model(world, whole, epochs);
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
