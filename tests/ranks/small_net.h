// SPDX-License-Identifier: Apache-2.0
// A small network with what is hard about gradients, its data and its loss.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace trireme::test {

// Convolution, batch norm (with buffers), a tied weight and one parameter in double.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    conv =
        register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    first = register_module("first", torch::nn::Linear(4 * 6 * 6, 13));
    second = register_module("second", torch::nn::Linear(13, 13));
    third = register_module("third", torch::nn::Linear(13, 13));
    third->weight = third->register_parameter("weight2", second->weight);
    scale = register_parameter("scale", torch::ones({3}, torch::kDouble));
    unused = register_parameter("unused", torch::ones({5}));
  }

  torch::Tensor forward(const torch::Tensor& images, bool use_all = false) {
    torch::Tensor x = torch::relu(norm(conv(images))).flatten(1);
    x = third(torch::relu(second(torch::relu(first(x)))));
    x = x * scale.sum().to(torch::kFloat);
    return use_all ? x + unused.sum() : x;
  }

  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  torch::Tensor scale, unused;
};
TORCH_MODULE(Net);

inline Net make_net(std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  Net net;
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(torch::rand(parameter.sizes(), generator, parameter.options()) - 0.4);
  }
  return net;
}

inline torch::Tensor make_batch(int step, std::int64_t micro_batch) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000L * step + micro_batch));
  return torch::rand({6, 1, 8, 8}, generator, torch::kFloat);
}

inline torch::Tensor loss_of(Net& net, const torch::Tensor& batch, bool use_all = false) {
  return net->forward(batch, use_all).square().mean();
}

}  // namespace trireme::test
