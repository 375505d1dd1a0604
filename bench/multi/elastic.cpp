// SPDX-License-Identifier: Apache-2.0
// Trains an MLP on random data with Model. Rank 1 kills or stops itself once, and the ranks that
// are started again print how long it took until they ran and until a step was finished
// (bench/cases/elastic.py). bench/peers/elastic.py is the same with PyTorch's launcher.
#include <trireme/checkpoint/recovery.h>
#include <trireme/comm/world.h>
#include <trireme/data/data_loader.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/losses.h>
#include <trireme/train/model.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

namespace {

struct Options {
  std::string fault = "none";
  std::string stamp;
  std::int64_t width = 1024;
  std::int64_t steps = 60;
  std::int64_t fault_step = 40;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Trains an MLP of which rank 1 fails once.");
  app.add_option("--fault", options.fault, "none, kill or stop");
  app.add_option("--stamp", options.stamp, "a file for the time of the fault");
  app.add_option("--width", options.width, "features of each layer");
  app.add_option("--steps", options.steps, "steps of the training");
  app.add_option("--fault-step", options.fault_step, "the step before which rank 1 fails");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void fail(const Options& options) {
  std::ofstream(options.stamp) << std::fixed << std::setprecision(6) << now();
  std::raise(options.fault == "kill" ? SIGKILL : SIGSTOP);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void train(const Options& options, double began) {
  const trireme::World world = trireme::init();
  const int attempt = trireme::checkpoint::restart_count();
  torch::manual_seed(1);
  torch::nn::Sequential network;
  for (int layer = 0; layer < 4; ++layer) {
    network->push_back(torch::nn::Linear(options.width, options.width));
    network->push_back(torch::nn::ReLU());
  }
  torch::optim::Adam optimizer(network->parameters(), 1e-3);
  constexpr std::int64_t kRows = 32;
  const std::int64_t rows = kRows * world.size * options.steps;
  trireme::data::DataLoader data(
      trireme::data::tensors({{"input", torch::randn({rows, options.width})},
                              {"target", torch::zeros({rows, options.width})}}));
  data.batch(kRows);
  trireme::Model model(network, trireme::MeanSquaredError(), optimizer, {.group = world.group});
  double finished = 0;
  std::int64_t first = 0;
  std::vector<double> seconds;
  trireme::LambdaCallback watch(
      {.step_begin =
           [&](const trireme::StepContext& step) {
             if (options.fault != "none" && attempt == 0 && world.rank == 1 &&
                 step.global_step == options.fault_step) {
               fail(options);
             }
           },
       .step_end =
           [&](const trireme::StepEndContext& step) {
             const double time = now();
             if (first == 0) {
               first = step.global_step;
             } else {
               seconds.push_back(time - finished);
             }
             finished = time;
             if (first == step.global_step && attempt > 0 && world.is_first()) {
               double fault = 0;
               std::ifstream(options.stamp) >> fault;
               std::cout << std::fixed << std::setprecision(6) << R"({"restart_time": )"
                         << began - fault << R"(, "resume_time": )" << time - fault
                         << R"(, "lost_steps": )" << options.fault_step - first << "}\n";
             }
           }});
  model.train(1, data, {watch});
  if (options.fault == "none" && world.is_first()) {
    std::cout << R"({"step_time": )" << median(seconds) << R"(, "mean_step_time": )"
              << std::accumulate(seconds.begin(), seconds.end(), 0.0) /
                     static_cast<double>(seconds.size())
              << "}\n";
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const double began = now();
  train(parse(argc, argv), began);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
