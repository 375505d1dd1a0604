// SPDX-License-Identifier: Apache-2.0
// A small training that writes its run folder, for tensorboard_parity.py.
#include <trireme/data/data_loader.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/model.h>
#include <trireme/train/monitors.h>
#include <trireme/train/writers.h>

#include <torch/torch.h>

#include <cstdio>
#include <string>

namespace {

void train(const std::string& folder) {
  torch::manual_seed(1);
  const auto features = torch::randn({48, 4});
  trireme::data::DataLoader data(trireme::data::tensors(
      {{"features", features}, {"label", features.narrow(1, 0, 3).argmax(1)}}));
  data.batch(8);
  torch::nn::Linear network(4, 3);
  torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.1));
  trireme::Model model(network, trireme::CrossEntropy(), optimizer, {.clip_norm = 1});
  trireme::LearningRateMonitor rates;
  trireme::LambdaCallback large({.step_end = [](const trireme::StepEndContext& step) {
    step.run.log(std::string(300, 'x'), 1e30);  // lengths of more than one byte
  }});
  trireme::TensorBoardWriter scalars({.folder = folder});
  trireme::JsonlWriter records({.folder = folder});
  model.fit(data, data, {.epochs = 30, .callbacks = {rates, large, scalars, records}});
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 2) {
    std::fputs("usage: train_parity <folder>\n", stderr);
    return 2;
  }
  train(arguments[1]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
