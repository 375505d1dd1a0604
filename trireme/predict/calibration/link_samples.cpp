// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/calibration/link_samples.h>

#include <trireme/cluster/units.h>
#include <trireme/comm/collectives.h>
#include <trireme/predict/calibration/stopwatch.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <iterator>
#include <string>
#include <utility>

namespace trireme::predict {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<std::int64_t, 8> kBytes = {1 << 10, 16 << 10, 128 << 10, 512 << 10,
                                                2 << 20, 8 << 20,  32 << 20,  64 << 20};
constexpr std::size_t kFewest = 5;

// What all measurements have in common.
struct LinkSetting {
  const comm::Group& all;
  c10::Device device;
  LinkSampling sampling = {};

  std::vector<std::int64_t> sizes() const {
    std::vector<std::int64_t> sizes;
    std::ranges::copy_if(kBytes, std::back_inserter(sizes),
                         [&](std::int64_t bytes) { return bytes <= sampling.largest_bytes; });
    return sizes;
  }
};

// The median time in seconds of what all ranks do at the same time, on the slowest rank.
double time_of(const std::function<void()>& work, const LinkSetting& setting) {
  work();
  synchronize(setting.device);
  std::vector<double> times;
  for (double used = 0; times.size() < kFewest || used < setting.sampling.seconds;) {
    comm::barrier(setting.all);
    const auto began = Clock::now();
    work();
    synchronize(setting.device);
    const std::chrono::duration<double> took = Clock::now() - began;
    const at::Tensor slowest = at::full({1}, took.count(), at::kDouble);
    comm::all_reduce(slowest, setting.all, comm::ReduceOp::kMaximum);
    times.push_back(slowest.item<double>());
    used += times.back();
  }
  return median_of(times);
}

at::TensorOptions on(const c10::Device& device) {
  return at::TensorOptions().dtype(at::kFloat).device(device);
}

// What a collective does with a whole tensor and the part of a rank.
using Call =
    std::function<void(const at::Tensor& whole, const at::Tensor& part, const comm::Group& group)>;

struct NamedCall {
  std::string name;
  Call call;
};

std::vector<NamedCall> calls() {
  return {{"all_reduce", [](const at::Tensor& whole, const at::Tensor&,
                            const comm::Group& group) { comm::all_reduce(whole, group); }},
          {"all_gather", [](const at::Tensor& whole, const at::Tensor& part,
                            const comm::Group& group) { comm::all_gather(whole, part, group); }},
          {"reduce_scatter",
           [](const at::Tensor& whole, const at::Tensor& part, const comm::Group& group) {
             comm::reduce_scatter(part, whole, group);
           }},
          {"broadcast", [](const at::Tensor& whole, const at::Tensor&, const comm::Group& group) {
             comm::broadcast(whole, 0, group);
           }}};
}

// Times a collective of whole tensors of all sizes.
cluster::MeasuredCollective sample(const NamedCall& named, const comm::Group& group,
                                   const LinkSetting& setting) {
  cluster::MeasuredCollective measured = {.name = named.name, .ranks = group.size()};
  for (const std::int64_t bytes : setting.sizes()) {
    const std::int64_t part = bytes / group.size() / static_cast<std::int64_t>(sizeof(float));
    const at::Tensor whole = at::zeros({part * group.size()}, on(setting.device));
    const at::Tensor own = at::zeros({part}, on(setting.device));
    measured.curve.sizes.push_back(static_cast<double>(whole.nbytes()) / cluster::kMega);
    measured.curve.microseconds.push_back(time_of([&] { named.call(whole, own, group); }, setting) /
                                          cluster::kMicro);
  }
  return measured;
}

cluster::MeasuredCollective sample_all_to_all(const comm::Group& group,
                                              const LinkSetting& setting) {
  cluster::MeasuredCollective measured = {.name = "all_to_all", .ranks = group.size()};
  for (const std::int64_t bytes : setting.sizes()) {
    // The size counts the tensors of all ranks together.
    const std::int64_t of_rank = bytes / group.size();
    const std::int64_t part = of_rank / group.size() / static_cast<std::int64_t>(sizeof(float));
    const at::Tensor sent = at::zeros({part * group.size()}, on(setting.device));
    const at::Tensor received = at::zeros({part * group.size()}, on(setting.device));
    measured.curve.sizes.push_back(static_cast<double>(sent.nbytes()) *
                                   static_cast<double>(group.size()) / cluster::kMega);
    measured.curve.microseconds.push_back(
        time_of([&] { comm::all_to_all(received, sent, group); }, setting) / cluster::kMicro);
  }
  return measured;
}

// There and back again between two neighbours, halved.
cluster::MeasuredCollective sample_messages(const comm::Group& pair, const LinkSetting& setting) {
  cluster::MeasuredCollective measured = {.name = "message", .ranks = 2};
  for (const std::int64_t bytes : setting.sizes()) {
    const at::Tensor tensor =
        at::zeros({bytes / static_cast<std::int64_t>(sizeof(float))}, on(setting.device));
    const double both = time_of(
        [&] {
          if (pair.size() < 2) return;  // a rank without a neighbour
          if (pair.rank() == 0) {
            comm::send(tensor, 1, pair);
            comm::receive(tensor, 1, pair);
          } else {
            comm::receive(tensor, 0, pair);
            comm::send(tensor, 0, pair);
          }
        },
        setting);
    measured.curve.sizes.push_back(static_cast<double>(bytes) / cluster::kMega);
    measured.curve.microseconds.push_back(both / 2 / cluster::kMicro);
  }
  return measured;
}

// The group of `size` neighbours that this rank is in.
comm::Group neighbours(const comm::Group& all, int size) {
  comm::Group own;
  for (int first = 0; first < all.size(); first += size) {
    std::vector<int> ranks;
    for (int rank = first; rank < std::min(first + size, all.size()); ++rank) {
      ranks.push_back(rank);
    }
    comm::Group group = all.subgroup(ranks);  // all ranks make all groups
    if (first <= all.rank() && all.rank() < first + size) own = std::move(group);
  }
  return own;
}

}  // namespace

std::vector<cluster::MeasuredCollective> sample_links(const comm::Group& all,
                                                      const c10::Device& device,
                                                      const LinkSampling& sampling) {
  const LinkSetting setting = {.all = all, .device = device, .sampling = sampling};
  std::vector<cluster::MeasuredCollective> samples;
  for (int size = 2; size <= all.size(); ++size) {
    if (all.size() % size != 0) continue;
    const comm::Group group = size == all.size() ? all : neighbours(all, size);
    for (const NamedCall& named : calls()) samples.push_back(sample(named, group, setting));
    samples.push_back(sample_all_to_all(group, setting));
  }
  if (all.size() > 1) samples.push_back(sample_messages(neighbours(all, 2), setting));
  return samples;
}

double sample_interference(const comm::Group& group, const c10::Device& device) {
  if (group.size() == 1) return 0;
  const LinkSetting setting = {.all = group, .device = device};
  constexpr std::int64_t kSize = 256;
  constexpr std::int64_t kNumbers = 8 << 20;
  constexpr int kProducts = 24;
  const at::Tensor matrix = at::ones({kSize, kSize}, on(device));
  const at::Tensor numbers = at::zeros({kNumbers}, on(device));
  const auto multiply = [&] {
    for (int i = 0; i < kProducts; ++i) (void)at::mm(matrix, matrix);
  };
  // Products that take longer than the exchange, so that all of it runs beside them.
  const double once = time_of(multiply, setting);
  const double exchange = time_of([&] { comm::all_reduce(numbers, group); }, setting);
  const int times = static_cast<int>(2 * exchange / once) + 1;
  const auto multiply_long = [&] {
    for (int i = 0; i < times; ++i) multiply();
  };
  const double alone = time_of(multiply_long, setting);
  const double both = time_of(
      [&] {
        comm::Work work = comm::all_reduce_async(numbers, group);
        multiply_long();
        work.wait();
      },
      setting);
  return std::clamp((both - alone) / exchange, 0.0, 0.99);
}

}  // namespace trireme::predict
