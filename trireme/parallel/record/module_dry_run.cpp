// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/record/module_dry_run.h>

#include <trireme/base/error.h>
#include <trireme/parallel/module/named_tensors.h>
#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/dry_run/dry_run.h>
#include <trireme/tensor/dry_run/fake_tensors.h>
#include <trireme/tensor/dry_run/results.h>

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

namespace trireme::detail {
namespace {

std::vector<at::Tensor> checked(const std::vector<NamedTensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const NamedTensor& item : tensors) {
    if (!item.tensor.is_cpu() && !item.tensor.is_meta()) {
      throw UsageError(
          join_message("parameter ", item.name, " is on ", item.tensor.device(),
                       ", and can only be explained on the processor or as a meta tensor"),
          "explain the module before it goes to its device");
    }
    all.push_back(item.tensor);
  }
  return all;
}

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
                            const std::function<at::Tensor()>& forward, int axis_to_decide) {
  ModuleDryRun all;
  const tensor::FakeTensors fake_tensors(checked(tensors), layouts);
  tensor::DryRun dry_run;
  if (axis_to_decide >= 0) dry_run.keep_calls_along(axis_to_decide);
  std::vector<at::Tensor> inputs;
  std::vector<std::size_t> parameters;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    dry_run.give_name(tensors[i].tensor, tensors[i].name);
    if (!tensors[i].tensor.requires_grad()) continue;
    inputs.push_back(tensors[i].tensor);
    parameters.push_back(i);
  }
  const at::Tensor result = forward();
  all.num_forward = dry_run.calls().size();
  const std::vector<at::Tensor> found = backward(result, inputs);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].defined()) all.gradients.push_back({parameters[i], dry_run.describe(found[i])});
  }
  all.calls = dry_run.calls();
  all.along_axis = dry_run.calls_along_axis();
  return all;
}

}  // namespace trireme::detail
