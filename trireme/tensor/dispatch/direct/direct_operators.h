// SPDX-License-Identifier: Apache-2.0
// Which operators have a kernel of their own signature beside the boxed one.
#pragma once

#include <trireme/tensor/dispatch/kernel.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>

namespace trireme::tensor {

/// What to register for an operator: its direct kernel, in front of the boxed one, if it is one of
/// those that most calls of a training step are; else the boxed one itself.
torch::CppFunction kernel_function(const c10::OperatorHandle& op,
                                   std::unique_ptr<DistributedKernel> boxed);

}  // namespace trireme::tensor
