// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/monitors.h>

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>
#include <trireme/optim/gradients.h>
#include <trireme/report/number.h>
#include <trireme/train/model.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

namespace trireme {
namespace {

std::int64_t checked_interval(std::string_view who, std::int64_t steps) {
  if (steps >= 1) return steps;
  throw UsageError(join_message(who, " looks at every n-th step, got n = ", steps),
                   "give 1 or more");
}

// On Linux, the second number of the file, in pages; 0 elsewhere. Read without a stream, which
// would take ten times as long in every step.
std::int64_t resident_bytes() {
  const UniqueFd file(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  std::array<char, 128> text{};
  const ssize_t size = file ? ::read(file.get(), text.data(), text.size()) : 0;
  if (size <= 0) return 0;
  const std::string_view numbers(text.data(), static_cast<std::size_t>(size));
  const std::size_t second = numbers.find(' ') + 1;
  std::int64_t pages = 0;
  std::from_chars(numbers.data() + second, numbers.data() + numbers.size(), pages);
  return pages * ::sysconf(_SC_PAGESIZE);
}

std::int64_t peak_resident_bytes() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
#ifdef __APPLE__
  return usage.ru_maxrss;
#else
  return usage.ru_maxrss * 1024;
#endif
}

}  // namespace

void LearningRateMonitor::on_step_end(const StepEndContext& step) {
  const auto& groups = step.run.model.optimizer().param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    step.run.log(join_message("learning_rate/", group), groups[group].options().get_lr());
  }
}

ThroughputMonitor::ThroughputMonitor(std::int64_t steps, report::Clock clock)
    : steps_(static_cast<std::size_t>(checked_interval("a throughput monitor", steps))),
      clock_(std::move(clock)) {}

void ThroughputMonitor::on_epoch_begin(const EpochContext& /*epoch*/) {
  moments_.assign(1, {.seconds = clock_(), .samples = 0});
}

void ThroughputMonitor::on_step_end(const StepEndContext& step) {
  moments_.push_back({.seconds = clock_(), .samples = moments_.back().samples + step.all_samples});
  // n steps need n + 1 moments: their beginning and the end of each.
  if (moments_.size() > steps_ + 1) moments_.erase(moments_.begin());
  const Moment& first = moments_.front();
  const Moment& last = moments_.back();
  const double seconds = last.seconds - first.seconds;
  if (!(seconds > 0)) return;
  step.run.log("samples_per_second", static_cast<double>(last.samples - first.samples) / seconds);
  step.run.log("steps_per_second", static_cast<double>(moments_.size() - 1) / seconds);
}

MemoryUse memory_use(at::Device device) {
  // The system updates the peak only now and then, so it may be lower than the present use.
  MemoryUse use{.resident = resident_bytes()};
  use.peak_resident = std::max(peak_resident_bytes(), use.resident);
  if (device.is_cpu()) return use;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) return use;
  const auto index = device.has_index() ? device.index() : c10::DeviceIndex(0);
  const auto stats = allocator->getDeviceStats(index);
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  use.device = stats.allocated_bytes.at(kAll).current;
  use.peak_device = stats.allocated_bytes.at(kAll).peak;
  return use;
}

MemoryMonitor::MemoryMonitor(std::int64_t every_steps)
    : every_steps_(checked_interval("a memory monitor", every_steps)) {}

void MemoryMonitor::on_step_end(const StepEndContext& step) {
  if (step.global_step % every_steps_ != 0) return;
  const MemoryUse use = memory_use(step.run.model.device());
  step.run.log("memory/resident", static_cast<double>(use.resident));
  step.run.log("memory/peak_resident", static_cast<double>(use.peak_resident));
  if (use.device) step.run.log("memory/device", static_cast<double>(*use.device));
  if (use.peak_device) step.run.log("memory/peak_device", static_cast<double>(*use.peak_device));
}

GradientNorms::GradientNorms(const GradientNormsOptions& options) : options_(options) {
  checked_interval("GradientNorms", options.every_steps);
}

void GradientNorms::on_run_begin(const RunContext& run) {
  parameters_.clear();
  if (!options_.of_parameters) return;
  if (cuts_anything(run.model.options().plan) && run.world_size > 1) {
    throw UsageError("the plan cuts gradients: no rank has those of a whole parameter",
                     "leave of_parameters out, or train with zero_level 0");
  }
  if (stage_ranks(run.model.options().plan) > 1) {
    throw UsageError("the plan has stages: no rank has the gradients of all parameters",
                     "leave of_parameters out, or train without the axis `pipe`");
  }
  for (const auto& item : run.model.module().named_parameters()) {
    parameters_.emplace_back(item.key(), item.value());
  }
}

void GradientNorms::on_backward_end(const StepContext& step) {
  if (step.global_step % options_.every_steps != 0) return;
  const Model& model = step.run.model;
  step.run.log("gradient_norm/all", global_norm(model.optimizer(), model.sharing()));
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters_) {
    if (!parameter.grad().defined()) continue;
    const at::Tensor& gradient = parameter.grad();
    const at::Tensor values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
    step.run.log("gradient_norm/" + name, values.norm().item<double>());
  }
}

LossMonitor::LossMonitor(std::int64_t every_steps, report::Console& console)
    : every_steps_(every_steps), console_(console) {
  if (every_steps < 1) {
    throw UsageError(join_message("a loss monitor prints every n-th step, got n = ", every_steps),
                     "give 1 or more");
  }
}

void LossMonitor::on_step_end(const StepEndContext& step) {
  if (step.global_step % every_steps_ != 0) return;
  console_.line(join_message("epoch: ", step.epoch, " step: ", step.step, ", loss is ",
                             report::shortest(step.loss)));
}

void TimeMonitor::on_epoch_end(const EpochEndContext& epoch) {
  const double milliseconds = epoch.seconds * 1e3;
  const auto steps = static_cast<double>(epoch.run.steps_in_epoch - epoch.steps_done);
  console_.line(join_message("epoch time: ", report::fixed(milliseconds, 1), " ms, per step time: ",
                             report::fixed(milliseconds / steps, 3), " ms"));
}

}  // namespace trireme
