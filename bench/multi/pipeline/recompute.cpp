// SPDX-License-Identifier: Apache-2.0
// Times forward and backward of the blocks of a GPT, each of them kept or recomputed, and prints
// the median and the peak of memory (bench/cases/pipeline.py). bench/peers/recompute.py is the same
// with PyTorch's checkpoint.
#include <trireme/parallel/recompute.h>

#include <models/gpt.h>
#include <trireme/comm/world.h>

#include <CLI/CLI.hpp>
#include <bench/multi/beside.h>
#include <bench/multi/peak_memory.h>
#include <bench/multi/pipeline/weights.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <iostream>
#include <memory>
#include <vector>

namespace {

constexpr std::int64_t kRows = 4;
constexpr std::int64_t kSequence = 128;
constexpr std::int64_t kHidden = 256;

std::shared_ptr<torch::nn::SequentialImpl> gpt_blocks() {
  models::GPT model(models::GPTOptions{
      .vocabulary = 1, .sequence = kSequence, .hidden = kHidden, .layers = 8, .heads = 4});
  auto blocks =
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->named_children()["blocks"]);
  bench::fill(*blocks);
  return blocks;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Times forward and backward of the blocks of a GPT.");
  bool recomputes = false;
  int steps = 5;
  int warm_up = 3;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--recompute", recomputes, "every block in backward");
  app.add_option("--steps", steps, "steps that are timed, an odd number");
  app.add_option("--warm-up", warm_up, "steps before those");
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  const auto world = trireme::init();
  bench::PeakMemory memory;
  const auto blocks = gpt_blocks();
  torch::optim::SGD optimizer(blocks->parameters(), bench::kLearningRate);
  const auto features = torch::randn({kRows, kSequence, kHidden}, bench::numbers(0));
  const auto step = [&] {
    optimizer.zero_grad();
    torch::Tensor outputs = features.detach().requires_grad_();
    for (auto& block : *blocks) {
      auto run = [block](const torch::Tensor& inputs) mutable { return block.forward(inputs); };
      outputs = recomputes ? trireme::recompute(run, outputs) : run(outputs);
    }
    const auto loss = outputs.square().mean();
    loss.backward();
    optimizer.step();
    return loss.item<double>();
  };
  nlohmann::json record;
  for (int number = 0; number < warm_up; ++number) record["losses"].push_back(step());
  memory.end_stretch();
  std::vector<double> seconds;
  for (int number = 0; number < steps; ++number) seconds.push_back(bench::seconds_of(step, 1));
  record["step_time"] = bench::median(seconds);
  record["step_memory"] = memory.end_stretch();
  std::cout << record << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
