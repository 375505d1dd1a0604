// SPDX-License-Identifier: Apache-2.0
// The state that LibTorch's optimizers keep for a parameter, accessed uniformly for all kinds of
// optimizers.
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

/// The fields of a state. All five kinds of state have tensors with the shape of the parameter, and
/// all except SGD's have a count of steps.
struct StateFields {
  /// The count of steps, or nullptr for SGD.
  std::int64_t* step = nullptr;
  /// The tensors, the same number for every state of a kind. A tensor is undefined if the
  /// optimizer's settings do not need it.
  c10::SmallVector<at::Tensor*, kMostStateTensors> tensors{};
};

/// Returns true for SGD, Adam, AdamW, RMSprop, Adagrad and classes derived from them, and for LAMB.
/// fields_of() knows their state. They can step parts of parameters: all but LAMB step each element
/// by itself, and LAMB takes set_lamb_parts().
bool has_known_state(const torch::optim::Optimizer& optimizer);

/// Returns the fields of a state of such an optimizer. The result points into `state`.
StateFields fields_of(torch::optim::OptimizerParamState& state);

/// Returns an empty state for such an optimizer.
std::unique_ptr<torch::optim::OptimizerParamState> make_state(
    const torch::optim::Optimizer& optimizer);

}  // namespace trireme::detail
