// SPDX-License-Identifier: Apache-2.0
// How LibTorch holds nodes of a graph: counted in themselves from 2.13 on, by shared pointers
// before.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace trireme::pipeline {

using NodePointer = decltype(torch::autograd::Edge::function);

/// Makes a node and returns what `Node` functions take, and the node itself.
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
