// SPDX-License-Identifier: Apache-2.0
// Memory for tensors whose size stands in a file. Internal to this component.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace trireme::checkpoint {

// New CPU memory, not initialised. Throws CheckpointError that begins with `what` where the process
// may not have so much, before it is asked for.
at::Tensor memory_for(const std::string& what, at::IntArrayRef shape, at::ScalarType dtype);

}  // namespace trireme::checkpoint
