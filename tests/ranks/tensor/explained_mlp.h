// SPDX-License-Identifier: Apache-2.0
// What tests of explain share: a small network, and plans by mesh and layouts.
#pragma once

#include <trireme/plan/plan.h>

#include <torch/torch.h>

#include <utility>
#include <vector>

namespace trireme::test {

struct MlpImpl : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(16, 64));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(64, 16));
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::relu(up(x))); }
};
TORCH_MODULE(Mlp);

inline Plan plan_of(std::vector<MeshAxis> mesh, ParameterLayouts layouts) {
  Plan plan;
  plan.mesh = std::move(mesh);
  plan.layouts = std::move(layouts);
  return plan;
}

}  // namespace trireme::test
