// SPDX-License-Identifier: Apache-2.0
// Allocates tensors whose size comes from a file. Internal to this component.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace trireme::checkpoint {

/// Returns an uninitialized CPU tensor. Throws CheckpointError that begins with `what` if the
/// process cannot have that much memory, before it is requested.
at::Tensor memory_for(const std::string& what, at::IntArrayRef shape, at::ScalarType dtype);

}  // namespace trireme::checkpoint
