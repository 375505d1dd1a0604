// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/element_bytes.h>

#include <algorithm>

namespace trireme::predict {
namespace {

constexpr double kFloat32Bytes = 4;
constexpr double kHalfBytes = 2;

// Numbers that the optimizer keeps for each element.
double num_states(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::kSgd:
      return 0;
    case Optimizer::kMomentum:
      return 1;
    case Optimizer::kAdam:
      break;
  }
  return 2;
}

}  // namespace

double gradient_bytes(const ParameterRecord& parameter, const TrainingOptions& options) {
  return parameter.is_half && !options.has_float32_gradients ? kHalfBytes : kFloat32Bytes;
}

double optimizer_bytes(const ParameterRecord& parameter, const TrainingOptions& options) {
  if (options.optimizer_state_bytes) {
    return *options.optimizer_state_bytes * parameter.bytes / std::max(1.0, parameter.elements);
  }
  if (!parameter.is_half) return num_states(options.optimizer) * kFloat32Bytes;
  if (!options.has_master_weights) return num_states(options.optimizer) * kHalfBytes;
  return (num_states(options.optimizer) + 1) * kFloat32Bytes;
}

}  // namespace trireme::predict
