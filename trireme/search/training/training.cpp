// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/training/training.h>

#include <trireme/base/error.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/dry_run/fake_tensors.h>

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <utility>

namespace trireme::search {
namespace {

// Some operators, such as an LSTM, want their inputs on the device of the parameters. In a dry run
// these are distributed tensors without values, and so are the inputs then, replicated.
std::vector<at::Tensor> on_mesh_of(const ModuleRef& module, const std::vector<at::Tensor>& inputs) {
  const auto parameters = module->parameters();
  if (parameters.empty() || !has_layout(parameters.front())) return inputs;
  const Layout replicated = Layout::replicated(layout_of(parameters.front()).mesh());
  std::vector<at::Tensor> all;
  for (const at::Tensor& input : inputs) {
    const bool is_fake = input.defined() && input.is_meta();
    all.push_back(is_fake ? tensor::fake_tensor(input, replicated) : input);
  }
  return all;
}

}  // namespace

std::function<at::Tensor()> loss_of_rows(const Training& training, std::int64_t rows) {
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& input : training.inputs) {
    if (!input.defined() || input.dim() == 0) {
      inputs.push_back(input);
      continue;
    }
    std::vector<std::int64_t> sizes = input.sizes().vec();
    sizes.front() = rows;
    inputs.push_back(at::empty(sizes, input.options().device(at::kMeta)));
  }
  return [&training, inputs = std::move(inputs)] {
    const std::vector<at::Tensor> results = training.forward(on_mesh_of(training.module, inputs));
    if (!results.empty() && results.front().defined()) return results.front();
    throw UsageError("forward of the training returned no loss",
                     "return the loss first, as for a TrainingStep");
  };
}

}  // namespace trireme::search
