// SPDX-License-Identifier: Apache-2.0
// Goes on from the newest checkpoint and saves after each step, until one rank kills itself.
//
//   checkpoint_kill_program <folder> <rank to die> <microseconds after the first save> <async: 0,
//   1>
//
// Every value of the model and of the optimizer's state is the number of the step.
#include <trireme/checkpoint/async_saver.h>
#include <trireme/comm/world.h>
#include <trireme/parallel/sharded_state.h>

#include <torch/torch.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <thread>

namespace {

namespace checkpoint = trireme::checkpoint;

void run(const std::string& folder, int victim, std::int64_t microseconds, bool is_async) {
  const trireme::World world = trireme::init();
  torch::nn::Sequential net(torch::nn::Linear(200, 100), torch::nn::Linear(100, 3));
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0).momentum(1));
  auto parallel = trireme::parallelize(*net, {.zero_level = 3}, world.group);
  parallel.shard(sgd);
  net->forward(torch::zeros({1, 200})).sum().backward();
  sgd.step();
  checkpoint::SaveOptions options{.folder = folder, .prefix = "kill", .keep = 2};
  std::int64_t step = 0;
  if (const auto newest = checkpoint::latest(folder, "kill")) {
    step = trireme::load_checkpoint(*newest, parallel, *net, &sgd).step;
  }
  checkpoint::AsyncSaver saver(world.group);
  std::jthread killer;
  while (true) {
    ++step;
    {
      const torch::NoGradGuard no_grad;
      parallel.expect_parts_to_change();
      for (const auto& part : parallel.parts()) part.tensor.fill_(step);
    }
    checkpoint::State state{.epoch = 0, .step = step};
    const auto parts = trireme::parts_to_save(parallel, *net, &sgd, state);
    const torch::NoGradGuard no_grad;
    for (const auto& part : parts) {
      if (part.section == "optimizer") part.local.fill_(step);
    }
    if (is_async) {
      saver.save(options, parts, state);
    } else {
      checkpoint::save_parts(options, parts, state, world.group);
    }
    if (!killer.joinable() && world.rank == victim) {
      killer = std::jthread([microseconds] {
        std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
        std::raise(SIGKILL);
      });
    }
  }
}

}  // namespace

int main(int count, char** values) {
  const std::span arguments(values, static_cast<std::size_t>(count));
  try {
    run(arguments[1], std::stoi(arguments[2]), std::stoll(arguments[3]),
        std::string(arguments[4]) == "1");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
