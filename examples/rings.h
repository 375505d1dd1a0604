// SPDX-License-Identifier: Apache-2.0
// A small problem for examples: points of the plane, and whether each lies inside a circle.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace examples {

struct Points {
  torch::Tensor places;  // [n, 2]
  torch::Tensor labels;  // [n], 0 inside and 1 outside
};

/// The same points on every rank and in every run.
inline Points rings(std::int64_t count) {
  auto generator = at::detail::createCPUGenerator(/*seed_val=*/1);
  const torch::Tensor places = torch::randn({count, 2}, generator);
  return {places, (places.square().sum(1) > 1.4).to(torch::kLong)};
}

/// Every `ranks`-th point, from `rank` on: what this rank trains with.
inline Points part_of(const Points& points, std::int64_t rank, std::int64_t ranks) {
  const auto part = torch::indexing::Slice(rank, torch::indexing::None, ranks);
  return {points.places.index({part}).contiguous(), points.labels.index({part}).contiguous()};
}

/// [n, 2] to the scores of both classes, [n, 2].
inline torch::nn::Sequential make_network() {
  return torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 2));
}

}  // namespace examples
