// SPDX-License-Identifier: Apache-2.0
// Which axes of a mesh cut the dims of one tensor into given numbers of parts.
#pragma once

#include <trireme/tensor/layout.h>

#include <optional>
#include <string>

namespace trireme::tensor {

/// Why a mesh cannot cut a tensor so, and what to do.
struct Obstacle {
  std::string what;
  std::string hint;
};

/// None where dims can be cut into `parts`, one number a dim and none below one.
std::optional<Obstacle> obstacle_to(const DeviceMesh& mesh, c10::IntArrayRef parts);

/// The layout that cuts dims into `parts`, the first axes taken first; none where none does.
std::optional<Layout> find_layout(const DeviceMesh& mesh, c10::IntArrayRef parts);

}  // namespace trireme::tensor
