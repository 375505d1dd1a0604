// SPDX-License-Identifier: Apache-2.0
// Finds a, b and c of z = a x^2 + b y^3 + c from 160 noisy points, over as many processes as it is
// started with, and checks that all of them end with the same parameters. The ranks divide the
// points among them or, with --whole, each train on all of them.
#include <trireme/data/dataset.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/monitors.h>
#include <trireme/trireme.h>

#include <ATen/CPUGeneratorImpl.h>
#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace data = trireme::data;

constexpr std::int64_t kPoints = 160;
constexpr double kA = 2;
constexpr double kB = 3;
constexpr double kC = 5;
constexpr double kTolerance = 0.05;

// The points in two columns: features [160, 2], which are x^2 and y^3, and z [160, 1]. A generator
// with a seed gives every rank the same ones.
std::shared_ptr<const data::Dataset> make_points() {
  at::Generator random = at::detail::createCPUGenerator(/*seed=*/1);
  const at::Tensor x = 2 * torch::rand({kPoints, 1}, random) - 1;
  const at::Tensor y = 2 * torch::rand({kPoints, 1}, random) - 1;
  const at::Tensor features = torch::cat({x.pow(2), y.pow(3)}, 1);
  const at::Tensor noise = 0.03 * torch::randn({kPoints, 1}, random);
  return data::tensors(
      {{"features", features},
       {"z", kA * features.slice(1, 0, 1) + kB * features.slice(1, 1) + kC + noise}});
}

// Whether every rank holds the same bits.
bool same_on_all_ranks(const at::Tensor& values, const trireme::comm::Group& group) {
  const at::Tensor all = torch::empty({group.size() * values.numel()});
  trireme::comm::all_gather(all, values, group);
  return all.view({group.size(), -1}).eq(values).all().item<bool>();
}

struct Options {
  bool whole = false;
  std::string checkpoints;
};

bool run(const Options& options) {
  const auto world = trireme::init();

  data::DataLoader points(make_points());
  points.batch(16).repeat(20).prefetch(4);

  torch::nn::Linear dense(2, 1);  // features [16, 2] to z [16, 1]
  for (at::Tensor& parameter : dense->parameters()) torch::nn::init::constant_(parameter, 0.02);
  // Ranks that divide the points take fewer steps, on larger batches: the learning rate grows with
  // them (Goyal et al., 2017).
  const double learning_rate = options.whole ? 0.01 : 0.01 * world.size;
  torch::optim::SGD momentum(dense->parameters(),
                             torch::optim::SGDOptions(learning_rate).momentum(0.6));

  if (world.is_first()) {
    const auto sample = points.open(0)->next();
    std::cout << "a batch: features " << (*sample)["features"].sizes() << ", z "
              << (*sample)["z"].sizes() << '\n';
  }

  trireme::Model model(dense, trireme::MeanSquaredError(), momentum,
                       {.group = world.group,
                        .input_column = "features",
                        .target_column = "z",
                        .shards_data = !options.whole});
  trireme::LossMonitor loss_monitor(100);
  trireme::TimeMonitor time_monitor;
  std::vector<std::reference_wrapper<trireme::Callback>> callbacks{loss_monitor, time_monitor};
  std::optional<trireme::Checkpoint> checkpoint;
  if (!options.checkpoints.empty()) {
    // Of the ten epochs the last three are kept.
    checkpoint.emplace(trireme::CheckpointOptions{
        .save = {.folder = options.checkpoints, .prefix = "regression", .keep = 3}});
    callbacks.emplace_back(*checkpoint);
  }
  model.train(10, points, callbacks);

  const torch::NoGradGuard no_gradients;
  const at::Tensor found = torch::cat({dense->weight.flatten(), dense->bias});
  const bool same = same_on_all_ranks(found, world.group);
  bool close = true;
  if (world.is_first())
    std::cout << world.size << (world.size == 1 ? " rank has " : " ranks have ")
              << (same ? "the same" : "DIFFERENT") << " parameters\n";
  for (const auto& [name, place, expected] :
       {std::tuple{"a", 0, kA}, std::tuple{"b", 1, kB}, std::tuple{"c", 2, kC}}) {
    const auto value = found[place].item<float>();
    close = close && std::abs(value - expected) <= kTolerance;
    if (world.is_first()) std::cout << name << " = " << value << " (expected " << expected << ")\n";
  }
  return same && close;
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Finds a, b and c of z = a x^2 + b y^3 + c from 160 noisy points.");
  app.add_flag("--whole", options.whole, "let every rank train on all points, not on its part");
  app.add_option("--checkpoints", options.checkpoints, "folder for a checkpoint of each epoch");
  CLI11_PARSE(app, argc, argv);
  try {
    if (run(options)) return 0;
    std::cerr << "linear_regression: the parameters are not what they should be\n";
  } catch (const std::exception& error) {
    std::cerr << "linear_regression: " << trireme::message_of(error) << '\n';
  }
  return 1;
}
