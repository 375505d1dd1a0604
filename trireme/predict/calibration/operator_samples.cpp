// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/calibration/operator_samples.h>

#include <trireme/comm/collectives.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/predict/calibration/stopwatch.h>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

namespace trireme::predict {
namespace {

using Clock = std::chrono::steady_clock;

// No operator is taken to be faster.
constexpr double kShortest = 1e-7;

std::string without_overload(const std::string& name) { return name.substr(0, name.find('.')); }

class Stopwatch;
thread_local Stopwatch* current_stopwatch = nullptr;

// Notes the times of the wanted operators of this thread, as long as it lives. Operators that
// another wanted operator calls are part of it.
class Stopwatch {
 public:
  Stopwatch(const std::set<std::string, std::less<>>& wanted, const c10::Device& device)
      : wanted_(wanted), device_(device) {
    current_stopwatch = this;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}));
  }
  ~Stopwatch() {
    at::removeCallback(handle_);
    current_stopwatch = nullptr;
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // By operator: the seconds of its calls in order.
  std::map<std::string, std::vector<double>, std::less<>> take() { return std::move(times_); }

 private:
  struct Outermost : at::ObserverContext {};

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    Stopwatch& self = *current_stopwatch;
    if (self.is_running_ || !self.wanted_.contains(std::string_view(function.name()))) return {};
    self.is_running_ = true;
    synchronize(self.device_);
    self.began_ = Clock::now();
    return std::make_unique<Outermost>();
  }

  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    if (context == nullptr) return;
    synchronize(current_stopwatch->device_);
    const std::chrono::duration<double> took = Clock::now() - current_stopwatch->began_;
    current_stopwatch->is_running_ = false;
    current_stopwatch->times_[function.name()].push_back(took.count());
  }

  const std::set<std::string, std::less<>>& wanted_;
  const c10::Device device_;
  std::map<std::string, std::vector<double>, std::less<>> times_;
  Clock::time_point began_;
  bool is_running_ = false;
  at::CallbackHandle handle_ = 0;
};

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Returns the largest value of all ranks, for each place.
std::vector<double> slowest(const std::vector<double>& own, const comm::Group& group) {
  const at::Tensor all = at::tensor(own, at::kDouble);
  comm::all_reduce(all, group, comm::ReduceOp::kMaximum);
  const auto* const values = all.const_data_ptr<double>();
  return {values, values + all.numel()};
}

// Runs backward on the calling thread, whose operators a Stopwatch sees, as long as it lives. For
// an accelerator autograd has threads of its own.
class BackwardOnThisThread {
 public:
  BackwardOnThisThread() : before_(state().get_multithreading_enabled()) {
    state().set_multithreading_enabled(false);
  }
  ~BackwardOnThisThread() { state().set_multithreading_enabled(before_); }
  BackwardOnThisThread(const BackwardOnThisThread&) = delete;
  BackwardOnThisThread& operator=(const BackwardOnThisThread&) = delete;

 private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }
  bool before_;
};

// What the time of an operator on an accelerator has beyond its kernel: that of giving an empty one
// to the device and waiting for it, without the kernel itself.
double waiting_seconds(const c10::Device& device, const comm::Group& group, int repetitions) {
  if (device.is_cpu()) return 0;
  constexpr int kKernels = 100;
  at::Tensor number = at::zeros({1}, at::TensorOptions().device(device));
  const double one = median_time([&] { number.add_(1); }, device, group, repetitions);
  const double many = median_time(
      [&] {
        for (int i = 0; i < kKernels; ++i) number.add_(1);
      },
      device, group, repetitions);
  return std::max(0.0, one - many / kKernels);
}

void clear_gradients(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) parameter.mutable_grad().reset();
}

}  // namespace

NetworkSamples sample_network(ModuleRef holder, const std::function<at::Tensor()>& forward,
                              int repetitions, const comm::Group& group) {
  const torch::nn::Module& module = *holder;
  const Plan plan = {.mesh = {{kDataAxis, 1}}};
  const ModuleRecord record = record_module(holder, plan, forward);
  std::map<std::string, std::vector<const OperatorCall*>, std::less<>> calls;
  std::set<std::string, std::less<>> wanted;
  for (const OperatorCall& call : record.calls) {
    if (call.work.bytes <= 0) continue;
    calls[without_overload(call.name)].push_back(&call);
    wanted.insert(without_overload(call.name));
  }
  std::map<std::string, std::vector<std::vector<double>>, std::less<>> times;  // by call
  const std::vector<at::Tensor> parameters = module.parameters();
  const c10::Device device = parameters.empty() ? c10::Device(at::kCPU) : parameters[0].device();
  const double waiting = waiting_seconds(device, group, repetitions);
  std::vector<double> inside;  // of operators, by run
  std::vector<double> between;
  constexpr int kWarmUps = 2;
  for (int run = 0; run < repetitions + kWarmUps; ++run) {
    clear_gradients(module);
    comm::barrier(group);
    std::map<std::string, std::vector<double>, std::less<>> once;
    const auto began = Clock::now();
    {
      const BackwardOnThisThread on_this_thread;
      Stopwatch watch(wanted, device);
      forward().backward();
      once = watch.take();
    }
    std::chrono::duration<double> whole = Clock::now() - began;
    if (run < kWarmUps) continue;
    inside.push_back(0);
    for (auto& [name, seconds] : once) {
      for (double& each : seconds) {
        each = std::max(each - waiting, kShortest);
        inside.back() += each;
      }
      // A name that does not appear as often as in the dry run cannot be matched.
      if (seconds.size() != calls[name].size()) continue;
      times[name].resize(seconds.size());
      for (std::size_t i = 0; i < seconds.size(); ++i) times[name][i].push_back(seconds[i]);
    }
    between.push_back(std::max(0.0, whole.count() - inside.back()));
  }
  clear_gradients(module);
  NetworkSamples samples = {.between_seconds = median_of(slowest(between, group))};
  double medians = 0;  // of the operators, added
  for (const auto& [name, all] : times) {
    for (const std::vector<double>& seconds : all) medians += median_of(seconds);
  }
  // Of what was not matched, the same share is assumed to be lost.
  double matched = 0;
  for (const auto& [name, all] : times) {
    for (const std::vector<double>& seconds : all) matched += mean_of(seconds);
  }
  const double longer = median_of(slowest(inside, group)) / mean_of(inside) * matched / medians;
  for (const auto& [name, all] : times) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const cluster::OperatorWork& work = calls[name][i]->work;
      const bool is_in_flops = work.flops > 0 && work.kind != cluster::OperatorKind::kElements;
      samples.operators.push_back({.name = name,
                                   .dtype = std::string(work.dtype),
                                   .is_in_flops = is_in_flops,
                                   .size = is_in_flops ? work.flops : work.bytes,
                                   .seconds = median_of(all[i]) * longer});
    }
  }
  return samples;
}

}  // namespace trireme::predict
