// SPDX-License-Identifier: Apache-2.0
// Trains a small network with dropout until all epochs are done or the run is asked to leave, and
// prints the digest of what it has learnt.
//
//   leaving_program <folder> <epochs> [option value…]
//       --signal TERM|USR1 --rank <r> --step <n>   raises it there, once in this process
//       --again 1                                  raises SIGTERM a second time
//       --stuck 1                                  a save after the first never ends
//       --loop 1                                   a loop by hand in place of a Model
//       --resumes 1                                the program itself looks for a checkpoint
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/file_layer.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/leaving.h>
#include <trireme/comm/world.h>
#include <trireme/data/data_loader.h>
#include <trireme/parallel/data_parallel.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/model.h>

#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <map>
#include <span>
#include <string>

namespace {

namespace checkpoint = trireme::checkpoint;

using Options = std::map<std::string, std::string>;

// Files whose writing never ends once it is told so.
class StuckFiles final : public checkpoint::FileLayer {
 public:
  ssize_t write(int file, std::span<const std::byte> bytes, std::int64_t offset) override {
    while (is_stuck) ::pause();
    return FileLayer::write(file, bytes, offset);
  }
  bool is_stuck = false;
};

std::string option(const Options& options, const std::string& name) {
  const auto found = options.find(name);
  return found == options.end() ? std::string() : found->second;
}

// Asks this process to leave after a step, if the options say so.
void ask(const Options& options, int rank, std::int64_t step) {
  if (option(options, "--step") != std::to_string(step)) return;
  if (option(options, "--rank") != std::to_string(rank)) return;
  const int signal = option(options, "--signal") == "USR1" ? SIGUSR1 : SIGTERM;
  ::kill(::getpid(), signal);
  if (!option(options, "--again").empty()) {
    while (true) ::kill(::getpid(), SIGTERM);
  }
}

void print_digest(const torch::nn::Sequential& network, int rank, std::int64_t steps) {
  std::uint64_t digest = 14695981039346656037U;
  for (const at::Tensor& parameter : network->parameters()) {
    const at::Tensor bytes = parameter.detach().contiguous().view(at::kByte).flatten();
    for (std::int64_t i = 0; i < bytes.numel(); ++i) {
      digest = (digest ^ bytes.const_data_ptr<std::uint8_t>()[i]) * 1099511628211U;
    }
  }
  std::printf("rank %d: %lld steps, digest %016llx\n", rank, static_cast<long long>(steps),
              static_cast<unsigned long long>(digest));
  std::fflush(stdout);
}

// 48 rows in batches of 4 of a rank: 6 steps in an epoch with two ranks.
void train(const std::string& folder, std::int64_t epochs, const Options& options) {
  const trireme::World world = trireme::init();
  torch::manual_seed(static_cast<std::uint64_t>(world.rank) + 1);
  const torch::Tensor features = torch::arange(192).view({48, 4}).to(at::kFloat).sin();
  torch::nn::Sequential network(torch::nn::Linear(4, 32), torch::nn::Dropout(0.2),
                                torch::nn::Linear(32, 3));
  torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto data = trireme::data::DataLoader(trireme::data::tensors(
      {{"features", features}, {"label", features.narrow(1, 0, 3).argmax(1)}}));
  data.shuffle(3).batch(4);
  trireme::Model model(network, trireme::CrossEntropy(), optimizer, {.group = world.group});
  StuckFiles files;
  const checkpoint::SaveOptions save{.folder = folder, .prefix = "demo", .files = &files};
  trireme::Checkpoint saving({.save = save, .every_steps = 5, .every_epochs = 0});
  if (!option(options, "--resumes").empty()) {
    if (const auto newest = checkpoint::latest(folder, "demo")) model.resume(*newest);
  }
  trireme::LambdaCallback asking({.step_end = [&](const trireme::StepEndContext& step) {
    if (step.global_step == 6) files.is_stuck = !option(options, "--stuck").empty();
    ask(options, world.rank, step.global_step);
  }});
  model.train(epochs, data, {saving, asking});
  print_digest(network, world.rank, model.progress().global_step);
}

// The lines of the guide.
int loop(const std::string& folder, std::int64_t steps, const Options& options) {
  const trireme::World world = trireme::init();
  torch::manual_seed(1);
  torch::nn::Sequential network(torch::nn::Linear(4, 3));
  trireme::DataParallel parallel(*network, world.group);
  torch::optim::SGD optimizer(network->parameters(), 0.1);
  const checkpoint::SaveOptions save{.folder = folder, .prefix = "loop"};
  std::int64_t step = 0;
  if (const auto newest = checkpoint::latest(folder, "loop")) {
    step = checkpoint::load(*newest, *network, &optimizer).step;
  }
  trireme::Leaving leaving(world.group);
  while (step < steps) {
    optimizer.zero_grad();
    network->forward(at::full({2, 4}, static_cast<double>(step % 7 + world.rank)))
        .sin()
        .sum()
        .backward();
    optimizer.step();
    ask(options, world.rank, ++step);
    if (!leaving.is_requested()) continue;
    std::filesystem::path saved;
    if (world.is_first()) saved = checkpoint::save(save, *network, &optimizer, {.step = step});
    return leaving.finish(saved);
  }
  print_digest(network, world.rank, step);
  return 0;
}

}  // namespace

int main(int count, char** values) try {
  const std::span arguments(values, static_cast<std::size_t>(count));
  Options options;
  for (std::size_t i = 3; i + 1 < arguments.size(); i += 2)
    options[arguments[i]] = arguments[i + 1];
  const std::int64_t length = std::stoll(arguments[2]);
  if (!option(options, "--loop").empty()) return loop(arguments[1], length, options);
  train(arguments[1], length, options);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", trireme::message_of(error).c_str());
  return 1;
}
