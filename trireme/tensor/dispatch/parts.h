// SPDX-License-Identifier: Apache-2.0
// Finds the mesh axes that shard the dims of one tensor into given numbers of parts.
#pragma once

#include <trireme/tensor/layout.h>

#include <optional>
#include <string>

namespace trireme::tensor {

/// Why a mesh cannot shard a tensor in the wanted way, and what to do.
struct Obstacle {
  std::string what;  ///< end of a message, after what was asked for
  std::string hint;  ///< what to do
};

/// Returns nullopt if dims can be sharded into `parts`: one number for each dim, none below one.
std::optional<Obstacle> obstacle_to(const DeviceMesh& mesh, c10::IntArrayRef parts);

/// Returns the layout that shards dims into `parts`, using axes from the first; nullopt if none
/// does.
std::optional<Layout> find_layout(const DeviceMesh& mesh, c10::IntArrayRef parts);

}  // namespace trireme::tensor
