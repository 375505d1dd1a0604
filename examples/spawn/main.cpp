// SPDX-License-Identifier: Apache-2.0
// A program that starts its own workers: no launcher around it.
#include "examples/report.h"
#include "examples/rings.h"
#include <trireme/comm/spawn.h>
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

int train(const trireme::World& world, int steps) {
  const auto points = examples::part_of(examples::rings(256), world.rank, world.size);
  torch::manual_seed(static_cast<std::uint64_t>(world.rank));
  auto network = examples::make_network();
  const trireme::DataParallel parallel(*network, world.group);
  torch::optim::Adam optimizer(network->parameters(), 0.01);

  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(network->forward(points.places), points.labels);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return examples::report(network->parameters(), losses, world);
}

int main(int argc, char** argv) {
  int workers = 2;
  int steps = 60;
  CLI::App app("Trains a small network with workers that it starts itself");
  app.add_option("--workers", workers, "Processes to start")->capture_default_str();
  app.add_option("--steps", steps, "Steps of the training")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    // Every worker is this program with the same arguments, so `steps` is there too.
    return trireme::spawn(workers, argc, argv,
                          [&](const trireme::World& world) { return train(world, steps); });
  } catch (const std::exception& error) {
    std::cerr << "spawn: " << trireme::message_of(error) << '\n';
    return 1;
  }
}
