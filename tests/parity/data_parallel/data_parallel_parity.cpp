// SPDX-License-Identifier: Apache-2.0
// The C++ side of data_parallel_parity.py, one rank of `trireme run`:
//   data_parallel_parity <in> <out>
// Trains the networks whose weights (`<network>.model.*`) and data (`<network>.inputs`,
// `<network>.targets`, [steps, ranks, …]) are in a file, by each optimizer and stage of ZeRO; rank
// 0 writes the losses of all ranks, [steps, ranks] each.
#include <models/gpt.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/parallel/parallelize.h>

#include <tests/zero_levels.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using trireme::checkpoint::TensorMap;
using Forward = std::function<torch::Tensor(const torch::Tensor&)>;

struct Network {
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;
};

template <typename Module>
Network network_of(Module module) {
  return {module.ptr(), [module](const torch::Tensor& x) mutable { return module->forward(x); }};
}

Network make_network(const std::string& name) {
  if (name == "mlp") {
    return network_of(torch::nn::Sequential(torch::nn::Linear(20, 64), torch::nn::Tanh(),
                                            torch::nn::Linear(64, 64), torch::nn::Tanh(),
                                            torch::nn::Linear(64, 10)));
  }
  if (name == "gpt") {
    return network_of(models::GPT(models::GPTOptions{
        .vocabulary = 61, .sequence = 16, .hidden = 32, .layers = 2, .heads = 4, .tied = true}));
  }
  throw std::invalid_argument("no network " + name);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        const torch::nn::Module& module) {
  if (name == "momentum") {
    return std::make_unique<torch::optim::SGD>(module.parameters(),
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  if (name == "adamw") {
    return std::make_unique<torch::optim::AdamW>(
        module.parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  }
  throw std::invalid_argument("no optimizer " + name);
}

Network load_network(const std::string& name, const TensorMap& given, const std::string& file) {
  Network network = make_network(name);
  TensorMap weights;
  const std::string prefix = name + ".model.";
  for (const auto& [key, tensor] : given) {
    if (key.starts_with(prefix)) weights[key.substr(prefix.size())] = tensor;
  }
  trireme::checkpoint::load_module_tensors(weights, *network.module, file);
  return network;
}

// Returns the losses of all ranks.
torch::Tensor train(const Network& network, torch::optim::Optimizer& optimizer, int stage,
                    const torch::Tensor& inputs, const torch::Tensor& targets,
                    const trireme::comm::Group& group) {
  trireme::Parallelized parallelized = trireme::parallelize(
      *network.module, {.bucket_bytes = 16384, .first_bucket_bytes = 4096, .zero_level = stage},
      group);
  parallelized.shard(optimizer);
  const std::int64_t steps = inputs.size(0);
  const torch::Tensor own = torch::empty({1, steps});
  for (std::int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const torch::Tensor logits = network.forward(inputs[step][group.rank()]);
    const torch::Tensor loss =
        torch::cross_entropy_loss(logits.flatten(0, -2), targets[step][group.rank()].flatten());
    loss.backward();
    optimizer.step();
    own[0][step].copy_(loss.detach());
  }
  const torch::Tensor all = torch::empty({group.size(), steps});
  trireme::comm::all_gather(all, own, group);
  return all.t();
}

void train_all(const std::string& in, const std::string& out) {
  torch::set_num_threads(1);
  const trireme::World world = trireme::init();
  const TensorMap given = trireme::checkpoint::read_safetensors(in).tensors;
  TensorMap losses;
  for (const std::string name : {"mlp", "gpt"}) {
    for (const std::string optimizer_name : {"momentum", "adamw"}) {
      for (int stage = 0; stage <= trireme::test::kHighestZeroLevel; ++stage) {
        const Network network = load_network(name, given, in);
        const auto optimizer = make_optimizer(optimizer_name, *network.module);
        losses[name + "." + optimizer_name + ".stage" + std::to_string(stage)] =
            train(network, *optimizer, stage, given.at(name + ".inputs"),
                  given.at(name + ".targets"), world.group)
                .contiguous();
      }
    }
  }
  if (world.is_first()) trireme::checkpoint::write_safetensors(out, losses);
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 3) {
    std::fputs("usage: data_parallel_parity <in> <out>\n", stderr);
    return 2;
  }
  train_all(arguments[1], arguments[2]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
