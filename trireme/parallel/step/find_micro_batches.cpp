// SPDX-License-Identifier: Apache-2.0
// Finds the number of micro-batches whose steps are fastest, by measuring.
#include <trireme/base/error.h>
#include <trireme/parallel/module/gradients_aside.h>
#include <trireme/parallel/step/training_step_impl.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <utility>

namespace trireme {
namespace {

constexpr int kTimedSteps = 3;

// Saves gradients and buffers, and restores them: measured steps must not change the training.
class StateAside {
 public:
  explicit StateAside(const torch::nn::Module& module) {
    const c10::NoGradGuard no_graph;
    for (const at::Tensor& parameter : module.parameters()) gradients_.take(parameter);
    for (const at::Tensor& buffer : module.buffers()) buffers_.emplace_back(buffer, buffer.clone());
  }
  // After a failure of the device, copies on it fail too.
  ~StateAside() {
    try {
      put_back();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the failure is reported
    }
  }
  StateAside(const StateAside&) = delete;
  StateAside& operator=(const StateAside&) = delete;

  void put_back() {
    const c10::NoGradGuard no_graph;
    gradients_.put_back();
    for (auto& [buffer, values] : std::exchange(buffers_, {})) buffer.copy_(values);
  }

 private:
  detail::GradientsAside gradients_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

double TrainingStep::Impl::time_step(const pipeline::SplitBatch& batch) {
  pipeline::Record& record = training_record(batch);
  const auto began = std::chrono::steady_clock::now();
  run(record, batch, steps, {});
  ranks->synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

std::vector<SplitTime> TrainingStep::find_micro_batches(const std::vector<at::Tensor>& batch) {
  Impl& impl = *impl_;
  if (impl.group.size() > 1) {
    throw UsageError(
        "the number of micro-batches cannot be found by measuring over several "
        "processes, of which each would find another",
        "measure in one process, and set plan.micro_batches to what it finds");
  }
  if (own_schedule(impl.plan)) {
    throw UsageError(join_message("the schedule of this plan is for ", impl.plan.micro_batches,
                                  " micro-batches, and no other number can be measured"),
                     "name a kind of schedules, or leave find_micro_batches out");
  }
  impl.finds_micro_batches = true;
  std::map<std::int64_t, double> times;
  const auto take = [&](std::int64_t count) {
    if (count < 1 || times.contains(count)) return;
    const pipeline::SplitBatch split = impl.split(batch, count);
    if (std::ssize(split.micro_batches) < count) return;
    StateAside aside(impl.module);
    impl.time_step(split);  // warm-up: captures the module and allocates memory
    std::vector<double> taken(kTimedSteps);
    std::ranges::generate(taken, [&] { return impl.time_step(split); });
    aside.put_back();
    times[count] = median(std::move(taken));
  };
  const auto best = [&] {
    return std::ranges::min_element(times, {}, &std::pair<const std::int64_t, double>::second)
        ->first;
  };
  // Few large micro-batches may exceed the memory where many small ones fit.
  std::exception_ptr does_not_fit;
  const auto measure = [&](std::int64_t count) {
    try {
      take(count);
    } catch (const c10::OutOfMemoryError&) {
      does_not_fit = std::current_exception();
    }
    impl.forget_records();  // frees the buffers of their executors
  };
  const pipeline::SplitBatch whole = impl.split(batch, 1);
  impl.assign_stages(whole);
  const std::int64_t rows = whole.micro_batches.front().front().size(0);
  for (std::int64_t count = 1; count <= rows && (times.empty() || count <= 4 * best());
       count *= 2) {
    measure(count);
  }
  if (times.empty()) std::rethrow_exception(does_not_fit);
  const std::int64_t of_powers = best();
  measure(of_powers * 3 / 4);
  measure(of_powers * 3 / 2);
  impl.plan.micro_batches = best();
  std::vector<SplitTime> all;
  for (const auto& [count, seconds] : times) {
    all.push_back({.micro_batches = static_cast<int>(count),
                   .rows = (rows + count - 1) / count,
                   .seconds = seconds});
  }
  return all;
}

}  // namespace trireme
