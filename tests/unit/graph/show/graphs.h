// SPDX-License-Identifier: Apache-2.0
// Graphs to be shown: their pictures, tables and files are looked at.
#pragma once

#include <models/gpt.h>
#include <trireme/graph/mark.h>
#include <trireme/optim/autocast.h>

#include <tests/unit/graph/replays.h>

#include <string>

namespace trireme::test {

inline graph::Graph gpt_graph(std::int64_t layers = 2, bool tied = true) {
  models::GPT net(models::GPTOptions{.vocabulary = 40,
                                     .sequence = 8,
                                     .hidden = 16,
                                     .layers = layers,
                                     .heads = 2,
                                     .dropout = 0.1,
                                     .tied = tied});
  return captured(
      {net.ptr(),
       [net](const Tensors& x) mutable -> Tensors {
         return {torch::nn::functional::cross_entropy(net->forward(x[0]).flatten(0, 1), x[1])};
       },
       {torch::zeros({2, 8}, at::kLong), torch::zeros({16}, at::kLong)}});
}

/// Convolution, batch norm with buffers, operators in place, a connection around them, dropout.
inline Subject residual() {
  namespace nn = torch::nn;
  nn::Conv2d conv(nn::Conv2dOptions(3, 3, 3).padding(1));
  nn::BatchNorm2d norm(3);
  nn::Linear head(3 * 64, 10);
  auto net = std::make_shared<nn::Module>();
  net->register_module("conv", conv);
  net->register_module("norm", norm);
  net->register_module("head", head);
  return {net,
          [=](const Tensors& x) mutable -> Tensors {
            at::Tensor h = norm->forward(conv->forward(x[0]));
            h = torch::relu_(h) + x[0];
            h = torch::dropout(mark(h, "tail"), 0.5, true).flatten(1);
            return {nn::functional::cross_entropy(head->forward(h), x[1])};
          },
          {torch::zeros({2, 3, 8, 8}), torch::zeros({2}, at::kLong)}};
}

/// Lists of tensors and of optional ones, constants, numbers of all kinds, autocast, code without
/// gradients, a buffer that is written to.
inline graph::Graph mixed_graph() {
  namespace nn = torch::nn;
  nn::Linear linear(4, 4);
  auto net = std::make_shared<nn::Module>();
  net->register_module("linear", linear);
  net->register_buffer("steps", torch::zeros({1}, at::kLong));
  const at::Tensor table = torch::ones({4});
  return captured({net,
                   [=](const Tensors& x) mutable -> Tensors {
                     net->buffers()[0].add_(1);
                     at::Tensor h = x[0];
                     {
                       const Autocast autocast(at::kCPU, at::kBFloat16);
                       h = linear->forward(h);
                     }
                     h = torch::cat({h.to(at::kFloat), x[0] * table}, 1);
                     h = h.clamp(-std::numeric_limits<double>::infinity(), 6.5);
                     h = h.index({torch::tensor({1, 0})});
                     h = torch::gelu(h, "tanh").std({1}, true);
                     const torch::NoGradGuard no_grad;
                     return {h.sum(), torch::arange(3, at::kCPU).to(at::kDouble), table};
                   },
                   {torch::ones({2, 4})}});
}

/// A module of a name that needs care wherever it is written.
inline graph::Graph graph_of_names(const std::string& module, const std::string& mark_name) {
  torch::nn::Linear linear(2, 2);
  auto net = std::make_shared<torch::nn::Module>();
  net->register_module(module, linear);
  return captured({net,
                   [=](const Tensors& x) mutable -> Tensors {
                     return {torch::relu(mark(linear->forward(x[0]), mark_name)).sum()};
                   },
                   {torch::ones({2, 2})}});
}

}  // namespace trireme::test
