// SPDX-License-Identifier: Apache-2.0
// What LibTorch's optimizers keep of a parameter, whichever of them it is.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace torch::optim {
class Optimizer;
class OptimizerParamState;
}  // namespace torch::optim

namespace trireme::detail {

inline constexpr std::size_t kMostStateTensors = 3;

/// The five kinds of state have a count of steps, but for SGD, and tensors like the parameter.
struct StateFields {
  std::int64_t* step = nullptr;
  /// As many for every state of a kind; undefined where the optimizer's settings need none.
  c10::SmallVector<at::Tensor*, kMostStateTensors> tensors{};
};

/// Whether it is SGD, Adam, AdamW, RMSprop or Adagrad, or made of one: fields_of knows its state,
/// and each element of a parameter is stepped alone.
bool has_known_state(const torch::optim::Optimizer& optimizer);

/// Of a state of such an optimizer. Points into it.
StateFields fields_of(torch::optim::OptimizerParamState& state);

/// Returns an empty one of such an optimizer.
std::unique_ptr<torch::optim::OptimizerParamState> make_state(
    const torch::optim::Optimizer& optimizer);

}  // namespace trireme::detail
