// SPDX-License-Identifier: Apache-2.0
// Inputs of a module for another number of rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::search {

/// Returns meta tensors of the same dtypes and sizes, but for dim 0, which has `rows`. Tensors
/// without dims are returned as they are.
std::vector<at::Tensor> inputs_of_rows(const std::vector<at::Tensor>& inputs, std::int64_t rows);

}  // namespace trireme::search
