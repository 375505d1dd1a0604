// SPDX-License-Identifier: Apache-2.0
// Trains a small network; rank 1 fails in the third step. Prints what each rank learns of it, and
// trains on where the group is still alive.
//
//   failing_training_program data|forward <stage of the plan>
#include <trireme/base/error.h>
#include <trireme/comm/world.h>
#include <trireme/data/pipeline.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/model.h>

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

namespace {

// One line, so that those of several ranks do not mix.
void say(int rank, const std::string& what, const std::string& message) {
  std::printf("rank %d: %s: %s\n", rank, what.c_str(),
              message.substr(0, message.find('\n')).c_str());
  std::fflush(stdout);
}

void train(const std::string& place, int stage) {
  const trireme::World world = trireme::init();
  torch::manual_seed(1);
  const torch::Tensor features = torch::randn({48, 4});
  torch::nn::Sequential network(torch::nn::Linear(4, 64), torch::nn::ReLU(),
                                torch::nn::Linear(64, 3));
  torch::optim::SGD optimizer(network->parameters(), 0.1);
  bool is_now = false;
  const auto fail_at = [&](const std::string& here) {
    if (is_now && here == place) throw std::runtime_error("mine");
  };
  trireme::data::Pipeline data(trireme::data::tensors(
      {{"features", features}, {"label", features.narrow(1, 0, 3).argmax(1)}}));
  data.shard({.index = world.rank, .count = world.size}).batch(4);
  data.map("features", [&](at::Tensor sample) {
    fail_at("data");
    return sample;
  });
  trireme::Model model(network,
                       [&](const at::Tensor& output, const at::Tensor& target) {
                         fail_at("forward");
                         return trireme::CrossEntropy()(output, target);
                       },
                       optimizer, {.group = world.group, .plan = {.zero_stage = stage}});
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
  }
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 3) throw std::invalid_argument("give a place and a stage");
  train(arguments[1], std::stoi(arguments[2]));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
