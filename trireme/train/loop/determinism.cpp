// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/loop/determinism.h>

#include <trireme/base/error.h>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <mutex>

namespace trireme::detail {
namespace {

struct Settings {
  bool algorithms = false;
  bool warn_only = false;
  bool cudnn = false;
  bool cudnn_benchmark = false;
  bool mkldnn = false;
};

struct Shared {
  std::mutex mutex;    // guards the others
  int num_living = 0;  // DeterministicAlgorithms
  Settings before;
};

Shared& shared() {
  static Shared the_one;
  return the_one;
}

void apply(const Settings& settings) {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(settings.algorithms, settings.warn_only);
  context.setDeterministicCuDNN(settings.cudnn);
  context.setBenchmarkCuDNN(settings.cudnn_benchmark);
  context.setDeterministicMkldnn(settings.mkldnn);
}

// splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014). Turns
// neighbouring numbers into very different ones, also in the lower half. LibTorch's generator on
// the CPU only uses that half.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31U);
}

std::map<std::string, at::Generator> generators(at::Device device) {
  at::Context& context = at::globalContext();
  std::map<std::string, at::Generator> all = {{"random.cpu", context.defaultGenerator(at::kCPU)}};
  if (!device.is_cpu()) {
    all.emplace("random." + c10::DeviceTypeName(device.type(), /*lower_case=*/true),
                context.defaultGenerator(device));
  }
  return all;
}

}  // namespace

DeterministicAlgorithms::DeterministicAlgorithms() {
  const std::lock_guard lock(shared().mutex);
  if (shared().num_living++ > 0) return;
  const at::Context& context = at::globalContext();
  shared().before = {.algorithms = context.deterministicAlgorithms(),
                     .warn_only = context.deterministicAlgorithmsWarnOnly(),
                     .cudnn = context.deterministicCuDNN(),
                     .cudnn_benchmark = context.benchmarkCuDNN(),
                     .mkldnn = context.deterministicMkldnn()};
  apply({.algorithms = true, .cudnn = true, .mkldnn = true});
}

DeterministicAlgorithms::~DeterministicAlgorithms() {
  const std::lock_guard lock(shared().mutex);
  if (--shared().num_living == 0) apply(shared().before);
}

void seed_step(std::uint64_t seed, std::int64_t global_step, int rank) {
  const auto step = static_cast<std::uint64_t>(global_step);
  at::manual_seed(mix(mix(mix(seed) + step) + static_cast<std::uint64_t>(rank)));
}

std::map<std::string, std::string> random_streams(at::Device device) {
  std::map<std::string, std::string> streams;
  for (auto& [name, generator] : generators(device)) {
    const std::lock_guard lock(generator.mutex());
    const at::Tensor state = generator.get_state();
    streams[name].assign(static_cast<const char*>(state.const_data_ptr()),
                         static_cast<std::size_t>(state.numel()));
  }
  return streams;
}

void set_random_streams(const std::map<std::string, std::string>& streams, at::Device device) {
  for (auto& [name, generator] : generators(device)) {
    const auto found = streams.find(name);
    if (found == streams.end()) continue;
    const auto size = static_cast<std::int64_t>(found->second.size());
    const at::Tensor state = at::empty({size}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), found->second.data(), found->second.size());
    const std::lock_guard lock(generator.mutex());
    try {
      generator.set_state(state);
    } catch (const c10::Error& error) {
      throw CheckpointError(join_message("LibTorch refuses the state of its generator ", name, ", ",
                                         size, " bytes: ", error.what_without_backtrace()),
                            "it was saved by another version of LibTorch; seed it anew");
    }
  }
}

}  // namespace trireme::detail
