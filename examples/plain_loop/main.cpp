// SPDX-License-Identifier: Apache-2.0
// A training loop as one writes it for one process. Three things make it parallel: init, the part
// of the data, and DataParallel around the module.
#include "examples/report.h"
#include "examples/rings.h"
#include <trireme/trireme.h>

#include <torch/torch.h>

int main() try {
  const auto world = trireme::init();
  const auto points = examples::part_of(examples::rings(256), world.rank, world.size);

  torch::manual_seed(static_cast<std::uint64_t>(world.rank));
  auto network = examples::make_network();  // other values on every rank, until the next line
  const trireme::DataParallel parallel(*network, world.group);
  torch::optim::Adam optimizer(network->parameters(), 0.01);

  std::vector<double> losses;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(network->forward(points.places), points.labels);
    loss.backward();  // averages the gradients over the ranks, while it still computes
    optimizer.step();
    losses.push_back(loss.item<double>());
    if (world.is_first() && step % 20 == 0)
      std::cout << "step " << step << ", loss " << losses.back() << std::endl;
  }
  return examples::report(network->parameters(), losses, world);
} catch (const std::exception& error) {
  std::cerr << "plain_loop: " << trireme::message_of(error) << '\n';
  return 1;
}
