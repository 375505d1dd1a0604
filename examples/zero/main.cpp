// SPDX-License-Identifier: Apache-2.0
// ZeRO: each rank keeps a part of the optimizer's state (ZeRO level 1), of the gradients (2) and of
// the parameters (3). One field of the plan, and one line for the optimizer.
#include "examples/report.h"
#include "examples/rings.h"
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

// Of Adam: two numbers for each element that this rank steps.
std::int64_t state_elements(torch::optim::Adam& optimizer) {
  std::int64_t elements = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& adam = dynamic_cast<const torch::optim::AdamParamState&>(*state);
    elements += adam.exp_avg().numel() + adam.exp_avg_sq().numel();
  }
  return elements;
}

int run(int zero_level) {
  const auto world = trireme::init();
  const auto points = examples::part_of(examples::rings(256), world.rank, world.size);

  torch::manual_seed(static_cast<std::uint64_t>(world.rank));
  auto network = examples::make_network();
  std::int64_t elements = 0;
  for (const auto& parameter : network->parameters()) elements += parameter.numel();
  auto parallel = trireme::parallelize(*network, {.zero_level = zero_level}, world.group);
  torch::optim::Adam optimizer(network->parameters(), 0.01);
  parallel.shard(optimizer);

  std::vector<double> losses;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(network->forward(points.places), points.labels);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  const std::int64_t own = state_elements(optimizer);
  if (world.is_first())
    std::cout << "ZeRO level " << zero_level << ": this rank keeps " << own << " of "
              << 2 * elements << " elements of optimizer state" << std::endl;
  const bool is_cut = zero_level > 0 && world.size > 1;
  if (is_cut != (own < 2 * elements)) throw std::runtime_error("the state is not cut as planned");
  parallel.gather_parameters();  // makes the parameters whole, for whoever reads them without an
                                 // operator
  return examples::report(network->parameters(), losses, world);
}

int main(int argc, char** argv) {
  int zero_level = 2;
  CLI::App app("Trains a small network with optimizer state cut into one part a rank");
  app.add_option("--level", zero_level, "ZeRO level, 0 to 3")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return run(zero_level);
  } catch (const std::exception& error) {
    std::cerr << "zero: " << trireme::message_of(error) << '\n';
    return 1;
  }
}
