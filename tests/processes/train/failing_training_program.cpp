// SPDX-License-Identifier: Apache-2.0
// Trains a small network; rank 1 fails in the third step. Prints what each rank learns of it, and
// trains on where the group is still alive.
//
//   failing_training_program data|forward|backward <ZeRO level of the plan>
//       [<ranks along pipe> throw|stop|die]
#include <trireme/base/error.h>
#include <trireme/comm/world.h>
#include <trireme/data/data_loader.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/model.h>

#include <torch/torch.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

struct Arguments {
  std::string place;
  int zero_level = 0;
  int along_pipe = 1;
  std::string failure = "throw";
};

// One line, so that those of several ranks do not mix.
void say(int rank, const std::string& what, const std::string& message) {
  std::printf("rank %d: %s: %s\n", rank, what.c_str(),
              message.substr(0, message.find('\n')).c_str());
  std::fflush(stdout);
}

void fail(const std::string& failure) {
  if (failure == "stop") std::this_thread::sleep_for(std::chrono::hours(1));
  if (failure == "die") std::raise(SIGKILL);
  throw std::runtime_error("mine");
}

trireme::Plan plan_of(const Arguments& arguments, int ranks) {
  trireme::Plan plan{.zero_level = arguments.zero_level};
  if (arguments.along_pipe == 1) return plan;
  plan.mesh = {{"data", ranks / arguments.along_pipe}, {"pipe", arguments.along_pipe}};
  plan.stages = {{"0", 0}, {"2", 1}};
  return plan;
}

// Returns the exit code.
int train(const Arguments& arguments) {
  const trireme::World world = trireme::init();
  // The others are to say what they learn before the launcher ends them.
  if (world.rank != 1) std::signal(SIGTERM, SIG_IGN);
  torch::manual_seed(1);
  const torch::Tensor features = torch::randn({48, 4});
  torch::nn::Sequential network(torch::nn::Linear(4, 64), torch::nn::ReLU(),
                                torch::nn::Linear(64, 3));
  torch::optim::SGD optimizer(network->parameters(), 0.1);
  bool is_now = false;
  const auto fail_at = [&](const std::string& here) {
    if (is_now && here == arguments.place) fail(arguments.failure);
  };
  for (torch::Tensor& parameter : network->parameters()) {
    parameter.register_hook([&](const torch::Tensor& /*gradient*/) { fail_at("backward"); });
  }
  const trireme::Plan plan = plan_of(arguments, world.size);
  const trireme::DataPart part = trireme::data_part(plan, world.group);
  trireme::data::DataLoader data(trireme::data::tensors(
      {{"features", features}, {"label", features.narrow(1, 0, 3).argmax(1)}}));
  data.shard({.index = part.index, .count = part.count}).batch(4);
  data.map("features", [&](at::Tensor sample) {
    fail_at("data");
    return sample;
  });
  trireme::Model model(network,
                       [&](const at::Tensor& output, const at::Tensor& target) {
                         fail_at("forward");
                         return trireme::CrossEntropy()(output, target);
                       },
                       optimizer, {.group = world.group, .plan = plan});
  trireme::LambdaCallback clock({.step_begin = [&](const trireme::StepContext& step) {
    is_now = world.rank == 1 && step.global_step == 3;
  }});
  try {
    model.train(1, data, {clock});
  } catch (const trireme::TrainingError& error) {
    say(world.rank, "TrainingError", error.what());
    is_now = false;
    model.train(1, data);
    say(world.rank, "trained on", std::to_string(model.progress().global_step));
  } catch (const trireme::CommError& error) {
    say(world.rank, "CommError", error.what());
    return 1;
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 3 && count != 5) throw std::invalid_argument("give a place and a ZeRO level");
  Arguments parsed{.place = arguments[1], .zero_level = std::stoi(arguments[2])};
  if (count == 5) {
    parsed.along_pipe = std::stoi(arguments[3]);
    parsed.failure = arguments[4];
  }
  return train(parsed);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
