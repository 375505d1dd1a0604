// SPDX-License-Identifier: Apache-2.0
// Steps over more samples than fit into memory at once: several calls of backward() make up one
// step, and the ranks exchange gradients during the last one only.
#include "examples/report.h"
#include "examples/rings.h"
#include <trireme/trireme.h>

#include <torch/torch.h>

constexpr std::int64_t kMicroBatches = 4;

int main() try {
  const auto world = trireme::init();
  const auto points = examples::part_of(examples::rings(256), world.rank, world.size);
  const auto places = points.places.chunk(kMicroBatches);
  const auto labels = points.labels.chunk(kMicroBatches);

  torch::manual_seed(static_cast<std::uint64_t>(world.rank));
  auto network = examples::make_network();
  const auto parallel =
      trireme::parallelize(*network, {.micro_batches = kMicroBatches}, world.group);
  torch::optim::Adam optimizer(network->parameters(), 0.01);

  std::vector<double> losses;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    double mean = 0;
    for (std::size_t i = 0; i < kMicroBatches; ++i) {
      const auto loss = torch::cross_entropy_loss(network->forward(places[i]), labels[i]);
      loss.backward();  // no need to divide: gradients are the mean over ranks and micro-batches
      mean += loss.item<double>() / kMicroBatches;
    }
    optimizer.step();
    losses.push_back(mean);
  }
  if (world.is_first())
    std::cout << "each of 60 steps took " << kMicroBatches << " backward passes on every rank\n";
  return examples::report(network->parameters(), losses, world);
} catch (const std::exception& error) {
  std::cerr << "accumulation: " << trireme::message_of(error) << '\n';
  return 1;
}
