// SPDX-License-Identifier: Apache-2.0
// Times a pipeline of images (bench/cases/data.py), or how long the steps of a ResNet-50 wait for
// it. bench/peers has the same pipelines for other libraries.
#include <models/resnet.h>
#include <trireme/data/cifar.h>
#include <trireme/data/data_loader.h>
#include <trireme/data/mnist.h>

#include <CLI/CLI.hpp>
#include <bench/multi/measured_time.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace {

namespace data = trireme::data;

struct Options {
  std::string pipeline = "cifar10";
  std::string folder;
  int workers = 1;
  double seconds = 4;
  bool check = false;
  int train_steps = 0;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times a pipeline of images.");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--pipeline", options.pipeline)
      ->check(CLI::IsMember({"cifar10", "fashion_mnist"}));
  app.add_option("--data", options.folder, "folder of the files")->required();
  app.add_option("--workers", options.workers, "threads that prepare batches");
  app.add_option("--seconds", options.seconds, "how long to measure");
  app.add_flag("--check", options.check,
               "sums of the first ten batches, without shuffling and what happens at random");
  app.add_option("--train", options.train_steps, "steps of a ResNet-50 that are timed instead");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

data::DataLoader cifar10(const Options& options) {
  data::DataLoader images(data::cifar10(options.folder, data::Split::kTrain));
  if (!options.check) {
    images.shuffle(1)
        .map("image", data::random_crop(32, 32, 4))
        .map("image", data::random_horizontal_flip());
  }
  return images.map("image", data::resize(224, 224))
      .map("image", data::rescale(1 / 255.0))
      .map("image", data::normalize({0.4914, 0.4822, 0.4465}, {0.2023, 0.1994, 0.2010}))
      .batch(32, data::LastBatch::kDrop)
      .prefetch(4, options.workers);
}

data::DataLoader fashion_mnist(const Options& options) {
  data::DataLoader images(data::mnist(options.folder, data::Split::kTrain));
  if (!options.check) images.shuffle(1);
  return images.map("image", data::normalize({72.94}, {90.02}))
      .batch(64, data::LastBatch::kDrop)
      .prefetch(4, options.workers);
}

nlohmann::json sums_of(const data::DataLoader& images) {
  std::vector<double> sums;
  std::vector<std::int64_t> labels;
  const auto stream = images.open(0);
  for (int number = 0; number < 10; ++number) {
    const auto batch = stream->next().value();
    sums.push_back(batch["image"].sum(torch::kDouble).item<double>());
    labels.push_back(batch["label"].sum().item<std::int64_t>());
  }
  return {{"sums", sums}, {"labels", labels}};
}

// Takes batches for so long, epoch after epoch, after a quarter of that to warm up.
nlohmann::json throughput_of(const data::DataLoader& images, double seconds) {
  std::int64_t epoch = 0;
  auto stream = images.open(epoch);
  const auto take = [&](double duration) {
    const bench::MeasuredTime time;
    std::int64_t samples = 0;
    while (time.elapsed() < duration) {
      const auto batch = stream->next();
      if (!batch) {
        stream = images.open(++epoch);
        continue;
      }
      samples += (*batch)["label"].size(0);
    }
    return nlohmann::json{
        {"samples", samples}, {"seconds", time.elapsed()}, {"core_seconds", time.used()}};
  };
  take(seconds / 4);
  return take(seconds);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The longest time that next() took in a training loop, and the median of whole steps. The first
// batch is not counted: nothing could be prepared before it.
nlohmann::json waiting_of(const data::DataLoader& images, int steps) {
  auto network = models::resnet50(/*classes=*/10);
  torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  std::vector<double> waits;
  std::vector<double> whole;
  const auto stream = images.open(0);
  for (int step = 0; step <= steps; ++step) {
    const bench::MeasuredTime time;
    const auto batch = stream->next().value();
    waits.push_back(time.elapsed());
    optimizer.zero_grad();
    torch::cross_entropy_loss(network(batch["image"]), batch["label"]).backward();
    optimizer.step();
    whole.push_back(time.elapsed());
  }
  waits.erase(waits.begin());
  whole.erase(whole.begin());
  return {{"wait", *std::ranges::max_element(waits)}, {"step", median(whole)}};
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  const auto images = options.pipeline == "cifar10" ? cifar10(options) : fashion_mnist(options);
  if (options.check) {
    std::cout << sums_of(images) << '\n';
  } else if (options.train_steps > 0) {
    std::cout << waiting_of(images, options.train_steps) << '\n';
  } else {
    std::cout << throughput_of(images, options.seconds) << '\n';
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
