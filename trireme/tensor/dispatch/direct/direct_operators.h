// SPDX-License-Identifier: Apache-2.0
// The list of operators that have a direct kernel in front of the boxed one.
#pragma once

#include <trireme/tensor/dispatch/kernel.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>

namespace trireme::tensor {

/// Returns the function to register for an operator. The operators that make up most calls of a
/// training step get a direct kernel that falls back to `boxed`; the others get `boxed` itself.
torch::CppFunction kernel_function(const c10::OperatorHandle& op,
                                   std::unique_ptr<DistributedKernel> boxed);

}  // namespace trireme::tensor
