// SPDX-License-Identifier: Apache-2.0
// A module whose parameters ZeRO level 3 cuts, and how many of them are whole.
#pragma once

#include <trireme/plan/plan.h>

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace trireme::test {

// A stack of layers, each a bucket of its own.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(int depth) {
    for (int i = 0; i < depth; ++i) {
      layers.emplace_back(register_module("layer" + std::to_string(i), torch::nn::Linear(32, 32)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Stack);

inline constexpr std::int64_t kLayerBytes = 33L * 32 * 4;

inline Plan cut(std::int64_t gathered_buckets = 3) {
  return {.bucket_bytes = kLayerBytes,
          .first_bucket_bytes = kLayerBytes,
          .zero_level = 3,
          .gathered_buckets = gathered_buckets};
}

inline std::size_t num_whole(const torch::nn::Module& module) {
  std::set<const void*> whole;
  for (const torch::Tensor& parameter : module.parameters()) {
    if (parameter.storage().nbytes() > 0) whole.insert(parameter.storage().unsafeGetStorageImpl());
  }
  return whole.size();
}

}  // namespace trireme::test
