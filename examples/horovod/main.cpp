// SPDX-License-Identifier: Apache-2.0
// A program in Horovod's style: two models under one optimizer, the learning rate times the ranks,
// the steps divided by them, a checkpoint that rank 0 alone reads and writes.
#include "examples/report.h"
#include "examples/rings.h"
#include <trireme/base/exception_text.h>
#include <trireme/parallel/horovod.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <filesystem>

namespace hvd = trireme::hvd;

int run(const std::string& checkpoint) {
  hvd::init();
  const auto points = examples::part_of(examples::rings(256), hvd::rank(), hvd::size());

  torch::manual_seed(static_cast<std::uint64_t>(hvd::rank()));
  torch::nn::Sequential encoder(torch::nn::Linear(2, 32), torch::nn::ReLU());
  torch::nn::Linear classifier(32, 2);
  if (hvd::rank() == 0 && std::filesystem::exists(checkpoint + ".encoder")) {
    torch::load(encoder, checkpoint + ".encoder");
    torch::load(classifier, checkpoint + ".classifier");
  }

  auto parameters = hvd::named_parameters(*encoder, "encoder");
  for (auto& parameter : hvd::named_parameters(*classifier, "classifier"))
    parameters.push_back(parameter);
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, tensor] : parameters) tensors.push_back(tensor);

  torch::optim::SGD sgd(tensors, torch::optim::SGDOptions(0.05 * hvd::size()).momentum(0.9));
  hvd::DistributedOptimizer optimizer(sgd, parameters);
  hvd::broadcast_parameters(parameters, /*root_rank=*/0);
  hvd::broadcast_optimizer_state(sgd, /*root_rank=*/0);

  std::vector<double> losses;
  for (int step = 0; step < 200 / hvd::size(); ++step) {
    optimizer.zero_grad();
    const auto scores = classifier->forward(encoder->forward(points.places));
    const auto loss = torch::cross_entropy_loss(scores, points.labels);
    loss.backward();
    optimizer.step();
    losses.push_back(hvd::allreduce(loss).item<double>());  // the mean over the ranks
    if (hvd::rank() == 0 && step % 20 == 0)
      std::cout << "step " << step << ", loss " << losses.back() << std::endl;
  }
  if (hvd::rank() == 0 && !checkpoint.empty()) {
    torch::save(encoder, checkpoint + ".encoder");
    torch::save(classifier, checkpoint + ".classifier");
  }
  const int code = examples::report(tensors, losses, hvd::world());
  hvd::shutdown();
  return code;
}

int main(int argc, char** argv) {
  std::string checkpoint;
  CLI::App app("Trains two small models under one optimizer, in Horovod's style");
  app.add_option("--checkpoint", checkpoint, "Start of the names of two files to go on from");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(checkpoint);
  } catch (const std::exception& error) {
    std::cerr << "horovod: " << trireme::message_of(error) << '\n';
    return 1;
  }
}
