// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/training/inputs_of_rows.h>

#include <ATen/ops/empty.h>

namespace trireme::search {

std::vector<at::Tensor> inputs_of_rows(const std::vector<at::Tensor>& inputs, std::int64_t rows) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& input : inputs) {
    if (input.dim() == 0) {
      all.push_back(input);
      continue;
    }
    std::vector<std::int64_t> sizes = input.sizes().vec();
    sizes.front() = rows;
    all.push_back(at::empty(sizes, input.options().device(at::kMeta)));
  }
  return all;
}

}  // namespace trireme::search
