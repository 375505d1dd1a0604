// SPDX-License-Identifier: Apache-2.0
// The number of parameters of a network, which tests compare with formulas and published numbers.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace models {

/// Returns the number of elements of all parameters. They need no memory.
inline std::int64_t count_parameters(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

}  // namespace models
