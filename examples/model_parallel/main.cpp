// SPDX-License-Identifier: Apache-2.0
// A model whose layers lie on two devices of each process, in as many processes as it is started
// with: model parallel inside, data parallel outside. Activations move by .to, and DataParallel
// needs no list of devices: it takes every parameter where it lies.
#include "examples/report.h"
#include "examples/rings.h"
#include <trireme/trireme.h>

#include <torch/torch.h>

struct TwoDevicesImpl : torch::nn::Module {
  TwoDevicesImpl(torch::Device first_device, torch::Device second_device)
      : on_first(first_device), on_second(second_device) {
    first = register_module("first", torch::nn::Linear(2, 32));
    second = register_module("second", torch::nn::Linear(32, 32));
    third = register_module("third", torch::nn::Linear(32, 2));
    first->to(on_first);
    second->to(on_second);
    third->to(on_second);
  }

  torch::Tensor forward(const torch::Tensor& places) {
    const auto x = torch::relu(first(places.to(on_first)));
    return third(torch::relu(second(x.to(on_second))));
  }

  torch::Device on_first, on_second;
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};
TORCH_MODULE(TwoDevices);

// Two of this process's own; where there are fewer, the CPU and one that processes may share;
// without any, the CPU for both.
std::pair<torch::Device, torch::Device> choose_devices(int local_rank, int local_size) {
  const auto count = static_cast<int>(at::getNumGPUs());
  const auto cuda = [](int index) {
    return torch::Device(torch::kCUDA, static_cast<torch::DeviceIndex>(index));
  };
  if (count >= 2 * local_size) return {cuda(2 * local_rank), cuda(2 * local_rank + 1)};
  if (count > 0) return {torch::kCPU, cuda(local_rank % count)};
  return {torch::kCPU, torch::kCPU};
}

int main() try {
  // Shared memory carries tensors of the CPU alone; Gloo carries both kinds.
  trireme::InitOptions options;
  if (torch::cuda::is_available()) options.engine = "gloo";
  const auto world = trireme::init(options);
  const auto points = examples::part_of(examples::rings(256), world.rank, world.size);

  const auto [first, second] = choose_devices(world.local_rank, world.local_size);
  torch::manual_seed(static_cast<std::uint64_t>(world.rank));
  TwoDevices network(first, second);
  const trireme::DataParallel parallel(*network, world.group);
  torch::optim::Adam optimizer(network->parameters(), 0.01);
  if (world.is_first()) {
    std::cout << "layers are on " << first << " and " << second
              << (first == second ? ": there is no GPU, so nothing really moves" : "") << std::endl;
  }

  std::vector<double> losses;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const auto scores = network->forward(points.places);
    const auto loss = torch::cross_entropy_loss(scores, points.labels.to(scores.device()));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return examples::report(network->parameters(), losses, world);
} catch (const std::exception& error) {
  std::cerr << "model_parallel: " << trireme::message_of(error) << '\n';
  return 1;
}
