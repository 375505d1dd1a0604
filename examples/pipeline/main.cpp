// SPDX-License-Identifier: Apache-2.0
// A pipeline: a network, whose class knows nothing of it, is cut into stages, each on a rank of its
// own, and micro-batches go through them. Copies of the pipeline train on parts of the data.
#include <models/gpt.h>
#include <models/resnet.h>
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

constexpr std::int64_t kRows = 16;  // of all ranks together

struct Network {
  std::shared_ptr<torch::nn::Module> module;
  /// Of a micro-batch: its inputs, and the loss first among the results.
  std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)> forward;
  std::function<std::vector<torch::Tensor>(int step)> batch;
  /// With two ranks along pipe: where the second stage begins.
  std::vector<std::pair<std::string, int>> stages;
};

// Images whose brightest quarter is their class.
Network resnet() {
  auto net = models::ResNet(models::ResNetOptions{
      .stem = models::Stem::kSmall, .blocks = {1, 1, 1, 1}, .width = 8, .classes = 4});
  return {.module = net.ptr(),
          .forward = [net](const auto& in) mutable -> std::vector<torch::Tensor> {
            return {torch::cross_entropy_loss(net->forward(in[0]), in[1])};
          },
          .batch = [](int step) -> std::vector<torch::Tensor> {
            auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
            auto images = torch::rand({kRows, 3, 16, 16}, generator);
            const auto labels = torch::arange(kRows).remainder(4);
            for (std::int64_t row = 0; row < kRows; ++row) {
              const std::int64_t quarter = row % 4;
              images[row].narrow(1, quarter / 2 * 8, 8).narrow(2, quarter % 2 * 8, 8).add_(0.5);
            }
            return {images, labels};
          },
          .stages = {{"conv1", 0}, {"layer3", 1}}};
}

// Rows that count on by a step of their own: the next token follows from the two before.
Network gpt() {
  constexpr std::int64_t kVocabulary = 53;
  constexpr std::int64_t kSequence = 16;
  auto net = models::GPT(models::GPTOptions{.vocabulary = kVocabulary,
                                            .sequence = kSequence,
                                            .hidden = 64,
                                            .layers = 4,
                                            .heads = 4,
                                            .dropout = 0.1,
                                            .tied = true});
  return {.module = net.ptr(),
          .forward = [net](const auto& in) mutable -> std::vector<torch::Tensor> {
            return {torch::cross_entropy_loss(net->forward(in[0]).flatten(0, 1), in[1].flatten())};
          },
          .batch = [](int step) -> std::vector<torch::Tensor> {
            auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
            const auto starts = torch::randint(kVocabulary, {kRows, 1}, generator, torch::kInt64);
            const auto strides = torch::randint(1, 4, {kRows, 1}, generator, torch::kInt64);
            const auto rows =
                (starts + strides * torch::arange(kSequence + 1)).remainder(kVocabulary);
            return {rows.narrow(1, 0, kSequence), rows.narrow(1, 1, kSequence)};
          },
          .stages = {{"token_embedding", 0}, {"blocks.2", 1}}};
}

int run(const std::string& name, std::int64_t pipe, trireme::Plan plan, int steps,
        const std::string& picture) {
  const auto world = trireme::init();
  torch::manual_seed(1);
  const Network network = name == "gpt" ? gpt() : resnet();

  plan.mesh = {{"data", world.size / pipe}, {"pipe", pipe}};
  // By hand for two stages, in the order of execution; else of equal cost.
  const auto own = trireme::own_schedule(plan);
  const bool is_of_two =
      own ? own->num_stages() == 2 : plan.schedule != "interleaved" && plan.schedule != "zb-v";
  if (pipe == 2 && is_of_two) plan.stages = network.stages;
  trireme::TrainingStep pipeline(*network.module, network.forward, plan, world.group);
  torch::optim::AdamW optimizer(network.module->parameters(), 2e-3);

  const auto part = trireme::data_part(plan, world.group);
  double first = 0;
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<torch::Tensor> batch = network.batch(step);
    for (torch::Tensor& tensor : batch) {
      tensor = tensor.narrow(0, part.index * (kRows / part.count), kRows / part.count);
    }
    optimizer.zero_grad();
    loss = pipeline.step(batch).loss.item<double>();
    trireme::clip_by_global_norm(optimizer, 1.0, pipeline.sharing());
    optimizer.step();
    if (step == 0) first = loss;
    if (step == 0 && world.is_first()) {
      std::cout << pipeline.to_string();
      if (!picture.empty()) {
        const auto& graph = pipeline.graph();
        std::ofstream file(picture);
        file << trireme::graph::to_svg(graph, {.boundaries = pipeline.boundaries()});
        if (!file.flush()) throw std::runtime_error("cannot write the picture to " + picture);
      }
    }
    if (world.is_first() && (step + 1) % (steps / 4) == 0) {
      std::cout << "step " << step + 1 << ", loss " << loss << std::endl;
    }
  }
  const bool fell = loss < 0.5 * first;
  if (world.is_first()) {
    std::cout << "the loss " << (fell ? "fell" : "DID NOT FALL") << " from " << first << " to "
              << loss << std::endl;
  }
  return fell ? 0 : 1;
}

int main(int argc, char** argv) {
  std::string network = "resnet";
  trireme::Plan plan;
  plan.micro_batches = 4;
  std::int64_t pipe = 1;
  int steps = 100;
  std::string picture;
  CLI::App app("Trains a small residual network or GPT in stages");
  app.add_option("--network", network, "resnet or gpt")
      ->check(CLI::IsMember({"resnet", "gpt"}))
      ->capture_default_str();
  app.add_option("--pipe", pipe, "Ranks that the network is cut among; divides their number")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--schedule", plan.schedule,
                 "gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, or a file of a schedule")
      ->capture_default_str();
  app.add_option("--micro-batches", plan.micro_batches,
                 "Parts that a batch goes through the stages in")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--recompute", plan.recompute,
                 "Modules such as blocks.*, and operators such as aten::gelu, that backward runs "
                 "again");
  app.add_option("--activation-bytes", plan.activation_bytes,
                 "What a rank may keep for backward; the rest is computed again")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50));
  app.add_option("--steps", steps, "Steps to train")
      ->check(CLI::Range(4, 100000))
      ->capture_default_str();
  app.add_option("--picture", picture, "Where a picture of the network in its stages goes, as SVG");
  CLI11_PARSE(app, argc, argv);
  try {
    if (std::filesystem::is_regular_file(plan.schedule)) {
      plan.schedule = trireme::schedule::to_text(trireme::schedule::read_schedule(plan.schedule));
    }
    return run(network, pipe, plan, steps, picture);
  } catch (const std::exception& error) {
    std::cerr << "pipeline: " << trireme::message_of(error) << '\n';
    return 1;
  }
}
