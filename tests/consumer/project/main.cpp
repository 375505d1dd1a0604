// SPDX-License-Identifier: Apache-2.0
// A user's program: trains a line over the ranks and checks that all of them ended with the same
// one.
#include <trireme/trireme.h>

#include <torch/torch.h>

#include <iostream>

int main() {
  const auto world = trireme::init();
  torch::nn::Linear model(1, 1);
  const trireme::DataParallel parallel(*model, world.group);
  torch::manual_seed(static_cast<std::uint64_t>(world.rank));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 600; ++step) {
    const auto x = torch::rand({32, 1});
    optimizer.zero_grad();
    torch::mse_loss(model(x), 2 * x + 1).backward();
    optimizer.step();
  }
  const torch::NoGradGuard no_grad;
  const auto weights = torch::empty({world.size});
  trireme::comm::all_gather(weights, model->weight.flatten(), world.group);
  const bool is_right =
      weights.eq(weights[0]).all().item<bool>() && (weights[0] - 2).abs().item<float>() < 0.1;
  if (world.is_first()) std::cout << "weights of all ranks: " << weights << '\n';
  return is_right ? 0 : 1;
}
