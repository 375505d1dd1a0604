// SPDX-License-Identifier: Apache-2.0
// One sample of one column on its way into the batch.
#pragma once

#include <trireme/data/detail/operation.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string_view>

namespace trireme::data::detail {

/// Lies in the data set, in scratch memory, in the batch or in a tensor.
struct Value {
  Form form;
  const std::byte* data = nullptr;
  at::Tensor owner;  // keeps `data` alive where nothing else does
};

/// A value that keeps the tensor. Throws UsageError that begins with `what` unless it is a dense
/// one on the CPU.
Value value_of(at::Tensor tensor, std::string_view what = "the result");

/// Whether a function that has made the tensor may write to its memory again.
bool is_shared(const at::Tensor& tensor);

/// A tensor of its own with that value.
at::Tensor tensor_of(const Value& value);

}  // namespace trireme::data::detail
