// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/layouts/layout_replay.h>

#include <algorithm>
#include <unordered_map>

namespace trireme::search {

using tensor::DryRunCall;
using tensor::DryRunTensor;
using tensor::Strategy;

namespace {

// Different for different placements along one axis, and below 64: tensors have at most 25 dims or
// so, and there are a few reductions.
std::uint64_t code_of(const Placement& placement) {
  constexpr int kFirstDim = 16;
  if (placement.is_replicate()) return 1;
  const int code =
      placement.is_shard() ? kFirstDim + placement.dim() : 2 + static_cast<int>(placement.op());
  return static_cast<std::uint64_t>(code);
}

bool is_sharded(const Strategy& strategy) {
  const auto is_shard = [](const Placement& placement) { return placement.is_shard(); };
  return std::ranges::any_of(strategy.inputs, is_shard) ||
         std::ranges::any_of(strategy.outputs, is_shard);
}

double bytes_of(const DryRunTensor& tensor) {
  auto bytes = static_cast<double>(c10::elementSize(tensor.dtype));
  for (const std::int64_t size : tensor.sizes) bytes *= static_cast<double>(size);
  return bytes;
}

}  // namespace

LayoutReplay::LayoutReplay(const detail::ModuleDryRun& dry_run, const LaidOutModule& laid_out,
                           int axis, const std::vector<double>& call_seconds,
                           std::vector<double> parameter_seconds)
    : mesh_(laid_out.mesh),
      axis_(axis),
      value_of_parameter_(laid_out.tensors.size(), -1),
      parameter_seconds_(std::move(parameter_seconds)) {
  std::unordered_map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < laid_out.tensors.size(); ++i) {
    numbers.emplace(laid_out.tensors[i].name, i);
  }
  int most = -1;
  for (std::size_t i = 0; i < dry_run.calls.size(); ++i) {
    const DryRunCall& call = dry_run.calls[i];
    Step& step = steps_.emplace_back();
    step.call = &dry_run.along_axis[i];
    if (step.call->facts != nullptr) step.costs = step.call->inputs();
    step.seconds = call_seconds[i];
    for (const DryRunTensor& input : call.inputs) {
      step.inputs.push_back(input.value);
      most = std::max(most, input.value);
      if (input.made_by >= 0 || input.value < 0) continue;
      if (const auto found = numbers.find(input.name); found != numbers.end()) {
        value_of_parameter_[found->second] = input.value;
      }
    }
    for (const DryRunTensor& output : call.outputs) {
      step.outputs.push_back(output.value);
      most = std::max(most, output.value);
    }
  }
  for (const detail::DryRunGradient& gradient : dry_run.gradients) {
    most = std::max(most, gradient.tensor.value);
    gradients_.push_back({.value = gradient.tensor.value,
                          .parameter = gradient.parameter,
                          .bytes = bytes_of(gradient.tensor)});
  }
  values_.resize(static_cast<std::size_t>(most) + 1);
  results_.resize(steps_.size());
}

Placement LayoutReplay::at(int value) const {
  return value < 0 ? Placement(Replicate{}) : values_[static_cast<std::size_t>(value)];
}

LayoutReplay::Outcome LayoutReplay::decide(const Step& step) const {
  std::vector<Placement> current;
  for (const int input : step.inputs) current.push_back(at(input));
  Outcome outcome = {.strategy = step.call->decide(current)};
  // What a strategy puts off to later calls is counted there.
  tensor::AxisInputs costs = step.costs;
  costs.can_put_off = false;
  outcome.seconds = tensor::strategy_seconds(outcome.strategy, current, costs, mesh_, axis_);
  const auto ranks = static_cast<double>(mesh_.size(axis_));
  outcome.seconds += is_sharded(outcome.strategy) ? step.seconds / ranks : step.seconds;
  return outcome;
}

const LayoutReplay::Outcome& LayoutReplay::outcome_of(Step& step, std::uint64_t key) const {
  const auto found =
      std::ranges::find(step.outcomes, key, &std::pair<std::uint64_t, Outcome>::first);
  if (found != step.outcomes.end()) return found->second;
  return step.outcomes.emplace_back(key, decide(step)).second;
}

double LayoutReplay::run(Step& step) {
  // Exact for up to ten inputs. A prime keeps keys of more inputs apart.
  constexpr std::uint64_t kBase = 67;
  std::uint64_t key = 0;
  bool is_replicated = true;
  for (const int input : step.inputs) {
    const Placement placement = at(input);
    key = key * kBase + code_of(placement);
    is_replicated = is_replicated && placement.is_replicate();
  }
  std::vector<Placement>& results = results_[static_cast<std::size_t>(&step - steps_.data())];
  results.clear();
  const auto set_outputs = [&](const auto& placement_of) {
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
      if (step.outputs[i] < 0) continue;
      results.push_back(placement_of(i));
      values_[static_cast<std::size_t>(step.outputs[i])] = results.back();
    }
  };
  const tensor::CallAlongAxis& call = *step.call;
  const bool has_kernel = call.rule != nullptr && call.rule->kernel != nullptr;
  // As in a run, a call whose inputs are all replicated is not divided.
  if (call.facts == nullptr || (is_replicated && !has_kernel)) {
    set_outputs([](std::size_t) { return Placement(Replicate{}); });
    return step.seconds;
  }
  const Outcome& outcome = outcome_of(step, key);
  const Strategy& chosen = outcome.strategy;
  const bool may_keep = chosen.kernel == nullptr && !has_kernel && !call.facts->returns_view &&
                        !call.facts->may_return_input;
  for (std::size_t i = 0; i < step.inputs.size(); ++i) {
    // A sum that was made for a call stays (dispatch/kernel.cpp, stays_complete).
    const bool is_completed = at(step.inputs[i]).is_partial() && !chosen.inputs[i].is_partial();
    if (step.inputs[i] >= 0 && is_completed && may_keep && !step.costs.is_written[i]) {
      values_[static_cast<std::size_t>(step.inputs[i])] = chosen.inputs[i];
    }
  }
  set_outputs([&](std::size_t i) { return chosen.outputs[chosen.outputs.size() == 1 ? 0 : i]; });
  return outcome.seconds;
}

double LayoutReplay::seconds(const std::vector<Placement>& placements) {
  std::ranges::fill(values_, Placement(Replicate{}));
  double total = 0;
  const auto ranks = static_cast<double>(mesh_.size(axis_));
  for (std::size_t i = 0; i < placements.size(); ++i) {
    total += placements[i].is_shard() ? parameter_seconds_[i] / ranks : parameter_seconds_[i];
    if (value_of_parameter_[i] < 0) continue;
    values_[static_cast<std::size_t>(value_of_parameter_[i])] = placements[i];
  }
  for (Step& step : steps_) total += run(step);
  for (const Gradient& gradient : gradients_) {
    total += tensor::change_seconds(at(gradient.value), placements[gradient.parameter],
                                    gradient.bytes, mesh_, axis_);
  }
  return total;
}

}  // namespace trireme::search
