// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/calibration/calibrate.h>

#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/cluster/units.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/consensus.h>
#include <trireme/predict/calibration/accelerator_samples.h>
#include <trireme/predict/calibration/link_samples.h>
#include <trireme/predict/calibration/operator_samples.h>
#include <trireme/predict/calibration/sample_networks.h>
#include <trireme/predict/calibration/stopwatch.h>

#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trireme::predict {
namespace {

using cluster::kGiB;
using cluster::kGiga;
using cluster::kMega;
using cluster::kMicro;
using cluster::kTera;

constexpr const char* kDevice = "rank of this host";
constexpr int kRepetitions = 7;

// Joins samples of nearly the same size, so that noise does not make a curve jump.
cluster::Curve curve_of(std::vector<std::pair<double, double>> samples) {
  std::ranges::sort(samples);
  constexpr double kAlike = 1.3;
  cluster::Curve curve;
  for (std::size_t first = 0; first < samples.size();) {
    std::size_t last = first;
    double sizes = 0;
    std::vector<double> times;
    while (last < samples.size() && samples[last].first <= samples[first].first * kAlike) {
      sizes += std::log(samples[last].first);
      times.push_back(samples[last].second);
      ++last;
    }
    curve.sizes.push_back(std::exp(sizes / static_cast<double>(last - first)));
    curve.microseconds.push_back(median_of(times) / kMicro);
    first = last;
  }
  return curve;
}

class Calibration {
 public:
  Calibration(const comm::Group& group, const c10::Device& device, double memory_gib)
      : group_(group), device_(device), memory_gib_(memory_gib) {}

  cluster::Cluster run() {
    cluster_.name = join_message("this host with ", group_.size(), " ranks");
    cluster_.source = "measured by trireme calibrate";
    cluster_.devices = {{.name = kDevice}};
    find_memory();
    measure_operators();
    if (device_.is_cpu()) {
      measure_memory();
    } else {
      device() = sample_accelerator(kDevice, device_, group_);
      device().memory_gib = memory_gib_;
    }
    measure_optimizers();
    cluster_.collectives = sample_links(group_, device_);
    describe_host();
    return cluster_;
  }

 private:
  cluster::DeviceKind& device() { return cluster_.devices.front(); }

  // Comes before all measurements, because they take about a minute.
  void find_memory() {
    if (device_.is_cpu()) return;
    comm::succeed_together("find out the memory of its device", group_, [&] {
      if (memory_gib_ <= 0) memory_gib_ = accelerator_memory_gib(device_);
      if (memory_gib_ > 0) return;
      throw UsageError(
          join_message("device ", device_.str(), " does not say how much memory it has"),
          "give it in GiB: --memory-gib");
    });
  }

  void measure_operators() {
    std::map<std::pair<std::string, std::string>, std::vector<std::pair<double, double>>> samples;
    std::vector<double> between;
    double fastest = 0;
    for (const auto& make : sample_networks(device_)) {
      const SampleNetwork network = make();
      const NetworkSamples measured =
          sample_network(*network.module, network.forward, kRepetitions, group_);
      for (const OperatorSample& sample : measured.operators) {
        samples[{sample.name, sample.dtype}].emplace_back(
            sample.size / (sample.is_in_flops ? kGiga : kMega), sample.seconds);
        if (sample.is_in_flops) fastest = std::max(fastest, sample.size / sample.seconds);
      }
      between.push_back(measured.between_seconds /
                        static_cast<double>(std::max<std::size_t>(1, measured.operators.size())));
    }
    for (auto& [key, all] : samples) {
      cluster_.operators.push_back(
          {.device = kDevice, .name = key.first, .dtype = key.second, .curve = curve_of(all)});
    }
    device().teraflops.float32 = fastest / kTera;
    device().efficiency = {.product = 1, .half_product_gigaflops = 0, .memory = 1, .link = 1};
    device().attention_share = 1;
    device().kernel_us = median_of(between) / kMicro;
  }

  void measure_memory() {
    constexpr std::int64_t kNumbers = 8 << 20;
    const at::Tensor first = torch::ones({kNumbers});
    const at::Tensor second = torch::ones({kNumbers});
    at::Tensor sum = torch::empty({kNumbers});
    const double seconds =
        median_time([&] { at::add_out(sum, first, second); }, device_, group_, kRepetitions);
    device().memory_gb_per_s = static_cast<double>(3 * sum.nbytes()) / seconds / kGiga;
  }

  // Bandwidth of host memory while all ranks use it.
  double host_memory_gb_per_s() const {
    constexpr std::int64_t kNumbers = 8 << 20;
    const at::Tensor first = torch::ones({kNumbers});
    at::Tensor sum = torch::empty({kNumbers});
    const double seconds =
        median_time([&] { at::add_out(sum, first, first); }, at::kCPU, group_, kRepetitions);
    return static_cast<double>(3 * sum.nbytes()) / seconds / kGiga * group_.size();
  }

  template <typename Optimizer, typename Options>
  void measure_optimizer(const char* name, const Options& options) {
    std::vector<std::pair<double, double>> samples;
    // Small tensors are steps of many, because one takes less than the clock can tell.
    constexpr std::int64_t kMost = 1 << 22;
    for (std::int64_t numbers = 1 << 6; numbers <= kMost; numbers *= 16) {
      const std::int64_t count = std::clamp<std::int64_t>((1 << 14) / numbers, 1, 64);
      std::vector<at::Tensor> parameters;
      for (std::int64_t i = 0; i < count; ++i) {
        parameters.push_back(torch::ones({numbers}, device_).requires_grad_());
        parameters.back().mutable_grad() = torch::ones({numbers}, device_);
      }
      Optimizer optimizer(parameters, options);
      const double seconds = median_time([&] { optimizer.step(); }, device_, group_, kRepetitions);
      samples.emplace_back(static_cast<double>(parameters[0].nbytes()) / kMega,
                           seconds / static_cast<double>(count));
    }
    cluster_.optimizers.push_back({.device = kDevice, .name = name, .curve = curve_of(samples)});
  }

  void measure_optimizers() {
    constexpr double kRate = 1e-3;
    constexpr double kMomentum = 0.9;
    measure_optimizer<torch::optim::SGD>("sgd", torch::optim::SGDOptions(kRate));
    measure_optimizer<torch::optim::SGD>("momentum",
                                         torch::optim::SGDOptions(kRate).momentum(kMomentum));
    measure_optimizer<torch::optim::Adam>("adam", torch::optim::AdamOptions(kRate));
  }

  void describe_host() {
    const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                          static_cast<double>(::sysconf(_SC_PAGESIZE)) / kGiB;
    if (device_.is_cpu()) device().memory_gib = memory / group_.size();
    cluster_.hosts = {{.count = 1,
                       .devices = group_.size(),
                       .device = kDevice,
                       .memory_gib = memory,
                       .memory_gb_per_s = host_memory_gb_per_s()}};
    if (group_.size() == 1) return;
    // What the links would have to be if the curves were those of rings.
    cluster::Links links = {.compute_share = sample_interference(group_, device_)};
    for (const cluster::MeasuredCollective& measured : cluster_.collectives) {
      if (measured.name != "message") continue;
      links.latency_us = measured.curve.microseconds.front();
      links.gb_per_s = measured.curve.sizes.back() * kMega /
                       (measured.curve.microseconds.back() * kMicro) / kGiga;
    }
    cluster_.links = {links};
  }

  const comm::Group& group_;
  const c10::Device device_;
  double memory_gib_;  // of an accelerator
  cluster::Cluster cluster_;
};

// Every rank has measured; all take what rank 0 has, because their figures differ by noise.
cluster::Cluster agreed(const cluster::Cluster& own, const comm::Group& group) {
  if (group.size() == 1) return own;
  const std::string text = comm::all_gather_text(cluster::to_toml(own), group).front();
  return cluster::parse_cluster(text, "the calibration of rank 0");
}

}  // namespace

cluster::Cluster calibrate(const comm::Group& group, const c10::Device& device, double memory_gib) {
  std::array<char, 256> name{};
  (void)::gethostname(name.data(), name.size() - 1);
  for (const std::string& other : comm::all_gather_text(name.data(), group)) {
    if (other == name.data()) continue;
    throw UsageError(
        join_message("the ranks of a calibration are on hosts ", name.data(), " and ", other),
        "calibrate one host at a time; describe the links between hosts by hand");
  }
  for (const std::string& other :
       comm::all_gather_text(device.is_cpu() ? "a CPU" : "an accelerator", group)) {
    if (other == (device.is_cpu() ? "a CPU" : "an accelerator")) continue;
    throw UsageError("some ranks of a calibration measure a CPU, and some an accelerator",
                     "give all ranks the same kind of device");
  }
  return agreed(Calibration(group, device, memory_gib).run(), group);
}

}  // namespace trireme::predict
