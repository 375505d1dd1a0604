// SPDX-License-Identifier: Apache-2.0
// A small problem for tests of training: a network with batch norm, and points of three classes.
#pragma once

#include <trireme/data/data_loader.h>
#include <trireme/train/model.h>

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace trireme::testing {

inline torch::nn::Sequential small_network() {
  torch::manual_seed(11);
  return torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8),
                               torch::nn::ReLU(), torch::nn::Linear(8, 3));
}

/// `size` points of 4 features; the class is the place of the largest of the first three.
inline data::DataLoader points(std::int64_t size) {
  torch::manual_seed(12);
  const auto features = torch::randn({size, 4});
  const auto labels = features.narrow(1, 0, 3).argmax(1);
  return data::DataLoader(data::tensors({{"features", features}, {"label", labels}}));
}

inline torch::optim::SGD momentum(const torch::nn::Module& module, double rate = 0.1) {
  return torch::optim::SGD(module.parameters(), torch::optim::SGDOptions(rate).momentum(0.9));
}

inline bool same_parameters(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto left = a.parameters();
  const auto right = b.parameters();
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!left[i].equal(right[i])) return false;
  }
  return left.size() == right.size();
}

}  // namespace trireme::testing
