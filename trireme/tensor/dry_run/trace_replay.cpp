// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dry_run/trace_replay.h>

#include <trireme/tensor/dry_run/interception.h>
#include <trireme/tensor/dry_run/results.h>
#include <trireme/tensor/ivalue_tensors.h>

#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

namespace trireme::tensor {
namespace {

// Calls arrive at the dry run directly, as they do from below autograd.
struct WithoutAutograd {
  c10::impl::ExcludeDispatchKeyGuard exclude{c10::DispatchKeySet(kBelowAutograd) | kAboveLocal};
};

}  // namespace

TraceReplay::TraceReplay(const CallTrace& trace, const DeviceMesh& mesh,
                         const std::vector<Layout>& leaves, int axis)
    : states_{{.layout = Layout::replicated(mesh)}},
      codes_(static_cast<std::size_t>(trace.num_tensors()), 0),
      outcomes_(trace.kinds().size()) {
  for (std::size_t i = 0; i < leaves.size(); ++i) codes_[i] = code_of(State{.layout = leaves[i]});
  follow(trace, axis);
}

TraceReplay::Code TraceReplay::code_of(const State& state) {
  const auto found = std::ranges::find(states_, state);
  const auto code = static_cast<Code>(found - states_.begin());
  if (found == states_.end()) states_.push_back(state);
  return code;
}

TraceReplay::Code TraceReplay::code_of(const at::Tensor& tensor) {
  const DistributedMeta& meta = distributed_meta(tensor);
  return code_of(State{.layout = meta.layout,
                       .is_copy_of_view = meta.is_copy_of_view,
                       .is_own_copy = meta.is_copy_of_view && meta.is_own});
}

void TraceReplay::follow(const CallTrace& trace, int axis) {
  const WithoutAutograd without_autograd;
  DryRun dry_run;
  if (axis >= 0) dry_run.keep_calls_along(axis);
  positions_.reserve(trace.calls().size());
  for (const TracedCall& call : trace.calls()) {
    before_.clear();
    for (const int number : call.inputs) {
      before_.push_back(number < 0 ? kPlain : codes_[static_cast<std::size_t>(number)]);
    }
    const Outcome* const outcome = outcome_of(trace.kinds()[call.kind], call.kind, dry_run);
    if (outcome == nullptr) {
      is_as_traced_ = false;
      return;
    }
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      if (call.inputs[i] >= 0) codes_[static_cast<std::size_t>(call.inputs[i])] = outcome->after[i];
    }
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      codes_[static_cast<std::size_t>(call.outputs[i])] = outcome->outputs[i];
    }
    positions_.push_back(outcome->position);
  }
}

// Returns null if the results are not those of the trace.
const TraceReplay::Outcome* TraceReplay::outcome_of(const TracedKind& kind, std::size_t number,
                                                    DryRun& dry_run) {
  std::vector<Outcome>& known = outcomes_[number];
  if (!kind.follows_others) {
    const auto found = std::ranges::find(known, before_, &Outcome::before);
    if (found != known.end()) return &*found;
  }
  Outcome outcome = {.before = before_};
  if (!decide(kind, outcome, dry_run)) return nullptr;
  return &known.emplace_back(std::move(outcome));
}

at::Tensor TraceReplay::tensor_of(const TracedKind::Input& input, Code code) const {
  const State& state = states_[code];
  const at::Tensor global =
      at::empty_strided(input.geometry.sizes, input.geometry.strides,
                        at::TensorOptions().dtype(input.dtype).device(at::kMeta));
  at::Tensor tensor = wrap(meta_part(global, state.layout), state.layout, input.geometry);
  if (input.is_wrapped_number) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  DistributedMeta& meta = distributed_meta(tensor);
  meta.is_copy_of_view = state.is_copy_of_view;
  meta.is_own = input.is_own || state.is_own_copy;
  return tensor;
}

bool TraceReplay::decide(const TracedKind& kind, Outcome& outcome, DryRun& dry_run) {
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < kind.inputs.size(); ++i) {
    const TracedKind::Input& input = kind.inputs[i];
    if (input.plain.defined()) {
      tensors.push_back(input.plain);
    } else {
      tensors.push_back(input.first < i ? tensors[input.first]
                                        : tensor_of(input, outcome.before[i]));
    }
  }
  std::size_t next = 0;
  torch::jit::Stack stack;
  for (const c10::IValue& argument : kind.arguments) {
    stack.push_back(map_tensors(argument, [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensors[next++] : tensor;
    }));
  }
  dry_run.take(kind.op, {}, stack);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (kind.inputs[i].plain.defined()) {
      outcome.after.push_back(kPlain);
      continue;
    }
    if (!has_geometry(tensors[i], kind.inputs[i].geometry)) return false;
    outcome.after.push_back(code_of(tensors[i]));
  }
  bool is_as_traced = true;
  for (const c10::IValue& result : stack) {
    visit_tensors(result, [&](const at::Tensor& tensor) {
      if (!is_wrapper(tensor)) return;
      const std::size_t output = outcome.outputs.size();
      is_as_traced = is_as_traced && output < kind.outputs.size() &&
                     has_geometry(tensor, kind.outputs[output]);
      outcome.outputs.push_back(code_of(tensor));
    });
  }
  if (!is_as_traced || outcome.outputs.size() != kind.outputs.size()) return false;
  outcome.position = decided_.size();
  decided_.push_back(dry_run.calls().back());
  const auto& along_axis = dry_run.calls_along_axis();
  if (!along_axis.empty()) along_axis_.push_back(along_axis.back());
  return true;
}

}  // namespace trireme::tensor
