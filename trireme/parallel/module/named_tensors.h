// SPDX-License-Identifier: Apache-2.0
// Lists the parameters or buffers of a module, each once.
#pragma once

#include <trireme/parallel/module/agreement.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace trireme::detail {

/// Returns the tensors in their order. A tensor that several modules share is listed once, under
/// its first name. Undefined tensors are left out.
/// @param tensors a torch::OrderedDict from names to tensors.
template <typename OrderedDict>
std::vector<NamedTensor> named_tensors(const OrderedDict& tensors) {
  std::vector<NamedTensor> all;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : tensors) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      all.push_back({item.key(), item.value()});
    }
  }
  return all;
}

}  // namespace trireme::detail
