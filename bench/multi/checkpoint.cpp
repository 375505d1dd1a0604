// SPDX-License-Identifier: Apache-2.0
// Times saving and loading of checkpoints by all ranks, or what they are measured against, and
// prints the median (bench/cases/checkpoint.py). bench/peers/dcp.py is the same with
// torch.distributed.checkpoint.
#include <trireme/checkpoint/async_saver.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace checkpoint = trireme::checkpoint;
namespace fs = std::filesystem;

constexpr std::int64_t kTensorMegabytes = 16;
constexpr int kPlainSteps = 3;

struct Options {
  std::string what = "save";
  std::string folder;
  std::int64_t megabytes = 512;
  int times = 5;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times checkpoints.");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--what", options.what)
      ->check(CLI::IsMember({"save", "load", "stall", "steps", "steps_at_once", "memcpy", "disk"}));
  app.add_option("--folder", options.folder)->required();
  app.add_option("--megabytes", options.megabytes, "of each rank");
  app.add_option("--times", options.times, "an odd number");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

// This rank's half, or whatever part, of each of the tensors.
std::vector<checkpoint::TensorPart> make_parts(const Options& options,
                                               const trireme::World& world) {
  const std::int64_t count = std::max<std::int64_t>(options.megabytes / kTensorMegabytes, 1);
  const std::int64_t elements = (kTensorMegabytes << 20) / 4;
  std::vector<checkpoint::TensorPart> parts;
  for (std::int64_t i = 0; i < count; ++i) {
    parts.push_back({.section = "model",
                     .name = "tensor" + std::to_string(i),
                     .shape = {world.size, elements},
                     .slice = checkpoint::FlatRange{.begin = world.rank * elements,
                                                    .end = (world.rank + 1) * elements,
                                                    .order = {}},
                     .local = torch::randn({elements})});
  }
  return parts;
}

std::int64_t bytes_of(const std::vector<checkpoint::TensorPart>& parts) {
  std::int64_t bytes = 0;
  for (const auto& part : parts) bytes += static_cast<std::int64_t>(part.local.nbytes());
  return bytes;
}

// One file with as many bytes as all ranks have, one write after the other.
void write_plainly(const fs::path& file, const std::vector<checkpoint::TensorPart>& parts,
                   int ranks) {
  const int handle = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  bool is_good = handle >= 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& part : parts) {
      const auto bytes = static_cast<ssize_t>(part.local.nbytes());
      is_good =
          is_good && ::write(handle, part.local.const_data_ptr(), part.local.nbytes()) == bytes;
    }
  }
  is_good = is_good && ::fsync(handle) == 0;
  ::close(handle);
  if (!is_good) throw std::runtime_error("cannot write " + file.string());
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Seconds of `work`, which all ranks begin at once, the first time not counted; `after` is not
// timed.
double time_of(const Options& options, const trireme::World& world,
               const std::function<void()>& work, const std::function<void()>& after = {}) {
  std::vector<double> seconds;
  for (int i = 0; i <= options.times; ++i) {
    trireme::comm::barrier(world.group);
    const auto began = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (i > 0) seconds.push_back(took.count());
    if (after) after();
  }
  return median(seconds);
}

// The work of forward and backward of a network whose weights are the parts: three products for
// each.
class StepWork {
 public:
  explicit StepWork(const std::vector<checkpoint::TensorPart>& parts) {
    const auto side = static_cast<std::int64_t>(std::sqrt(parts.front().local.numel()));
    for (const auto& part : parts) {
      weights_.push_back(part.local.narrow(0, 0, side * side).view({side, side}));
    }
    rows_ = torch::randn({kRows, side});
    gradient_ = torch::empty({side, side});
  }

  void run() {
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& weight : weights_) {
      at::mm_out(result_, rows_, weight);
      at::mm_out(result_, rows_, weight.t());
      at::mm_out(gradient_, rows_.t(), result_);
    }
  }

 private:
  static constexpr std::int64_t kRows = 32;
  std::vector<at::Tensor> weights_;
  at::Tensor rows_;
  at::Tensor result_ = torch::empty({0});
  at::Tensor gradient_;
};

// Seconds that a step after an asynchronous save waits for it (`stall`), or seconds that all steps
// until the save is done take longer than as many without: the writing thread needs a processor,
// too. `steps_at_once` copies all tensors before the step.
double measure_steps(const Options& options, const trireme::World& world,
                     const checkpoint::SaveOptions& save,
                     const std::vector<checkpoint::TensorPart>& parts) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  const auto copying = options.what == "steps_at_once" ? checkpoint::Copying::kAtOnce
                                                       : checkpoint::Copying::kBeforeChange;
  checkpoint::AsyncSaver saver(world.group);
  StepWork work(parts);
  std::vector<double> seconds;
  for (int i = 0; i <= options.times; ++i) {
    trireme::comm::barrier(world.group);
    auto began = Clock::now();
    for (int step = 0; step < kPlainSteps; ++step) work.run();
    const Seconds plain = (Clock::now() - began) / kPlainSteps;
    trireme::comm::barrier(world.group);
    began = Clock::now();
    saver.save(save, parts, {.epoch = 0, .step = i + 1}, copying);
    Seconds waited = Clock::now() - began;
    int steps = 0;
    do {
      work.run();
      ++steps;
      const auto before = Clock::now();
      saver.before_change();
      waited += Clock::now() - before;
    } while (saver.is_busy());
    const Seconds longer = Clock::now() - began - steps * plain;
    if (i > 0) seconds.push_back((options.what == "stall" ? waited : longer).count());
    saver.finish();
  }
  return median(seconds);
}

double measure(const Options& options, const trireme::World& world) {
  const auto parts = make_parts(options, world);
  const checkpoint::SaveOptions save{.folder = options.folder, .prefix = "bench", .keep = 1};
  std::int64_t step = 0;
  const auto save_all = [&] {
    checkpoint::save_parts(save, parts, {.epoch = 0, .step = ++step}, world.group);
  };
  if (options.what == "save") return time_of(options, world, save_all);
  if (options.what == "load") {
    save_all();
    return time_of(options, world, [&] {
      checkpoint::Reader reader(*checkpoint::latest(save.folder, save.prefix));
      for (const auto& part : parts) reader.read(part.section, part.name, part.slice);
    });
  }
  if (options.what == "stall" || options.what.starts_with("steps")) {
    return measure_steps(options, world, save, parts);
  }
  if (options.what == "memcpy") {
    std::vector<char> copy(static_cast<std::size_t>(bytes_of(parts)));
    return time_of(options, world, [&] {
      char* target = copy.data();
      for (const auto& part : parts) {
        std::memcpy(target, part.local.const_data_ptr(), part.local.nbytes());
        target += part.local.nbytes();
      }
    });
  }
  return time_of(options, world, [&] {
    if (world.rank == 0) {
      fs::create_directories(options.folder);
      write_plainly(fs::path(options.folder) / "plain", parts, world.size);
    }
  });
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  const auto world = trireme::init();
  torch::manual_seed(static_cast<std::uint64_t>(world.rank));
  const double seconds = measure(options, world);
  trireme::comm::barrier(world.group);
  if (world.is_first()) {
    fs::remove_all(options.folder);
    std::cout << "{\"seconds\": " << seconds << "}\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
