// SPDX-License-Identifier: Apache-2.0
// Trains a small network by a plan, fails as it is told to, and prints what it ends with.
//
//   restarted_training_program data|zero1|zero2|zero3|tensor|pipe|hybrid|loop [<fault>...]
//
// `loop` is a loop without Model, as docs/guide/recovery.md has it.
//
// A fault is <attempt>:<step>:<rank>:kill|throw|stop|exit|damage|wait|flip|nan. `flip` flips
// a bit of a parameter, and `nan` makes the loss of the rank infinite in this step.
#include <trireme/base/error.h>
#include <trireme/checkpoint/async_saver.h>
#include <trireme/checkpoint/recovery.h>
#include <trireme/comm/world.h>
#include <trireme/data/data_loader.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/sharded_state.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/model.h>

#include <torch/torch.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Fault {
  int attempt = 0;
  std::int64_t step = 0;
  int rank = 0;
  std::string what;
};

Fault fault_of(const std::string& text) {
  std::istringstream input(text);
  Fault fault;
  char colon = ':';
  input >> fault.attempt >> colon >> fault.step >> colon >> fault.rank >> colon >> fault.what;
  if (!input) throw std::invalid_argument("not a fault: " + text);
  return fault;
}

// Changes a byte in the largest file of each state that was kept.
void damage_states() {
  const auto folder = trireme::checkpoint::recovery_folder();
  if (!folder) throw std::runtime_error("the run has no recovery folder");
  for (const auto& state : std::filesystem::directory_iterator(*folder)) {
    std::filesystem::path largest;
    std::uintmax_t most = 0;
    for (const auto& file : std::filesystem::directory_iterator(state)) {
      if (file.file_size() <= most) continue;
      most = file.file_size();
      largest = file.path();
    }
    std::fstream bytes(largest, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(most - 1));
    bytes.put('\x55');
  }
}

// Flips a bit of a parameter on this rank, as a broken memory module does.
void flip_bit(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  *static_cast<std::uint32_t*>(module.parameters().back().data_ptr()) ^= 1U << 20U;
}

void commit(const Fault& fault) {
  if (fault.what == "damage") damage_states();
  if (fault.what == "kill" || fault.what == "damage") std::raise(SIGKILL);
  if (fault.what == "stop") std::raise(SIGSTOP);
  if (fault.what == "exit") std::_Exit(3);
  if (fault.what == "wait") {  // until somebody ends the process
    std::printf("waits in step %lld\n", static_cast<long long>(fault.step));
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::minutes(2));
  }
  throw std::runtime_error("a fault on purpose");
}

void commit_those_of(const std::vector<Fault>& faults, std::int64_t step, int rank,
                     const torch::nn::Module& module, bool& ruins_loss) {
  ruins_loss = false;
  for (const Fault& fault : faults) {
    if (fault.attempt == trireme::checkpoint::restart_count() && fault.step == step &&
        fault.rank == rank) {
      if (fault.what == "flip") {
        flip_bit(module);
      } else if (fault.what == "nan") {
        ruins_loss = true;
      } else {
        commit(fault);
      }
    }
  }
}

void print(std::int64_t first_step, std::uint64_t hash) {
  std::printf("first step %lld\nresult %016llx\n", static_cast<long long>(first_step),
              static_cast<unsigned long long>(hash));
}

trireme::Plan plan_of(const std::string& name, int ranks) {
  trireme::Plan plan;
  if (name == "data") return plan;
  if (name.starts_with("zero")) return {.zero_level = std::stoi(name.substr(4))};
  if (name == "tensor") {
    plan.mesh = {{"tensor", ranks}};
    plan.layouts = {{"0.weight", {{"tensor", trireme::Shard{0}}}},
                    {"0.bias", {{"tensor", trireme::Shard{0}}}},
                    {"3.weight", {{"tensor", trireme::Shard{1}}}}};
    return plan;
  }
  if (name == "pipe") {
    plan.mesh = {{"pipe", ranks}};
    plan.stages = {{"0", 0}, {"3", 1}};
    return plan;
  }
  if (name == "hybrid") {
    plan.mesh = {{"data", ranks / 2}, {"pipe", 2}};
    plan.stages = {{"0", 0}, {"3", 1}};
    plan.zero_level = 1;
    return plan;
  }
  throw std::invalid_argument("no plan " + name);
}

// FNV-1a over the bytes of all parameters. Collective.
std::uint64_t hash_of(const torch::nn::Module& module) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const torch::Tensor& parameter : module.parameters()) {
    const torch::Tensor values = trireme::full(parameter.detach()).contiguous();
    const auto* bytes = static_cast<const unsigned char*>(values.const_data_ptr());
    for (std::size_t i = 0; i < values.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3U;
  }
  return hash;
}

void train(const std::string& plan, const std::vector<Fault>& faults) {
  const trireme::World world = trireme::init();
  torch::manual_seed(1);
  const torch::Tensor features = torch::randn({96, 4});
  torch::nn::Sequential network(torch::nn::Linear(4, 64), torch::nn::ReLU(),
                                torch::nn::Dropout(0.2), torch::nn::Linear(64, 3));
  torch::optim::Adam optimizer(network->parameters(), 0.01);
  trireme::data::DataLoader data(trireme::data::tensors(
      {{"features", features}, {"label", features.narrow(1, 0, 3).argmax(1)}}));
  data.shuffle(96).batch(4);
  bool ruins_loss = false;
  const auto loss = [&](const torch::Tensor& output, const torch::Tensor& target) {
    const torch::Tensor value = trireme::CrossEntropy()(output, target);
    return ruins_loss ? value * std::numeric_limits<float>::infinity() : value;
  };
  trireme::Model model(
      network, loss, optimizer,
      {.group = world.group, .plan = plan_of(plan, world.size), .deterministic = 7});
  std::int64_t first = 0;
  trireme::LambdaCallback watch({.step_begin = [&](const trireme::StepContext& step) {
    if (first == 0) first = step.global_step;
    commit_those_of(faults, step.global_step, world.rank, *network, ruins_loss);
  }});
  model.train(1, data, {watch});
  model.train(2, data, {watch});
  model.gather_parameters();
  const std::uint64_t hash = hash_of(*network);
  if (world.rank != 0) return;
  print(first, hash);
}

void train_by_hand(const std::vector<Fault>& faults) {
  const trireme::World world = trireme::init();
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(4, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 3));
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  trireme::Parallelized parallelized = trireme::parallelize(*model, {.zero_level = 1}, world.group);
  parallelized.shard(optimizer);
  constexpr std::int64_t kSteps = 36;
  trireme::checkpoint::State state;
  const auto memory = trireme::checkpoint::recovery_folder();
  if (memory) {
    try {
      const auto newest = trireme::checkpoint::latest(*memory, "loop");
      if (newest) state = trireme::load_checkpoint(*newest, parallelized, *model, &optimizer);
    } catch (const trireme::CheckpointError& damaged) {
      std::fprintf(stderr, "begins anew: %s\n", damaged.what());
    }
  }
  const std::int64_t first = state.step + 1;
  trireme::checkpoint::AsyncSaver saver(world.group);
  for (std::int64_t step = first; step <= kSteps; ++step) {
    bool ruins_loss = false;  // which has no loss to compare here
    commit_those_of(faults, step, world.rank, *model, ruins_loss);
    torch::manual_seed(static_cast<std::uint64_t>(100 * step + world.rank));
    const torch::Tensor input = torch::randn({4, 4});
    optimizer.zero_grad();
    model->forward(input).square().mean().backward();
    optimizer.step();
    state.step = step;
    if (!memory || step % 3 != 0) continue;
    const auto parts = trireme::parts_to_save(parallelized, *model, &optimizer, state);
    saver.save({.folder = *memory, .prefix = "loop", .keep = 1}, parts, state);
  }
  saver.finish();
  const std::uint64_t hash = hash_of(*model);
  if (world.rank == 0) print(first, hash);
}

}  // namespace

int main(int count, char** arguments) try {
  if (count < 2) throw std::invalid_argument("give a plan");
  std::vector<Fault> faults;
  for (int i = 2; i < count; ++i) faults.push_back(fault_of(arguments[i]));
  const std::string plan = arguments[1];
  plan == "loop" ? train_by_hand(faults) : train(plan, faults);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
