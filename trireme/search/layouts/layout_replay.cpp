// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/layouts/layout_replay.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace trireme::search {

using tensor::CallStrategies;
using tensor::DryRunCall;
using tensor::DryRunTensor;
using tensor::Strategy;

namespace {

char code_of(const Placement& placement) {
  constexpr int kFirstDim = 8;
  if (placement.is_replicate()) return 1;
  if (placement.is_shard()) return static_cast<char>(kFirstDim + placement.dim());
  return static_cast<char>(2 + static_cast<int>(placement.op()));
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
    step.strategies = &dry_run.strategies[i];
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
    const auto& written = step.strategies->inputs.is_written;
    step.is_written.assign(written.begin(), written.end());
  }
  for (const detail::DryRunGradient& gradient : dry_run.gradients) {
    most = std::max(most, gradient.tensor.value);
    gradients_.push_back({.value = gradient.tensor.value,
                          .parameter = gradient.parameter,
                          .bytes = bytes_of(gradient.tensor)});
  }
  values_.resize(static_cast<std::size_t>(most + 1));
}

Placement LayoutReplay::at(int value) const {
  return value < 0 ? Placement(Replicate{}) : values_[static_cast<std::size_t>(value)];
}

LayoutReplay::Outcome LayoutReplay::decide(const Step& step,
                                           const std::vector<Placement>& current) const {
  const CallStrategies& all = *step.strategies;
  Outcome outcome;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < all.strategies.size(); ++i) {
    const double seconds =
        tensor::strategy_seconds(all.strategies[i], current, all.inputs, mesh_, axis_);
    if (seconds >= least) continue;
    least = seconds;
    outcome.strategy = i;
  }
  // What is put off to later calls is counted there.
  tensor::AxisInputs now = all.inputs;
  now.can_put_off = false;
  const Strategy& chosen = all.strategies[outcome.strategy];
  const auto ranks = static_cast<double>(mesh_.size(axis_));
  outcome.seconds = tensor::strategy_seconds(chosen, current, now, mesh_, axis_) +
                    (is_sharded(chosen) ? step.seconds / ranks : step.seconds);
  return outcome;
}

double LayoutReplay::run(Step& step) {
  std::string key;
  bool is_replicated = true;
  for (const int input : step.inputs) {
    key.push_back(code_of(at(input)));
    is_replicated = is_replicated && at(input).is_replicate();
  }
  const auto set_outputs = [&](const Strategy* strategy) {
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
      if (step.outputs[i] < 0) continue;
      values_[static_cast<std::size_t>(step.outputs[i])] =
          strategy == nullptr ? Placement(Replicate{})
                              : strategy->outputs[strategy->outputs.size() == 1 ? 0 : i];
    }
  };
  // As in a run, a call whose inputs are all replicated is not divided.
  if ((is_replicated && !step.strategies->has_kernel) || step.strategies->strategies.empty()) {
    set_outputs(nullptr);
    return step.seconds;
  }
  const auto [found, is_new] = step.outcomes.try_emplace(std::move(key));
  if (is_new) {
    std::vector<Placement> current;
    for (const int input : step.inputs) current.push_back(at(input));
    found->second = decide(step, current);
  }
  const Outcome& outcome = found->second;
  const Strategy& chosen = step.strategies->strategies[outcome.strategy];
  const bool may_keep = chosen.kernel == nullptr && !step.strategies->has_kernel &&
                        !step.strategies->returns_view && !step.strategies->may_return_input;
  for (std::size_t i = 0; i < step.inputs.size(); ++i) {
    // A sum that was made for a call stays (dispatch/kernel.cpp, stays_complete).
    const bool is_completed = at(step.inputs[i]).is_partial() && !chosen.inputs[i].is_partial();
    if (step.inputs[i] >= 0 && is_completed && may_keep && !step.is_written[i]) {
      values_[static_cast<std::size_t>(step.inputs[i])] = chosen.inputs[i];
    }
  }
  set_outputs(&chosen);
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
