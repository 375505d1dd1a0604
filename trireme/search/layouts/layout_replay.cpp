// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/layouts/layout_replay.h>

#include <algorithm>
#include <unordered_map>

namespace trireme::search {

using tensor::DryRunCall;
using tensor::DryRunTensor;
using tensor::Strategy;

namespace {

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

LayoutReplay::LayoutReplay(const detail::ModuleDryRun& dry_run, const AlongAxis& along_axis,
                           const LaidOutModule& laid_out, int axis,
                           const std::vector<double>& call_seconds,
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
  const auto note = [&](const DryRunTensor& tensor) { most = std::max(most, tensor.value); };
  for (const DryRunCall& call : dry_run.calls) {
    std::ranges::for_each(call.inputs, note);
    std::ranges::for_each(call.outputs, note);
  }
  for (const detail::DryRunGradient& gradient : dry_run.gradients) note(gradient.tensor);
  const auto plain = static_cast<std::size_t>(most) + 1;
  values_.resize(plain + 1);
  for (std::size_t i = 0; i < dry_run.calls.size(); ++i) {
    const DryRunCall& call = dry_run.calls[i];
    Step& step = steps_.emplace_back();
    step.kind = kind_of(along_axis[i]);
    step.seconds = call_seconds[i];
    step.inputs.begin = inputs_.size();
    for (const DryRunTensor& input : call.inputs) {
      inputs_.push_back(input.value < 0 ? plain : static_cast<std::size_t>(input.value));
      if (input.made_by >= 0 || input.value < 0) continue;
      if (const auto found = numbers.find(input.name); found != numbers.end()) {
        value_of_parameter_[found->second] = input.value;
      }
    }
    step.inputs.end = inputs_.size();
    step.outputs.begin = outputs_.size();
    for (std::size_t output = 0; output < call.outputs.size(); ++output) {
      const int value = call.outputs[output].value;
      if (value < 0) continue;
      outputs_.push_back({.value = static_cast<std::size_t>(value), .result = output});
    }
    step.outputs.end = outputs_.size();
  }
  for (const detail::DryRunGradient& gradient : dry_run.gradients) {
    gradients_.push_back({.value = gradient.tensor.value,
                          .parameter = gradient.parameter,
                          .bytes = bytes_of(gradient.tensor)});
  }
  results_.resize(outputs_.size());
}

int LayoutReplay::kind_of(const std::shared_ptr<const tensor::CallAlongAxis>& call) {
  if (call == nullptr) return -1;
  const auto [found, is_new] =
      kind_of_call_.try_emplace(call.get(), static_cast<int>(kinds_.size()));
  if (is_new) {
    CallKind& kind = kinds_.emplace_back();
    kind.call = call;
    kind.costs = call->inputs();
    kind.has_kernel = call->rule != nullptr && call->rule->kernel != nullptr;
    kind.may_keep =
        !kind.has_kernel && !call->facts->returns_view && !call->facts->may_return_input;
  }
  return found->second;
}

LayoutReplay::Code LayoutReplay::code_of(const Placement& placement) {
  const auto found = std::ranges::find(placements_, placement);
  const auto code = static_cast<Code>(found - placements_.begin());
  if (found == placements_.end()) placements_.push_back(placement);
  return code;
}

Placement LayoutReplay::at(int value) const {
  return value < 0 ? Placement(Replicate{}) : placements_[values_[static_cast<std::size_t>(value)]];
}

LayoutReplay::Outcome LayoutReplay::decide(const CallKind& kind, const Step& step) {
  std::vector<Placement> current;
  for (std::size_t i = step.inputs.begin; i < step.inputs.end; ++i) {
    current.push_back(placements_[values_[inputs_[i]]]);
  }
  const Strategy strategy = kind.call->decide(current);
  // What a strategy puts off to later calls is counted there.
  tensor::AxisInputs costs = kind.costs;
  costs.can_put_off = false;
  Outcome outcome = {.seconds = tensor::strategy_seconds(strategy, current, costs, mesh_, axis_),
                     .is_sharded = is_sharded(strategy)};
  for (const Placement& placement : strategy.outputs) {
    outcome.outputs.push_back(code_of(placement));
  }
  if (!kind.may_keep || strategy.kernel != nullptr) return outcome;
  for (std::size_t i = 0; i < current.size(); ++i) {
    // A sum that was made for a call stays (dispatch/kernel.cpp, stays_complete).
    const bool is_completed = current[i].is_partial() && !strategy.inputs[i].is_partial();
    if (is_completed && !kind.costs.is_written[i]) {
      outcome.kept.emplace_back(i, code_of(strategy.inputs[i]));
    }
  }
  return outcome;
}

const LayoutReplay::Outcome& LayoutReplay::outcome_of(CallKind& kind, const Step& step,
                                                      std::uint64_t key) {
  const auto found =
      std::ranges::find(kind.outcomes, key, &std::pair<std::uint64_t, Outcome>::first);
  if (found != kind.outcomes.end()) return found->second;
  return kind.outcomes.emplace_back(key, decide(kind, step)).second;
}

double LayoutReplay::run(const Step& step) {
  // Exact for up to ten inputs. A prime keeps keys of more inputs apart.
  constexpr std::uint64_t kBase = 67;
  std::uint64_t key = 0;  // 0: all inputs are replicated
  for (std::size_t i = step.inputs.begin; i < step.inputs.end; ++i) {
    key = key * kBase + values_[inputs_[i]];
  }
  // As in a run, a call whose inputs are all replicated is not divided.
  if (step.kind < 0 || (key == 0 && !kinds_[static_cast<std::size_t>(step.kind)].has_kernel)) {
    for (std::size_t i = step.outputs.begin; i < step.outputs.end; ++i) {
      results_[i] = values_[outputs_[i].value] = 0;
    }
    return step.seconds;
  }
  const Outcome& outcome = outcome_of(kinds_[static_cast<std::size_t>(step.kind)], step, key);
  for (const auto& [input, code] : outcome.kept) {
    Code& value = values_[inputs_[step.inputs.begin + input]];
    if (placements_[value].is_partial()) value = code;
  }
  for (std::size_t i = step.outputs.begin; i < step.outputs.end; ++i) {
    const auto& [value, result] = outputs_[i];
    results_[i] = values_[value] = outcome.outputs[outcome.outputs.size() == 1 ? 0 : result];
  }
  const auto ranks = static_cast<double>(mesh_.size(axis_));
  return outcome.seconds + (outcome.is_sharded ? step.seconds / ranks : step.seconds);
}

double LayoutReplay::seconds(const std::vector<Placement>& placements) {
  std::ranges::fill(values_, Code{0});
  double total = 0;
  const auto ranks = static_cast<double>(mesh_.size(axis_));
  for (std::size_t i = 0; i < placements.size(); ++i) {
    total += placements[i].is_shard() ? parameter_seconds_[i] / ranks : parameter_seconds_[i];
    if (value_of_parameter_[i] < 0) continue;
    values_[static_cast<std::size_t>(value_of_parameter_[i])] = code_of(placements[i]);
  }
  for (const Step& step : steps_) total += run(step);
  for (const Gradient& gradient : gradients_) {
    total += tensor::change_seconds(at(gradient.value), placements[gradient.parameter],
                                    gradient.bytes, mesh_, axis_);
  }
  return total;
}

std::vector<Placement> LayoutReplay::results_of(std::size_t call) const {
  std::vector<Placement> results;
  for (std::size_t i = steps_[call].outputs.begin; i < steps_[call].outputs.end; ++i) {
    results.push_back(placements_[results_[i]]);
  }
  return results;
}

}  // namespace trireme::search
