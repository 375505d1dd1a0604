// SPDX-License-Identifier: Apache-2.0
#include "data_command.h"
#include <trireme/data/files/convert_dataset.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/command_line.h>

#include <cstdint>
#include <iostream>
#include <limits>
#include <memory>
#include <string>

namespace trireme::apps {
namespace {

struct ConvertOptions {
  std::string from = "/usr/share/datasets/fashion-mnist";
  std::string to;
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
};

void convert(const ConvertOptions& options) {
  const data::Conversion written =
      data::fashion_mnist_to_cifar10(options.from, options.to, options.limit);
  std::cout << "wrote " << written.train << " training and " << written.test
            << " test images (32 x 32, 3 channels) to " << options.to << '\n';
}

}  // namespace

void add_data_command(CLI::App& app) {
  CLI::App* const data = app.add_subcommand("data", "Make and convert data sets");
  data->require_subcommand(1);

  const auto options = std::make_shared<ConvertOptions>();
  CLI::App* const command =
      data->add_subcommand("fashion-mnist-to-cifar10",
                           "Convert Fashion-MNIST to CIFAR-10's binary format (32 x 32 x 3)");
  command->add_option("--from", options->from, "Folder with Fashion-MNIST or MNIST, gzip or plain")
      ->capture_default_str();
  command
      ->add_option("--to", options->to,
                   "Folder for data_batch_1.bin to 5, test_batch.bin and batches.meta.txt")
      ->required();
  command->add_option("--limit", options->limit, "Take at most this many images of each split")
      ->check(integer_from(1))
      ->default_str("all");
  command->callback([options] { convert(*options); });
}

}  // namespace trireme::apps
