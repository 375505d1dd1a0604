// SPDX-License-Identifier: Apache-2.0
// The command line of the example.
#pragma once

#include "examples/training.h"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace examples {

enum class Network { kResNet50, kResNet20 };
enum class Rates { kConstant, kCosine };

struct Options : PlanOptions {
  std::filesystem::path folder;
  std::int64_t synthetic = 0;
  Network network = Network::kResNet50;
  std::int64_t epochs = 10;
  std::int64_t batch = 32;
  std::int64_t steps = 0;
  std::int64_t repeat = 1;
  std::int64_t image_size = 224;
  std::int64_t shuffle_buffer = 0;
  double learning_rate = 0.01;
  Rates schedule = Rates::kConstant;
  std::int64_t warm_up = 0;
  std::int64_t every_steps = 1;
  std::filesystem::path run;
  bool resume = false;
  std::filesystem::path evaluate;
};

inline void add_data(CLI::App& app, Options& options) {
  auto* folder = app.add_option(
      "--data", options.folder,
      "Folder with data_batch_*.bin; `trireme data fashion-mnist-to-cifar10` makes one");
  auto* synthetic = app.add_option("--synthetic", options.synthetic,
                                   "Learn from so many made-up pictures instead of --data");
  synthetic->check(CLI::Range(1, 1 << 30))->excludes(folder);
  app.add_option("--batch", options.batch, "Images of each rank in a step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Steps in an epoch at most; 0 for all images")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--repeat", options.repeat, "Passes over the images in an epoch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--image-size", options.image_size, "Side that images are resized to")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--shuffle-buffer", options.shuffle_buffer,
                 "Shuffle within a window of so many images; 0 for all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

inline void add_training(CLI::App& app, Options& options) {
  const std::map<std::string, Network> networks = {{"resnet50", Network::kResNet50},
                                                   {"resnet20", Network::kResNet20}};
  const std::map<std::string, Rates> schedules = {{"constant", Rates::kConstant},
                                                  {"cosine", Rates::kCosine}};
  app.add_option("--network", options.network, "resnet50, or resnet20, which is small")
      ->transform(CLI::CheckedTransformer(networks));
  app.add_option("--epochs", options.epochs, "Passes over the training images")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "The highest")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--schedule", options.schedule, "constant, or cosine: down to nothing")
      ->transform(CLI::CheckedTransformer(schedules));
  app.add_option("--warm-up", options.warm_up, "Epochs that lead up to the rate")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
}

inline void add_records(CLI::App& app, Options& options) {
  app.add_option("--every-steps", options.every_steps, "Prints the loss of every n-th step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  auto* run = app.add_option("--run", options.run,
                             "Folder for checkpoints (the last three and the best) and records");
  app.add_flag("--resume", options.resume, "Go on from the newest checkpoint there")->needs(run);
  app.add_option("--evaluate", options.evaluate, "Only test that checkpoint");
}

/// Fills the options; returns the program's exit code where it is to end at once.
inline std::optional<int> read_options(int argc, char** argv, Options& options) {
  CLI::App app("Trains ResNet-50 on CIFAR-10 over one or more processes");
  add_data(app, options);
  add_training(app, options);
  add_records(app, options);
  add_options(app, options);
  try {
    app.parse(argc, argv);
    if (options.folder.empty() && options.synthetic == 0) {
      throw CLI::RequiredError("--data or --synthetic");
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return std::nullopt;
}

}  // namespace examples
