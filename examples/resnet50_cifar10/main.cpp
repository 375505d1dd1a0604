// SPDX-License-Identifier: Apache-2.0
// Trains ResNet-50 on CIFAR-10 in its binary version, with the usual preparation of the images,
// over as many processes as it is started with.
#include "examples/channels_last.h"
#include "examples/first_samples.h"
#include <models/resnet.h>
#include <trireme/data/cifar10.h>
#include <trireme/train/loss_monitor.h>
#include <trireme/train/time_monitor.h>
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <iostream>

namespace data = trireme::data;

struct Options {
  std::string folder;
  std::int64_t epochs = 10;
  std::int64_t batch = 32;
  std::int64_t steps = 0;
  std::int64_t image_size = 224;
};

void add_options(CLI::App& app, Options& options) {
  app.add_option("--data", options.folder,
                 "Folder with data_batch_*.bin; `trireme data fashion-mnist-to-cifar10` makes one")
      ->required();
  app.add_option("--epochs", options.epochs, "Passes over the training images")
      ->capture_default_str();
  app.add_option("--batch", options.batch, "Images of each rank in a step")->capture_default_str();
  app.add_option("--steps", options.steps, "Steps in an epoch at most; 0 for all images")
      ->capture_default_str();
  app.add_option("--image-size", options.image_size, "Side that images are resized to")
      ->capture_default_str();
}

void run(const Options& options) {
  const auto world = trireme::init();
  torch::manual_seed(1);

  const auto all = data::cifar10(options.folder, data::Split::kTrain);
  data::Pipeline images(examples::first_samples(all, options.steps * options.batch * world.size));
  images.shuffle(1)
      .shard({.index = world.rank, .count = world.size})
      .map("image", data::random_crop(32, 32, 4))
      .map("image", data::random_horizontal_flip())
      .map("image", data::resize(options.image_size, options.image_size))
      .map("image", data::rescale(1 / 255.0))
      .map("image", data::normalize({0.4914, 0.4822, 0.4465}, {0.2023, 0.1994, 0.2010}))
      .map("label", data::type_cast(torch::kLong))
      .batch(options.batch, data::LastBatch::kDrop)
      .prefetch(4);

  auto network = models::resnet50(/*classes=*/10);
  examples::use_channels_last(*network);
  torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  trireme::Model model(network, trireme::CrossEntropy(), optimizer, {.group = world.group});
  trireme::LossMonitor loss_monitor;
  trireme::TimeMonitor time_monitor;
  model.train(options.epochs, images, {loss_monitor, time_monitor});
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains ResNet-50 on CIFAR-10 over one or more processes");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::cerr << "resnet50_cifar10: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
