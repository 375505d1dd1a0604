// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/comm_benchmark.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>

namespace trireme::apps {
namespace {

constexpr double kSecondsForSize = 0.2;

const std::map<std::string, at::ScalarType> kTypes = {
    {"float64", at::kDouble},    {"float32", at::kFloat}, {"float16", at::kHalf},
    {"bfloat16", at::kBFloat16}, {"int64", at::kLong},    {"int32", at::kInt},
    {"int16", at::kShort},       {"int8", at::kChar},     {"uint8", at::kByte}};

/// How a collective is called, and the share of a buffer that crosses a link.
struct Kind {
  bool in_place = false;
  bool gives_piece = false;  ///< The input is one rank's piece of the size.
  bool takes_piece = false;  ///< The output is one rank's piece of the size.
  std::function<void(const at::Tensor& output, const at::Tensor& input, const comm::Group&)> run;
  double (*bus_share)(double ranks) = nullptr;
};

const std::map<std::string, Kind>& kinds() {
  using comm::Group;
  constexpr auto kOthers = [](double ranks) { return (ranks - 1) / ranks; };
  static const std::map<std::string, Kind> all = {
      {"all_reduce",
       {.in_place = true,
        .run = [](const at::Tensor& output, const at::Tensor&,
                  const Group& group) { comm::all_reduce(output, group); },
        .bus_share = [](double ranks) { return 2 * (ranks - 1) / ranks; }}},
      {"broadcast",
       {.in_place = true,
        .run = [](const at::Tensor& output, const at::Tensor&,
                  const Group& group) { comm::broadcast(output, 0, group); },
        .bus_share = [](double) { return 1.0; }}},
      {"all_gather",
       {.gives_piece = true,
        .run = [](const at::Tensor& output, const at::Tensor& input,
                  const Group& group) { comm::all_gather(output, input, group); },
        .bus_share = kOthers}},
      {"reduce_scatter",
       {.takes_piece = true,
        .run = [](const at::Tensor& output, const at::Tensor& input,
                  const Group& group) { comm::reduce_scatter(output, input, group); },
        .bus_share = kOthers}},
      {"all_to_all",
       {.run = [](const at::Tensor& output, const at::Tensor& input,
                  const Group& group) { comm::all_to_all(output, input, group); },
        .bus_share = kOthers}}};
  return all;
}

// Returns the value that a rank contributes. It is small, so that every dtype can represent the
// sums.
int contribution(int rank) { return 1 + rank % 2; }

// Returns the expected value in the part of rank `from`: its own contribution or the sum of all.
int expected(const std::string& collective, int from, int size) {
  if (collective == "broadcast") return contribution(0);
  if (collective == "all_gather" || collective == "all_to_all") return contribution(from);
  return size + size / 2;
}

/// Several buffers of one size, so that each operation of a short loop uses a fresh one.
class Trial {
 public:
  Trial(const CommBenchmark& benchmark, std::size_t bytes, const comm::Group& group)
      : name_(benchmark.collective), kind_(kinds().at(name_)), group_(group) {
    constexpr std::int64_t kBudget = 256 << 10;
    constexpr std::int64_t kMost = 64;
    const at::ScalarType type = kTypes.at(benchmark.dtype);
    const auto width = static_cast<std::int64_t>(at::elementSize(type));
    const std::int64_t size = group.size();
    // Rounded so that each rank has the same number of whole elements.
    const std::int64_t piece =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes) / width / size);
    const std::int64_t count =
        kind_.in_place ? std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes) / width)
                       : piece * size;
    bytes_ = count * width;
    const std::int64_t rows = std::clamp<std::int64_t>(kBudget / bytes_, 1, kMost);
    inputs_ = at::empty({rows, kind_.gives_piece ? piece : count}, type);
    outputs_ =
        kind_.in_place ? inputs_ : at::empty({rows, kind_.takes_piece ? piece : count}, type);
    outputs_.fill_(0);
    for (std::int64_t row = 0; row < rows; ++row) {
      buffers_.emplace_back(outputs_.select(0, row), inputs_.select(0, row));
    }
  }

  std::int64_t bytes() const { return bytes_; }
  double num_buffers() const { return static_cast<double>(buffers_.size()); }

  /// Returns the time of one operation on the slowest rank in seconds.
  double run() {
    inputs_.fill_(contribution(group_.rank()));
    comm::barrier(group_);
    const auto began = std::chrono::steady_clock::now();
    for (const auto& [output, input] : buffers_) kind_.run(output, input, group_);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    return greatest(took.count()) / num_buffers();
  }

  /// Throws InternalError if the last results are wrong.
  void verify() const {
    const bool in_pieces = name_ == "all_gather" || name_ == "all_to_all";
    const int num_pieces = in_pieces ? group_.size() : 1;
    const std::int64_t length = outputs_.size(1) / num_pieces;
    for (int from = 0; from < num_pieces; ++from) {
      const int wanted = expected(name_, from, group_.size());
      if (outputs_.narrow(1, from * length, length).eq(wanted).all().item<bool>()) continue;
      throw InternalError(
          join_message(name_, " of ", bytes_, " bytes over engine ", group_.engine(),
                       " gave a wrong result on rank ", group_.rank(), ": expected ", wanted,
                       " in the part of rank ", from),
          "please report it, with what trireme doctor says");
    }
  }

 private:
  double greatest(double value) const {
    const at::Tensor all = at::full({1}, value, at::kDouble);
    comm::all_reduce(all, group_, comm::ReduceOp::kMaximum);
    return all.item<double>();
  }

  std::string name_;
  const Kind& kind_;
  const comm::Group& group_;
  std::int64_t bytes_ = 0;
  at::Tensor inputs_;   // One row for each buffer.
  at::Tensor outputs_;  // One row for each buffer.
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

// Returns the median time of an operation in seconds, of as many loops as fit into kSecondsForSize.
double time_of(Trial& trial) {
  trial.run();  // Warms up: touches memory and opens connections.
  std::vector<double> seconds = {trial.run()};
  // The times are those of the slowest rank and equal on all ranks, so all ranks stop after the
  // same loop.
  for (double used = 0; seconds.size() < 3 || used < kSecondsForSize;) {
    seconds.push_back(trial.run());
    used += seconds.back() * trial.num_buffers();
  }
  trial.verify();
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace

void measure_collective(const CommBenchmark& benchmark) {
  InitOptions options;
  if (!benchmark.engine.empty()) options.engine = benchmark.engine;
  const World world = init(options);
  const comm::Group& group = world.group;
  if (world.is_first()) {
    std::printf("%s of %s, %d ranks, engine %s\n%12s %14s %18s %12s\n",
                benchmark.collective.c_str(), benchmark.dtype.c_str(), world.size,
                group.engine().c_str(), "bytes", "latency us", "algorithm GB/s", "bus GB/s");
  }
  for (const std::size_t size : benchmark.sizes) {
    Trial trial(benchmark, size, group);
    const double seconds = time_of(trial);
    const double bandwidth = 1e-9 * static_cast<double>(trial.bytes()) / seconds;
    const double share = kinds().at(benchmark.collective).bus_share(world.size);
    if (!world.is_first()) continue;
    std::printf("%12lld %14.2f %18.4g %12.4g\n", static_cast<long long>(trial.bytes()),
                1e6 * seconds, bandwidth, bandwidth * share);
    std::fflush(stdout);
  }
}

}  // namespace trireme::apps
