// SPDX-License-Identifier: Apache-2.0
// NodePointer and make_node(): the type by which LibTorch holds autograd nodes. It is an intrusive
// pointer from LibTorch 2.13 on, and std::shared_ptr before.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace trireme::pipeline {

/// The pointer to a node that edges of the graph hold.
using NodePointer = decltype(torch::autograd::Edge::function);

/// Makes a node of type `Kind`. Returns the owning pointer, and a plain pointer of the node's type.
template <typename Kind, typename... Arguments>
std::pair<NodePointer, Kind*> make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    auto node = std::make_shared<Kind>(std::forward<Arguments>(arguments)...);
    Kind* const itself = node.get();
    return {std::move(node), itself};
  } else {
    auto node = c10::make_intrusive<Kind>(std::forward<Arguments>(arguments)...);
    Kind* const itself = node.get();
    return {std::move(node), itself};
  }
}

}  // namespace trireme::pipeline
