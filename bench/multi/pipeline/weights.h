// SPDX-License-Identifier: Apache-2.0
// Weights that this program and its peer in PyTorch have in common.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <cstdint>

namespace bench {

inline constexpr double kLearningRate = 0.01;

/// Random numbers of that seed, the same in both programs.
inline at::Generator numbers(std::uint64_t seed) { return at::detail::createCPUGenerator(seed); }

/// Gives a module the same weights in both programs, in whichever order layers are constructed:
/// those of each parameter follow from its place among all.
inline void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  std::uint64_t seed = 1;
  for (auto& item : module.named_parameters()) {
    torch::Tensor& parameter = item.value();
    if (parameter.dim() > 1) {
      parameter.normal_(0, 0.02, numbers(seed));
    } else {
      parameter.fill_(item.key().ends_with("weight") ? 1 : 0);
    }
    ++seed;
  }
}

}  // namespace bench
