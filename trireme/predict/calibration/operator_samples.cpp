// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/calibration/operator_samples.h>

#include <trireme/predict/calibration/median.h>
#include <trireme/predict/module_record.h>

#include <ATen/record_function.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string_view>

namespace trireme::predict {
namespace {

using Clock = std::chrono::steady_clock;

std::string without_overload(const std::string& name) { return name.substr(0, name.find('.')); }

class Stopwatch;
thread_local Stopwatch* current_stopwatch = nullptr;

// Notes the times of the wanted operators of this thread, as long as it lives. Operators that
// another wanted operator calls are part of it.
class Stopwatch {
 public:
  explicit Stopwatch(const std::set<std::string, std::less<>>& wanted) : wanted_(wanted) {
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
  Stopwatch(Stopwatch&&) = delete;
  Stopwatch& operator=(Stopwatch&&) = delete;

  // By operator: the seconds of its calls in order.
  std::map<std::string, std::vector<double>, std::less<>> take() { return std::move(times_); }

 private:
  struct Outermost : at::ObserverContext {};

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    Stopwatch& self = *current_stopwatch;
    if (self.is_running_ || !self.wanted_.contains(std::string_view(function.name()))) return {};
    self.is_running_ = true;
    self.began_ = Clock::now();
    return std::make_unique<Outermost>();
  }

  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    if (context == nullptr) return;
    const std::chrono::duration<double> took = Clock::now() - current_stopwatch->began_;
    current_stopwatch->is_running_ = false;
    current_stopwatch->times_[function.name()].push_back(took.count());
  }

  const std::set<std::string, std::less<>>& wanted_;
  std::map<std::string, std::vector<double>, std::less<>> times_;
  Clock::time_point began_;
  bool is_running_ = false;
  at::CallbackHandle handle_ = 0;
};

void clear_gradients(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) parameter.mutable_grad().reset();
}

}  // namespace

NetworkSamples sample_network(ModuleRef holder, const std::function<at::Tensor()>& forward,
                              int repetitions, const std::function<void()>& before_each) {
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
  std::vector<double> between;
  constexpr int kWarmUps = 2;
  for (int run = 0; run < repetitions + kWarmUps; ++run) {
    clear_gradients(module);
    before_each();
    std::map<std::string, std::vector<double>, std::less<>> once;
    const auto began = Clock::now();
    {
      Stopwatch watch(wanted);
      forward().backward();
      once = watch.take();
    }
    std::chrono::duration<double> whole = Clock::now() - began;
    if (run < kWarmUps) continue;
    double inside = 0;
    for (auto& [name, seconds] : once) {
      for (const double each : seconds) inside += each;
      // A name that does not appear as often as in the dry run cannot be matched.
      if (seconds.size() != calls[name].size()) continue;
      times[name].resize(seconds.size());
      for (std::size_t i = 0; i < seconds.size(); ++i) times[name][i].push_back(seconds[i]);
    }
    between.push_back(std::max(0.0, whole.count() - inside));
  }
  clear_gradients(module);
  NetworkSamples samples = {.between_seconds = median_of(between)};
  for (const auto& [name, all] : times) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const cluster::OperatorWork& work = calls[name][i]->work;
      const bool is_in_flops = work.flops > 0 && work.kind != cluster::OperatorKind::kElements;
      samples.operators.push_back({.name = name,
                                   .dtype = std::string(work.dtype),
                                   .is_in_flops = is_in_flops,
                                   .size = is_in_flops ? work.flops : work.bytes,
                                   .seconds = median_of(all[i])});
    }
  }
  return samples;
}

}  // namespace trireme::predict
