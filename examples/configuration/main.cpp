// SPDX-License-Identifier: Apache-2.0
// Fits a line to noisy points, with settings from code, files and the command line.
#include <trireme/base/config/configuration.h>
#include <trireme/data/philox.h>
#include <trireme/plan/plan_config.h>
#include <trireme/train/monitors.h>
#include <trireme/train/writers.h>
#include <trireme/trireme.h>

#include <torch/torch.h>

#include <iostream>

struct Settings {
  std::int64_t epochs = 5;
  double learning_rate = 0.1;
  std::optional<double> clip_norm;
  std::filesystem::path folder = "run";
  trireme::Plan plan;

  void fields(trireme::config::Fields& fields) {
    fields.add("epochs", epochs, "passes over the data").at_least(1);
    fields.add("learning_rate", learning_rate, "step size of SGD").above(0);
    fields.add("clip_norm", clip_norm, "longest gradient").above(0);
    fields.add("folder", folder, "where the run leaves its files");
    fields.add("plan", plan, "How training is parallel.");
  }
};

std::vector<at::Tensor> point(std::int64_t index) {
  trireme::data::Random random(/*seed=*/1, /*pass=*/0, static_cast<std::uint64_t>(index), 0);
  const double x = random.uniform();
  return {torch::tensor({x}, torch::kFloat),
          torch::tensor({2 * x + 0.01 * random.normal()}, torch::kFloat)};
}

void train(const Settings& settings, const trireme::config::Configuration& configuration) {
  const auto world = trireme::init();
  if (world.is_first()) {
    std::filesystem::create_directories(settings.folder);
    configuration.save(settings.folder / "config.toml");
  }
  auto points =
      trireme::data::DataLoader(trireme::data::generator(256, {"x", "y"}, point)).batch(16);
  torch::nn::Linear line(1, 1);
  torch::optim::SGD optimizer(line->parameters(), torch::optim::SGDOptions(settings.learning_rate));
  trireme::Model model(
      line, trireme::MeanSquaredError(), optimizer,
      {.group = world.group, .plan = settings.plan, .clip_norm = settings.clip_norm});
  trireme::LossMonitor monitor(8);
  trireme::JsonlWriter events({.folder = settings.folder, .settings = configuration.to_texts()});
  model.train(settings.epochs, points, {monitor, events});
}

int main(int count, char** arguments) {
  try {
    Settings settings;
    trireme::config::Configuration configuration(settings);
    if (configuration.read_command_line(count, arguments)) train(settings, configuration);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "configuration: " << trireme::message_of(error) << '\n';
    return 1;
  }
}
