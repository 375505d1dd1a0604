// SPDX-License-Identifier: Apache-2.0
// What each rank holds of a model of 20 million parameters that Adam trains, against the formula
// of docs/guide/training.md, within 5 %.
//
//   parallel_memory_program <ZeRO level of the plan> <ZeRO level of the formula>
//
// Counted is what the kernel gave this process: anonymous pages and, of shared memory, a page that
// n ranks have mapped as 1/n of a page, so that the ranks add up to what the machine gave. Held is
// what is there after a step, before zero_grad: parameters, gradients and the state of Adam; what
// was there before the model was made is taken off, activations of a batch of 4 are nothing. The
// peak of a step is higher and counted apart, because LibTorch's backward makes each gradient
// whole: it may not be above its own formula by more than 5 %.
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/parallel/parallelize.h>

#include <malloc.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

namespace {

using trireme::comm::ReduceOp;

constexpr std::int64_t kWidth = 1024;
constexpr int kLayers = 19;
constexpr std::int64_t kBucketBytes = 4LL << 20;  // one layer
constexpr double kTolerance = 0.05;
constexpr double kMegabyte = 1e6;

std::int64_t bytes_of(const std::string& file, const std::string& name) {
  std::ifstream lines("/proc/self/" + file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) << 10;
  }
  throw std::runtime_error("/proc/self/" + file + " has no " + name);
}

std::int64_t held_bytes() {
  return bytes_of("smaps_rollup", "Pss_Anon") + bytes_of("smaps_rollup", "Pss_Shmem");
}

// The kernel keeps the greatest sum of all resident pages; those of files, and the others' share
// of shared memory, are taken off.
std::int64_t peak_bytes() {
  return bytes_of("status", "VmHWM") - bytes_of("status", "RssFile") -
         bytes_of("status", "RssShmem") + bytes_of("smaps_rollup", "Pss_Shmem");
}

void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

torch::nn::Sequential make_network(int layers) {
  torch::nn::Sequential network;
  for (int layer = 0; layer < layers; ++layer) {
    network->push_back(torch::nn::Linear(kWidth, kWidth));
    network->push_back(torch::nn::Tanh());
  }
  return network;
}

void backward(torch::nn::Sequential& network) {
  network->forward(torch::rand({4, kWidth})).square().mean().backward();
}

// What kernels and the engine allocate once, whatever the model is.
void warm_up(const trireme::comm::Group& group) {
  torch::nn::Sequential network = make_network(1);
  torch::optim::Adam optimizer(network->parameters());
  backward(network);
  optimizer.step();
  trireme::comm::all_reduce(torch::zeros({kWidth, kWidth}), group);
}

// Bytes a rank keeps, of a model of `parameters` bytes.
double formula(int zero_level, double parameters, int ranks) {
  const double part = parameters / ranks;
  const double bucket = kBucketBytes;
  const double lent = 2 * bucket;  // in which gradients travel
  // In which parameters are whole.
  const double gathered = static_cast<double>(trireme::Plan{}.gathered_buckets) * bucket;
  switch (zero_level) {
    case 0:
      return parameters + parameters + 2 * parameters;
    case 1:
      return parameters + parameters + 2 * part;
    case 2:
      return parameters + part + lent + 2 * part;
    case 3:
      return part + part + lent + gathered + 2 * part;
    default:
      throw std::invalid_argument("no ZeRO level " + std::to_string(zero_level));
  }
}

// What is there beside that for a moment: the gradient of one layer, until it is in a bucket.
constexpr double kPassing = kBucketBytes;

double maximum_over(const trireme::comm::Group& group, double number) {
  const torch::Tensor all = torch::full({1}, number, torch::kDouble);
  trireme::comm::all_reduce(all, group, ReduceOp::kMaximum);
  return all.item<double>();
}

struct Measured {
  double parameters = 0;
  double held = 0;
  double peak = 0;
};

Measured measure(int zero_level, const trireme::comm::Group& group) {
  const std::int64_t before = held_bytes();
  torch::nn::Sequential network = make_network(kLayers);
  trireme::Parallelized parallelized = trireme::parallelize(
      *network,
      {.bucket_bytes = kBucketBytes, .first_bucket_bytes = kBucketBytes, .zero_level = zero_level},
      group);
  torch::optim::Adam optimizer(network->parameters());
  parallelized.shard(optimizer);
  Measured measured;
  for (const torch::Tensor& parameter : network->parameters())
    measured.parameters += static_cast<double>(parameter.nbytes());
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    trireme::comm::barrier(group);
    reset_peak();
    backward(network);
    optimizer.step();
  }
  trireme::comm::barrier(group);  // all ranks look at the same moment
  measured.held = static_cast<double>(held_bytes() - before);
  measured.peak = static_cast<double>(peak_bytes() - before);
  trireme::comm::barrier(group);
  return measured;
}

int compare(int zero_level, int level_of_formula) {
  // Every tensor of the model has pages of its own, which are given back when it goes.
  ::mallopt(M_MMAP_THRESHOLD, 64 << 10);
  torch::set_num_threads(1);
  const trireme::World world =
      trireme::init({.engine = {}, .timeout = {}, .tensor_memory = "libtorch"});
  warm_up(world.group);
  const Measured measured = measure(zero_level, world.group);
  const double held = formula(level_of_formula, measured.parameters, world.size);
  const double peak = held + kPassing;
  std::printf(
      "rank %d of %d, ZeRO level %d: held %.1f MB (formula %.1f), peak %.1f MB (at most %.1f)\n",
      world.rank, world.size, zero_level, measured.held / kMegabyte, held / kMegabyte,
      measured.peak / kMegabyte, peak / kMegabyte);
  const double off = maximum_over(world.group, std::abs(measured.held / held - 1));
  const double above = maximum_over(world.group, measured.peak / peak - 1);
  if (world.is_first()) {
    std::printf("held: off by %.1f %%; peak: above by %.1f %%\n", 100 * off, 100 * above);
  }
  // A rank that fails ends the others: the first alone does, after it has said why.
  return !world.is_first() || (off <= kTolerance && above <= kTolerance) ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 3) {
    std::fputs(
        "usage: parallel_memory_program <ZeRO level of the plan> <ZeRO level of the formula>\n",
        stderr);
    return 2;
  }
  return compare(std::stoi(arguments[1]), std::stoi(arguments[2]));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
