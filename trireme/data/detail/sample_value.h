// SPDX-License-Identifier: Apache-2.0
// One sample of one column while it is loaded and transformed.
#pragma once

#include <trireme/data/detail/operation.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string_view>

namespace trireme::data::detail {

/// The memory of a sample: in the data set, in scratch memory, in the batch or in a tensor.
struct Value {
  Form form;                        ///< The dtype and sizes.
  const std::byte* data = nullptr;  ///< The first byte of the sample.
  at::Tensor owner;                 ///< Keeps `data` alive if nothing else does.
};

/// Makes a value that keeps the tensor alive. Throws UsageError that begins with `what` unless the
/// tensor is dense and on the CPU.
Value value_of(at::Tensor tensor, std::string_view what = "the result");

/// Returns true if somebody else holds the tensor or its storage, and so may write to its memory
/// again.
bool is_shared(const at::Tensor& tensor);

at::Tensor tensor_of(const Value& value);

}  // namespace trireme::data::detail
