// SPDX-License-Identifier: Apache-2.0
// Trains a residual network (ResNet-20) on the 60,000 images of Fashion-MNIST, over as many
// processes as it is started with, and tests it on the other 10,000 after each epoch.
#include "examples/channels_last.h"
#include "examples/images.h"
#include <models/resnet.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/report/number.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/learning_rate.h>
#include <trireme/train/progress_bar_callback.h>
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <cmath>
#include <iostream>
#include <numbers>

namespace data = trireme::data;
using trireme::report::with_thousands;

struct Options {
  std::string folder = "/usr/share/datasets/fashion-mnist";
  std::int64_t epochs = 2;
  std::int64_t batch = 32;
  double learning_rate = 0.05;
  std::int64_t limit = 0;
  std::string checkpoint_folder;
  bool resume = false;
};

void add_options(CLI::App& app, Options& options) {
  app.add_option("--data", options.folder, "Folder with the four files of the data set")
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the training images")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "Images of each rank in a step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "Highest learning rate")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--limit", options.limit, "Use only the first images of both sets; 0 for all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  auto* checkpoint = app.add_option("--checkpoint", options.checkpoint_folder,
                                    "Save a checkpoint in this folder after each epoch");
  app.add_flag("--resume", options.resume, "Go on from the newest checkpoint")->needs(checkpoint);
}

// One cycle: up to the highest rate over the first fifth, then down to nothing along half a cosine.
double one_cycle(const trireme::StepContext& step, double highest) {
  const auto total = static_cast<double>(step.run.last_epoch * step.run.steps_in_epoch);
  const double done = static_cast<double>(step.global_step) / total;
  constexpr double kRising = 0.2;
  if (done < kRising) return highest * done / kRising;
  return highest * 0.5 * (1 + std::cos(std::numbers::pi * (done - kRising) / (1 - kRising)));
}

void run(const Options& options) {
  const auto world = trireme::init();
  at::globalContext().setFlushDenormal(true);
  torch::manual_seed(1);

  auto training = examples::fashion_images(options.folder, data::Split::kTrain, options.limit);
  training.batch(options.batch).prefetch(4);
  auto test = examples::fashion_images(options.folder, data::Split::kTest, options.limit);
  test.batch(100).prefetch(4);

  auto network = models::resnet20(/*classes=*/10, /*channels=*/1);
  examples::use_channels_last(*network);
  torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(options.learning_rate)
                                                         .momentum(0.9)
                                                         .nesterov(true)
                                                         .weight_decay(5e-4));
  trireme::Model model(network, trireme::CrossEntropy(), optimizer, {.group = world.group});

  trireme::ProgressBar progress("images");
  trireme::LearningRate schedule(optimizer, [&](const trireme::StepContext& step) {
    return one_cycle(step, options.learning_rate);
  });
  trireme::Callbacks callbacks{schedule, progress};
  const trireme::checkpoint::SaveOptions save{.folder = options.checkpoint_folder,
                                              .prefix = "fashion_mnist"};
  trireme::Checkpoint checkpoint({.save = save});
  if (!options.checkpoint_folder.empty()) callbacks.emplace_back(checkpoint);
  if (options.resume) {
    if (const auto newest = trireme::checkpoint::latest(save.folder, save.prefix)) {
      model.resume(*newest);
      if (world.is_first()) std::cout << "Going on from " << newest->string() << '\n';
    }
  }

  if (world.is_first()) {
    std::int64_t parameters = 0;
    for (const auto& parameter : network->parameters()) parameters += parameter.numel();
    std::cout << "Fashion-MNIST: ResNet-20 (" << with_thousands(parameters)
              << " parameters) learns from " << with_thousands(training.samples())
              << " images over " << world.size << (world.size == 1 ? " process" : " processes")
              << ", " << options.batch << " images each in a step\n"
              << std::flush;
  }
  model.train(options.epochs, training, callbacks, &test);

  const trireme::Evaluation result = model.evaluate(test);
  if (world.is_first()) {
    std::cout << "It recognises " << trireme::report::fixed(result.accuracy.value_or(0) * 100, 2)
              << " % of " << with_thousands(result.samples)
              << " test images that it has never seen.\n"
              << "Try next: more processes by 'build/release/bin/trireme run -n 4 -- "
                 "build/release/bin/fashion_mnist', a better network by --epochs 10 behind it, or "
                 "--checkpoint FOLDER and --resume to stop and go on.\n";
  }
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a residual network on Fashion-MNIST over one or more processes");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::cerr << "fashion_mnist: " << trireme::message_of(error) << '\n';
    return 1;
  }
  return 0;
}
