// SPDX-License-Identifier: Apache-2.0
// The loss of a training for another number of rows.
#pragma once

#include <trireme/search/training/training.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace trireme::search {

/// Returns a function that runs forward on meta tensors of the dtypes and sizes of the training's
/// inputs, but for dim 0, which has `rows`. Inputs without dims are given as they are. It returns
/// the loss. It throws UsageError if forward returns none, and what forward throws.
std::function<at::Tensor()> loss_of_rows(const Training& training, std::int64_t rows);

}  // namespace trireme::search
