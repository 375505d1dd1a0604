// SPDX-License-Identifier: Apache-2.0
// A program whose step is predicted; for the tests. Its module needs more memory than any machine
// has, and each way to train it is one of the program's ways.
#include <trireme/trireme.h>

#include <torch/torch.h>

#include <cstdlib>
#include <iostream>
#include <string>

namespace {

using trireme::Plan;
using trireme::World;

// 40 weights of 4 GiB.
constexpr std::int64_t kWidth = 32'768;
constexpr int kLayers = 40;

torch::nn::Sequential make_network(std::int64_t width, int layers) {
  torch::nn::Sequential network;
  for (int i = 0; i < layers; ++i) {
    network->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
  }
  return network;
}

struct Batches final : trireme::data::Dataset {
  std::int64_t size() const override { return 4096; }
  const std::vector<std::string>& columns() const override { return names; }
  std::vector<at::Tensor> get(std::int64_t index) const override {
    return {torch::full({kWidth}, static_cast<double>(index)), torch::tensor(index % 7)};
  }
  std::vector<std::string> names{"features", "label"};
};

void run_loop(const World& world, const std::string& mode) {
  auto network = make_network(kWidth, kLayers);
  torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto parallel = trireme::parallelize(*network, {}, world.group);
  if (mode == "second") {
    auto other = make_network(8, 1);
    const auto second = trireme::parallelize(*other, {}, world.group);
  }
  const auto batch = torch::randn({8, kWidth});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto loss = network->forward(batch).mean();
    if (mode == "value") std::cout << loss.item<double>();
    loss.backward();
    optimizer.step();
    std::cout << "loss " << loss.item<double>() << std::endl;
  }
}

void run_step(const World& world) {
  auto network = make_network(kWidth, kLayers);
  torch::optim::AdamW optimizer(network->parameters());
  const Plan plan{.mesh = {{"pipe", 4}, {"data", world.size / 4}}, .micro_batches = 4};
  trireme::TrainingStep training(
      *network,
      [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        return {network->forward(in[0]).mean()};
      },
      plan, world.group);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto output = training.step({torch::randn({8, kWidth})});
    optimizer.step();
    std::cout << output.loss.item<double>() << std::endl;
  }
}

void run_model(const World& world) {
  auto network = make_network(kWidth, kLayers);
  torch::optim::Adam optimizer(network->parameters());
  trireme::Model model(network, trireme::CrossEntropy(), optimizer,
                       {.group = world.group, .plan = {.zero_level = 3}});
  auto batches = trireme::data::DataLoader(std::make_shared<Batches>()).batch(4);
  model.train(2, batches);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string mode = argc > 1 ? argv[1] : "loop";
  if (mode == "alone") return 0;
  const auto world = trireme::init();
  at::Tensor count = torch::ones({1}, at::kLong);
  trireme::comm::all_reduce(count, world.group);
  const char* const cluster = std::getenv("TRIREME_CLUSTER");
  std::cout << world.launcher << ": rank " << world.rank << " of " << world.size << ", counted "
            << count.item<std::int64_t>() << ", on " << (cluster == nullptr ? "" : cluster)
            << std::endl;
  if (mode == "fail") throw trireme::UsageError("this program fails", "");
  if (mode == "step") {
    run_step(world);
  } else if (mode == "model") {
    run_model(world);
  } else {
    run_loop(world, mode);
  }
  std::cout << "the end" << std::endl;
  return 0;
} catch (const std::exception& error) {
  std::cerr << trireme::message_of(error) << '\n';
  return 3;
}
