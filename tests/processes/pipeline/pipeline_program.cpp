// SPDX-License-Identifier: Apache-2.0
// One rank of `trireme run`: trains a small network in stages, one on each rank along `pipe`.
//   pipeline_program <schedule> <none|throw|die|stop|token> <rank that fails>
//       [<ranks along data> <ZeRO level>]
// In the backward pass of the third micro-batch of the second step that rank throws, is killed, or
// stops; `token` is an input that the first stage refuses. Prints bits of the losses and of the
// network, and what a rank learns of the failure.
#include <trireme/base/error.h>
#include <trireme/comm/world.h>
#include <trireme/parallel/training_step.h>
#include <trireme/plan/plan.h>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::int64_t kWords = 11;
constexpr int kMicroBatches = 4;

// One line, so that those of several ranks do not mix.
void say(int rank, std::string_view what, std::string message) {
  std::ranges::replace(message, '\n', ' ');
  std::printf("rank %d: %.*s: %s\n", rank, static_cast<int>(what.size()), what.data(),
              message.c_str());
  std::fflush(stdout);
}

struct LanguageImpl : torch::nn::Module {
  LanguageImpl()
      : words(register_module("words", torch::nn::Embedding(kWords, 8))),
        up(register_module("up", torch::nn::Linear(8, 24))),
        down(register_module("down", torch::nn::Linear(24, 8))),
        head(register_module("head", torch::nn::Linear(8, kWords))) {}
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto x = words(tokens);
    const auto hidden = torch::dropout(torch::gelu(up(x)), 0.2, is_training());
    return head(x + down(hidden));
  }
  torch::nn::Embedding words;
  torch::nn::Linear up, down, head;
};
TORCH_MODULE(Language);

std::string bits_of(double value) {
  std::int64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return std::to_string(bits);
}

class Failure {
 public:
  Failure(std::string what, bool is_here) : what_(std::move(what)), is_here_(is_here) {}

  void begin_step(int step) {
    step_ = step;
    num_backward_ = 0;
  }

  // What the hook of a parameter does.
  void meet() {
    if (!is_here_ || step_ != 1 || ++num_backward_ != 3) return;
    if (what_ == "throw") throw std::runtime_error("mine");
    if (what_ == "die") std::raise(SIGKILL);
    if (what_ == "stop") std::this_thread::sleep_for(std::chrono::hours(1));
  }

 private:
  std::string what_;
  bool is_here_;
  int step_ = 0;
  int num_backward_ = 0;
};

struct Arguments {
  std::string schedule;
  std::string failure;
  int victim = 0;
  int along_data = 1;
  int zero_level = 0;
};

void train(const Arguments& arguments) {
  torch::set_num_threads(1);
  const trireme::World world = trireme::init();
  torch::manual_seed(3);
  Language network;
  const std::vector<std::string> names = {"words", "up", "down", "head"};
  const int num_stages = world.size / arguments.along_data;
  trireme::Plan plan{.mesh = {{"data", arguments.along_data}, {"pipe", num_stages}},
                     .schedule = arguments.schedule,
                     .micro_batches = kMicroBatches,
                     .zero_level = arguments.zero_level};
  for (int stage = 0; stage < num_stages; ++stage) {
    plan.stages.emplace_back(names[static_cast<std::size_t>(stage)], stage);
  }
  // The others are to say what they learn before the launcher ends them.
  if (world.rank != arguments.victim) std::signal(SIGTERM, SIG_IGN);
  Failure failure(arguments.failure, world.rank == arguments.victim);
  for (auto& parameter : network->parameters()) {
    if (parameter.dim() != 2) continue;
    parameter.register_hook([&](const torch::Tensor& /*gradient*/) { failure.meet(); });
  }
  trireme::TrainingStep pipeline(
      *network,
      [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        return {torch::cross_entropy_loss(network->forward(in[0]).flatten(0, 1), in[1].flatten())};
      },
      plan, world.group);
  torch::optim::AdamW optimizer(network->parameters(), 0.01);
  pipeline.shard(optimizer);
  for (int step = 0; step < 3; ++step) {
    failure.begin_step(step);
    const int salt = step + 3 + pipeline.data_group().rank();
    auto tokens = (torch::arange(7 * 6, torch::kLong) * salt).remainder(kWords).view({7, 6});
    const auto targets = (tokens * 2 + 1).remainder(kWords);
    if (arguments.failure == "token" && step == 1) tokens[4][2] = kWords;
    optimizer.zero_grad();
    const auto loss = pipeline.step({tokens, targets}).loss.item<double>();
    optimizer.step();
    if (world.is_first()) std::printf("loss %s\n", bits_of(loss).c_str());
  }
  pipeline.gather_parameters();
  if (!world.is_first()) return;
  for (const auto& parameter : network->parameters()) {
    std::printf("parameter %s\n",
                bits_of(parameter.to(torch::kDouble).square().sum().item<double>()).c_str());
  }
}

}  // namespace

int main(int count, char** arguments) {
  const char* const rank = std::getenv("RANK");
  const int own = rank == nullptr ? 0 : std::stoi(rank);
  try {
    if (count != 4 && count != 6) {
      throw std::invalid_argument("give a schedule, a failure and a rank, and two numbers");
    }
    train({.schedule = arguments[1],
           .failure = arguments[2],
           .victim = std::stoi(arguments[3]),
           .along_data = count == 6 ? std::stoi(arguments[4]) : 1,
           .zero_level = count == 6 ? std::stoi(arguments[5]) : 0});
    return 0;
  } catch (const trireme::CommError& error) {
    say(own, "CommError", error.what());
  } catch (const std::exception& error) {
    say(own, "error", error.what());
  }
  return 1;
}
