// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/record/module_dry_run.h>

#include <trireme/base/error.h>
#include <trireme/optim/autocast.h>
#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/dry_run/call_trace.h>
#include <trireme/tensor/dry_run/dry_run.h>
#include <trireme/tensor/dry_run/fake_tensors.h>
#include <trireme/tensor/dry_run/results.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceType.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <optional>

namespace trireme::detail {
namespace {

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const NamedTensor& item : tensors) all.push_back(item.tensor);
  return all;
}

// Returns the kind of accelerator that the tensors are on, if they are on one.
std::optional<at::DeviceType> accelerator_of(const std::vector<NamedTensor>& tensors) {
  const auto found = std::ranges::find_if(tensors, [](const NamedTensor& item) {
    return !item.tensor.is_cpu() && !item.tensor.is_meta();
  });
  if (found == tensors.end()) return std::nullopt;
  return found->tensor.device().type();
}

// The tensors of a dry run are on the processor, whatever device the module is on. While this
// lives, the processor has the autocast of the accelerator, and none of its own.
class AutocastOfAccelerator {
 public:
  explicit AutocastOfAccelerator(std::optional<at::DeviceType> accelerator)
      : accelerator_(accelerator) {
    if (!accelerator_) return;
    was_on_ = is_on();
    const at::ScalarType dtype =
        was_on_ ? at::autocast::get_autocast_dtype(*accelerator_) : at::kBFloat16;
    on_processor_.emplace(at::kCPU, dtype, was_on_);
  }

  // Throws UsageError if forward has turned autocast on by itself, which goes unnoticed otherwise.
  void check() const {
    if (was_on_ || !is_on()) return;
    throw UsageError(
        join_message("forward turns on autocast for ", c10::DeviceTypeName(*accelerator_, true),
                     ", and a dry run has its tensors on the processor"),
        "turn autocast on around the whole call, or give a module that is on the processor and "
        "turns it on for that");
  }

 private:
  bool is_on() const { return accelerator_ && at::autocast::is_autocast_enabled(*accelerator_); }

  std::optional<at::DeviceType> accelerator_;
  std::optional<Autocast> on_processor_;
  bool was_on_ = false;
};

// Returns the gradient that backward starts from; undefined for a result of one element.
at::Tensor gradient_of_result(const at::Tensor& result) {
  if (result.numel() == 1 || !tensor::is_wrapper(result)) return {};
  const Layout layout = tensor::distributed_meta(result).layout.without_partial();
  const at::Tensor global =
      at::empty_strided(result.sizes(), result.strides(),
                        at::TensorOptions().dtype(result.dtype()).device(at::kMeta));
  return tensor::wrap(tensor::meta_part(global, layout), layout, result.sizes(), result.strides(),
                      0);
}

std::vector<at::Tensor> backward(const at::Tensor& result, const std::vector<at::Tensor>& inputs) {
  if (!result.defined() || !result.requires_grad() || inputs.empty()) return {};
  return torch::autograd::grad({result}, inputs, {gradient_of_result(result)},
                               /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

}  // namespace

std::vector<NamedTensor> parameters_and_buffers(const torch::nn::Module& module) {
  std::vector<NamedTensor> all = named_tensors(module.named_parameters());
  for (const NamedTensor& buffer : named_tensors(module.named_buffers())) {
    all.push_back(buffer);
  }
  return all;
}

ModuleDryRun dry_run_module(const std::vector<NamedTensor>& tensors,
                            const std::vector<Layout>& layouts,
                            const std::function<at::Tensor()>& forward, int axis_to_decide,
                            tensor::CallTrace* trace) {
  ModuleDryRun all;
  const AutocastOfAccelerator autocast(accelerator_of(tensors));  // before they are replaced
  const tensor::FakeTensors fake_tensors(tensors_of(tensors), layouts);
  tensor::DryRun dry_run(tensor::DryRun::Mode::kInstead,
                         [&](const auto&, const auto&) { autocast.check(); });
  if (axis_to_decide >= 0) dry_run.keep_calls_along(axis_to_decide);
  if (trace != nullptr) dry_run.trace_calls(trace);
  std::vector<at::Tensor> inputs;
  std::vector<std::size_t> parameters;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    dry_run.give_name(tensors[i].tensor, tensors[i].name);
    if (trace != nullptr) trace->add_leaf(tensors[i].tensor);
    if (!tensors[i].tensor.requires_grad()) continue;
    inputs.push_back(tensors[i].tensor);
    parameters.push_back(i);
  }
  const at::Tensor result = forward();
  all.num_forward = dry_run.calls().size();
  if (trace != nullptr) trace->end_forward();
  const std::vector<at::Tensor> found = backward(result, inputs);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) continue;
    all.gradients.push_back({.parameter = parameters[i],
                             .tensor = dry_run.describe(found[i]),
                             .number = trace == nullptr ? -1 : trace->find(found[i])});
  }
  all.calls = dry_run.take_calls();
  all.along_axis = dry_run.calls_along_axis();
  return all;
}

}  // namespace trireme::detail
