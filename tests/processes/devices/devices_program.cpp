// SPDX-License-Identifier: Apache-2.0
// Trains a small network by DataParallel on the accelerator that init() gives each rank, and
// compares it with what one process computes of the same rows. The accelerator is CUDA where
// LibTorch has it, else the fake one. Argument: the ZeRO level.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/parallel/parallelize.h>

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr int kSteps = 4;
constexpr std::int64_t kRows = 8;

torch::nn::Sequential make_network(at::Device device) {
  torch::manual_seed(3);
  torch::nn::Sequential network(torch::nn::Linear(12, 16), torch::nn::GELU(),
                                torch::nn::Linear(16, 4));
  network->to(device);
  return network;
}

// The rows of one rank in one step.
torch::Tensor rows(int step, int rank, at::Device device) {
  torch::manual_seed(1000 * static_cast<std::uint64_t>(step) + static_cast<std::uint64_t>(rank));
  return torch::randn({kRows, 12}).to(device);
}

torch::Tensor loss(torch::nn::Sequential& network, const torch::Tensor& x) {
  return network->forward(x).square().mean();
}

// Returns the parameters that one process gets from the rows of all ranks. Gradients are added in
// the order of ranks and then divided, as the engines do.
std::vector<torch::Tensor> train_alone(int ranks, at::Device device) {
  auto network = make_network(device);
  torch::optim::Adam optimizer(network->parameters(), torch::optim::AdamOptions(0.01));
  for (int step = 0; step < kSteps; ++step) {
    std::vector<torch::Tensor> sums;
    for (int rank = 0; rank < ranks; ++rank) {
      optimizer.zero_grad();
      loss(network, rows(step, rank, device)).backward();
      std::size_t i = 0;
      for (const torch::Tensor& parameter : network->parameters()) {
        if (rank == 0) {
          sums.push_back(parameter.grad().clone());
        } else {
          sums[i].add_(parameter.grad());
        }
        ++i;
      }
    }
    std::size_t i = 0;
    for (torch::Tensor& parameter : network->parameters()) {
      parameter.mutable_grad() = sums[i++] / ranks;
    }
    optimizer.step();
  }
  return network->parameters();
}

int run(int zero_level) {
  auto world = trireme::init();
  auto network = make_network(world.device);
  torch::optim::Adam optimizer(network->parameters(), torch::optim::AdamOptions(0.01));
  trireme::Plan plan;
  plan.zero_level = zero_level;
  {
    auto parallel = trireme::parallelize(*network, plan, world.group);
    if (zero_level > 0) parallel.shard(optimizer);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss(network, rows(step, world.rank, world.device)).backward();
      optimizer.step();
    }
    parallel.gather_parameters();
  }
  const auto alone = train_alone(world.size, world.device);
  double difference = 0;
  std::size_t i = 0;
  for (const torch::Tensor& parameter : network->parameters()) {
    difference = std::max(difference, (parameter - alone[i++]).abs().max().item<double>());
  }
  const auto type = world.device.type();
  std::cout << trireme::join_message(
                   "rank ", world.rank, " on ", world.device, ", engine ",
                   world.group.stages(type) ? "staged" : world.group.carrier(type).engine(),
                   ", text by ", world.group.engine(), ", difference ", difference, "\n")
            << std::flush;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? std::stoi(argv[1]) : 0);
  } catch (const std::exception& failure) {
    std::cerr << failure.what() << "\n";
    return 1;
  }
}
