// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/training/loss_of_rows.h>

#include <trireme/base/error.h>

#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

namespace trireme::search {

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
    const std::vector<at::Tensor> results = training.forward(inputs);
    if (!results.empty() && results.front().defined()) return results.front();
    throw UsageError("forward of the training returned no loss",
                     "return the loss first, as for a TrainingStep");
  };
}

}  // namespace trireme::search
