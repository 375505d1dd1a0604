// SPDX-License-Identifier: Apache-2.0
// Half precision with a dynamic loss scale, written out: reduce, look whether all is finite,
// unscale, clip, step or skip, and adjust the scale in any case.
#include "examples/report.h"
#include "examples/rings.h"
#include <trireme/optim/autocast.h>
#include <trireme/trireme.h>

#include <torch/torch.h>

int main() try {
  const auto world = trireme::init();
  const auto points = examples::part_of(examples::rings(256), world.rank, world.size);

  torch::manual_seed(static_cast<std::uint64_t>(world.rank));
  auto network = examples::make_network();
  auto parallel = trireme::parallelize(*network, {}, world.group);
  torch::optim::Adam optimizer(network->parameters(), 0.01);
  // Far too large, to show what happens: steps overflow and are skipped until it has come down.
  trireme::LossScale scale({.initial = 0x1p140, .growth_interval = 1000, .backoff = 0x1p-10});

  int skipped = 0;
  std::vector<double> losses;
  for (int step = 0; step < 80; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const trireme::Autocast autocast(at::kCPU, at::kBFloat16);
      loss = torch::cross_entropy_loss(network->forward(points.places), points.labels);
    }
    scale.scale(loss).backward();  // gradients are fp32 again, and averaged over the ranks
    if (scale.unscale(optimizer, parallel.sharing())) {
      trireme::clip_by_global_norm(optimizer, 1.0, parallel.sharing());
      optimizer.step();
    } else {
      ++skipped;
    }
    losses.push_back(loss.item<double>());
  }
  if (world.is_first())
    std::cout << skipped << " steps were skipped, the scale is now " << scale.value() << '\n';
  if (skipped == 0) throw std::runtime_error("no step overflowed");
  return examples::report(network->parameters(), losses, world);
} catch (const std::exception& error) {
  std::cerr << "mixed_precision: " << trireme::message_of(error) << '\n';
  return 1;
}
