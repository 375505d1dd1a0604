// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/execution/stage_run.h>

#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/messages/message_buffers.h>
#include <trireme/parallel/pipeline/offload/saved_activations.h>
#include <trireme/parallel/pipeline/split/node_pointer.h>
#include <trireme/parallel/pipeline/split/weight_gradients.h>
#include <trireme/parallel/recompute/effects.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace trireme::pipeline {

using schedule::Action;
using schedule::ActionKind;
using schedule::item;

namespace {

// The end of a stage's graph, which stores the gradient of one input. It is not a leaf, because
// split operators (split/operators.h) take leaves for weights.
struct InputEnd final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    gradient = std::move(gradients).front();
    return {};
  }
  std::string name() const override { return "StageInput"; }

  at::Tensor gradient;
};

bool is_any_alias(const at::Tensor& tensor, const std::vector<at::Tensor>& others) {
  return std::ranges::any_of(others, [&](const at::Tensor& other) {
    return other.defined() && share_memory(tensor, other);
  });
}

std::vector<std::uint32_t> versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::uint32_t> versions;
  for (const at::Tensor& tensor : tensors) {
    versions.push_back(static_cast<std::uint32_t>(tensor._version()));
  }
  return versions;
}

}  // namespace

// The state of one micro-batch between forward and backward.
struct StageRun::Kept {
  // The offloaded tensors. Declared first, so that it is destroyed after the graph, whose nodes
  // hold tensors of it.
  std::unique_ptr<SavedActivations> memory;
  std::vector<at::Tensor> inputs;  // for recomputation
  std::vector<std::shared_ptr<SavedActivations::Kept>>
      kept_inputs;                                      // in place of `inputs` while offloaded
  std::vector<std::pair<NodePointer, InputEnd*>> ends;  // by input; null without gradient
  torch::autograd::edge_list roots;                     // by output; invalid without graph
  std::shared_ptr<WeightGradients> put_off;
};

StageRun::StageRun(const Program& program, StageCode code, std::span<const Action> actions,
                   HostCopies* copies)
    : program_(program), code_(std::move(code)), copies_(copies) {
  const auto boundary_tensor_of = [&](int value) -> const BoundaryTensor* {
    const auto found = std::ranges::find(program.boundary_tensors, value, &BoundaryTensor::value);
    return found == program.boundary_tensors.end() ? nullptr : &*found;
  };
  for (const int value : code_.inputs) {
    const BoundaryTensor* const boundary_tensor = boundary_tensor_of(value);
    input_has_gradient_.push_back(boundary_tensor != nullptr && boundary_tensor->has_gradient);
  }
  for (const int value : code_.outputs)
    output_boundary_tensors_.push_back(boundary_tensor_of(value));
  const auto count = static_cast<std::size_t>(program.schedule.micro_batches);
  is_recomputed_.resize(count);
  is_split_.resize(count);
  is_offloaded_.resize(count);
  kept_.resize(count);
  for (const Action& action : actions) {
    if (action.stage != code_.stage) continue;
    if (action.kind == ActionKind::kRecompute) item(is_recomputed_, action.micro_batch) = true;
    if (action.kind == ActionKind::kBackwardInput) item(is_split_, action.micro_batch) = true;
    if (action.kind == ActionKind::kOffload) item(is_offloaded_, action.micro_batch) = true;
  }
  for (const at::Tensor& buffer : code_.buffers) saved_buffers_.push_back(at::empty_like(buffer));
}

StageRun::~StageRun() = default;

std::vector<at::Tensor> StageRun::forward(const MicroBatch& micro_batch,
                                          std::vector<at::Tensor> inputs,
                                          const std::vector<bool>& are_callers) {
  Kept& kept = item(kept_, micro_batch.number);
  kept = {};
  const bool recomputes = item(is_recomputed_, micro_batch.number);
  const bool offloads = item(is_offloaded_, micro_batch.number) && !program_.is_evaluation;
  std::vector<at::Tensor> outputs;
  if (offloads && !recomputes) {
    kept.memory = std::make_unique<SavedActivations>(*copies_, join_message("stage ", code_.stage));
    const SavedActivations::Collecting collecting(*kept.memory);
    outputs = run(micro_batch, inputs, kept);
  } else {
    outputs = run(micro_batch, inputs, kept);
  }
  // Forward ran with a graph that is dropped here. Without a graph, LibTorch may choose other
  // kernels.
  if (program_.is_evaluation || recomputes) kept = {};
  if (offloads) {
    keep_for_offload(inputs, are_callers, kept);
  } else if (recomputes && !program_.is_evaluation) {
    kept.inputs = std::move(inputs);
  }
  return outputs;
}

// Prepares the kept tensors for offloading. If the graph was dropped for recomputation, these are
// the inputs. Tensors that outlive the micro-batch stay on the device.
void StageRun::keep_for_offload(const std::vector<at::Tensor>& inputs,
                                const std::vector<bool>& are_callers, Kept& kept) const {
  if (!kept.memory) {
    kept.memory = std::make_unique<SavedActivations>(*copies_, join_message("stage ", code_.stage));
    for (const at::Tensor& input : inputs) kept.kept_inputs.push_back(kept.memory->keep(input));
  }
  SavedActivations::Memories lasting;
  SavedActivations::Memories of_inputs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    (are_callers[i] ? lasting : of_inputs).insert(detail::memory_below(inputs[i]));
  }
  for (const auto& [name, parameter] : code_.parameters) {
    lasting.insert(detail::memory_below(parameter));
  }
  for (const at::Tensor& buffer : code_.buffers) lasting.insert(detail::memory_below(buffer));
  for (const at::Tensor& tensor : code_.lasting) lasting.insert(detail::memory_below(tensor));
  kept.memory->sort(lasting, of_inputs);
}

void StageRun::begin_offload(int micro_batch) {
  if (item(is_offloaded_, micro_batch)) item(kept_, micro_batch).memory->begin();
}

std::vector<const void*> StageRun::offload(int micro_batch) {
  return item(kept_, micro_batch).memory->offload();
}

std::vector<const void*> StageRun::load(int micro_batch) {
  return item(kept_, micro_batch).memory->load();
}

void StageRun::take_loaded(Kept& kept) const {
  if (!kept.memory) return;
  kept.memory->wait_until_loaded();
  for (const auto& input : std::exchange(kept.kept_inputs, {})) {
    kept.inputs.push_back(input->tensor());
  }
  kept.memory.reset();
}

void StageRun::recompute(MicroBatch micro_batch) {
  micro_batch.is_recomputation = true;
  Kept& kept = item(kept_, micro_batch.number);
  take_loaded(kept);
  save_buffers();
  try {
    run(micro_batch, kept.inputs, kept);
  } catch (...) {
    restore_buffers();
    throw;
  }
  restore_buffers();
}

std::vector<at::Tensor> StageRun::run(const MicroBatch& micro_batch,
                                      const std::vector<at::Tensor>& inputs, Kept& kept) {
  std::vector<at::Tensor> arguments;
  kept.ends.clear();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    arguments.push_back(inputs[i].detach());
    kept.ends.emplace_back();
    if (!input_has_gradient_[i]) continue;
    kept.ends.back() = make_node<InputEnd>();
    torch::autograd::set_history(arguments.back(), kept.ends.back().first);
  }
  const std::vector<std::uint32_t> versions = versions_of(arguments);
  if (item(is_split_, micro_batch.number)) kept.put_off = std::make_shared<WeightGradients>();
  std::vector<at::Tensor> outputs;
  {
    const c10::AutoGradMode with_graph(!program_.is_evaluation);
    const WeightGradients::Guard guard(kept.put_off);
    outputs = code_.forward(arguments, micro_batch);
  }
  if (const auto changed = std::ranges::mismatch(versions, versions_of(arguments)).in1;
      changed != versions.end()) {
    throw UsageError(
        join_message("stage ", code_.stage, " changed its input value ",
                     code_.inputs[static_cast<std::size_t>(changed - versions.begin())],
                     " in place, which another stage or its backward may still need"),
        "begin the stage with an operator that is not in-place, or cut the model after it");
  }
  check_outputs(outputs, micro_batch);
  kept.roots.clear();
  for (at::Tensor& output : outputs) {
    kept.roots.push_back(output.requires_grad() ? torch::autograd::impl::gradient_edge(output)
                                                : torch::autograd::Edge());
    output = output.detach();
  }
  return outputs;
}

void StageRun::check_outputs(const std::vector<at::Tensor>& outputs,
                             const MicroBatch& micro_batch) const {
  if (outputs.size() != code_.outputs.size()) {
    throw UsageError(join_message("stage ", code_.stage, " gave ", outputs.size(),
                                  " tensors, expected ", code_.outputs.size()),
                     "forward returns one for each of StageCode::outputs, in their order");
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const BoundaryTensor* const boundary_tensor = output_boundary_tensors_[i];
    const at::Tensor& output = outputs[i];
    if (boundary_tensor == nullptr && code_.outputs[i] != program_.loss && output.defined())
      continue;
    const bool fits =
        output.defined() &&
        (boundary_tensor == nullptr
             ? output.numel() == 1 && output.scalar_type() == program_.loss_dtype
             : output.sizes() ==
                       at::IntArrayRef(item(boundary_tensor->shapes, micro_batch.variant).sizes) &&
                   output.scalar_type() == boundary_tensor->dtype);
    if (fits) continue;
    throw UsageError(
        join_message(
            "stage ", code_.stage, " gave for value ", code_.outputs[i], " ",
            output.defined() ? join_message(output.sizes(), " of ", output.scalar_type())
                             : std::string("an undefined tensor"),
            ", expected ",
            boundary_tensor == nullptr
                ? join_message("the loss, one element of ", program_.loss_dtype)
                : join_message(
                      at::IntArrayRef(item(boundary_tensor->shapes, micro_batch.variant).sizes),
                      " of ", boundary_tensor->dtype)),
        "correct Program::boundary_tensors and the variant of the micro-batch, or the stage");
  }
}

std::vector<at::Tensor> StageRun::parameters_without_gradient() const {
  std::vector<at::Tensor> without;
  for (const auto& [name, parameter] : code_.parameters) {
    if (!parameter.grad().defined()) without.push_back(parameter);
  }
  return without;
}

std::vector<at::Tensor> StageRun::backward(int micro_batch, std::vector<at::Tensor> gradients) {
  Kept& kept = item(kept_, micro_batch);
  take_loaded(kept);
  torch::autograd::edge_list roots;
  std::vector<at::Tensor> of_roots;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!kept.roots[i].is_valid() || !gradients[i].defined()) continue;
    roots.push_back(std::move(kept.roots[i]));
    of_roots.push_back(gradients[i]);
  }
  kept.roots.clear();
  const std::vector<at::Tensor> fresh = parameters_without_gradient();
  if (!roots.empty()) {
    torch::autograd::Engine::get_default_engine().execute(
        roots, of_roots, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
  }
  roots.clear();
  std::vector<at::Tensor> of_inputs(kept.ends.size());
  for (std::size_t i = 0; i < kept.ends.size(); ++i) {
    if (kept.ends[i].second != nullptr) of_inputs[i] = std::move(kept.ends[i].second->gradient);
  }
  kept.ends.clear();
  kept.inputs.clear();
  // Autograd lets a parameter keep the memory of the first gradient that comes. The next one is
  // added into it, while this one may still be on its way to another stage.
  for (const at::Tensor& parameter : fresh) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() &&
        (is_any_alias(gradient, gradients) || is_any_alias(gradient, of_inputs) ||
         (kept.put_off && kept.put_off->reads(gradient)))) {
      gradient = gradient.clone();
    }
  }
  return of_inputs;
}

void StageRun::backward_weight(int micro_batch) {
  Kept& kept = item(kept_, micro_batch);
  kept.put_off->run();
  kept = {};
}

void StageRun::save_buffers() {
  const c10::NoGradGuard no_graph;
  for (std::size_t i = 0; i < saved_buffers_.size(); ++i) {
    saved_buffers_[i].copy_(code_.buffers[i]);
  }
}

void StageRun::restore_buffers() {
  // Does not increment version counters. Graphs that have saved a buffer remain valid, because it
  // gets the same values again.
  const at::AutoDispatchBelowADInplaceOrView below;
  for (std::size_t i = 0; i < saved_buffers_.size(); ++i) {
    code_.buffers[i].copy_(saved_buffers_[i]);
  }
}

}  // namespace trireme::pipeline
