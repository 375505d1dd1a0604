// SPDX-License-Identifier: Apache-2.0
// Trains a small vision transformer on the images of Fashion-MNIST, or on made-up pictures, over as
// many processes as it is started with, and tests it after each epoch.
#include "examples/images.h"
#include "examples/option_checks.h"
#include "examples/training.h"
#include <models/vit.h>
#include <trireme/report/number.h>
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <iostream>

namespace data = trireme::data;

struct Options : examples::TrainingOptions {
  std::string folder = "/usr/share/datasets/fashion-mnist";
  std::int64_t synthetic = 0;
  std::int64_t limit = 0;
  std::int64_t patch = 4;
  std::int64_t hidden = 64;
  std::int64_t layers = 4;
  std::int64_t heads = 4;
};

void add_options(CLI::App& app, Options& options) {
  add_options(app, static_cast<examples::TrainingOptions&>(options));
  app.add_option("--data", options.folder, "Folder with the four files of the data set")
      ->capture_default_str();
  examples::add_number(app, "--synthetic", options.synthetic,
                       "Learn from so many made-up pictures instead of --data");
  examples::add_number(app, "--limit", options.limit, "Use only the first images of both sets");
  examples::add_number(app, "--patch", options.patch, "Side of the patches of an image");
  examples::add_number(app, "--hidden", options.hidden, "Width of the network");
  examples::add_number(app, "--layers", options.layers, "Depth of the network");
  examples::add_number(app, "--heads", options.heads, "Heads of attention");
}

data::DataLoader images(const Options& options, data::Split split) {
  if (options.synthetic == 0) {
    return examples::fashion_images(options.folder, split, options.limit);
  }
  const bool is_training = split == data::Split::kTrain;
  data::DataLoader loader(examples::pictures(options.synthetic, is_training ? 1 : 2));
  return loader.map("image", data::rescale(1 / 255.0))
      .map("image", data::normalize({0.5, 0.5, 0.5}, {0.25, 0.25, 0.25}));
}

void run(Options options) {
  const bool is_synthetic = options.synthetic > 0;
  const std::int64_t side = is_synthetic ? 32 : 28;
  examples::check_divides({"--patch", options.patch}, {"the side of the images", side});
  examples::check_divides({"--heads", options.heads}, {"--hidden", options.hidden});
  const auto world = trireme::init();
  torch::manual_seed(options.seed);
  models::ViT network(models::ViTOptions{.image_size = side,
                                         .patch_size = options.patch,
                                         .channels = is_synthetic ? 3 : 1,
                                         .hidden = options.hidden,
                                         .layers = options.layers,
                                         .heads = options.heads,
                                         .feed_forward = 4 * options.hidden,
                                         .classes = 10});
  torch::optim::AdamW optimizer(network->parameters(), options.learning_rate);
  if (!options.run.empty()) {
    const auto loss = [&](const data::Batch& batch) {
      return trireme::CrossEntropy()(network(batch["image"]), batch["label"]);
    };
    options.flops_per_sample =
        examples::flops_per_sample(*network, loss, images(options, data::Split::kTrain));
  }
  const trireme::Plan plan = examples::plan_for(options, *network, world.group);
  trireme::Model model(
      network, trireme::CrossEntropy(), optimizer,
      {.group = world.group, .plan = plan, .clip_norm = 1.0, .deterministic = options.seed});
  const auto training = examples::training_batches(
      images(options, data::Split::kTrain).shuffle(options.seed), model, options.batch);
  const auto test =
      examples::evaluation_batches(images(options, data::Split::kTest), model, options.batch);

  const trireme::Evaluation result = examples::train(model, training, test, options);
  if (world.is_first()) {
    std::cout << "test loss " << result.loss << ", accuracy "
              << trireme::report::fixed(result.accuracy.value_or(0) * 100, 2) << " % of "
              << trireme::report::with_thousands(result.samples) << " images" << std::endl;
  }
}

int main(int argc, char** argv) {
  Options options;
  options.name = "vit";
  options.epochs = 3;
  options.batch = 64;
  CLI::App app("Trains a small vision transformer over one or more processes");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::cerr << "vit: " << trireme::message_of(error) << '\n';
    return 1;
  }
  return 0;
}
