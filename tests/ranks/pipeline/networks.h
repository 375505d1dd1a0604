// SPDX-License-Identifier: Apache-2.0
// Unmodified modules as users write them, small, and the batches that they are trained on.
#pragma once

#include <models/gpt.h>
#include <trireme/graph/capture.h>
#include <trireme/graph/mark.h>

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {

/// A module, its forward with loss, its data, and where it can be cut.
struct Network {
  std::shared_ptr<torch::nn::Module> module;
  graph::Forward forward;
  std::function<std::vector<torch::Tensor>(std::int64_t rows, std::int64_t step)> batch;
  std::vector<std::string> modules;  ///< in the order of execution, the first in stage 0
};

/// Numbers without a generator, different for every place.
inline torch::Tensor numbers(torch::IntArrayRef sizes, std::int64_t salt) {
  return torch::sin(torch::arange(c10::multiply_integers(sizes), torch::kFloat) * 0.7 +
                    static_cast<double>(salt))
      .reshape(sizes);
}

inline void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  std::int64_t salt = 0;
  for (torch::Tensor& parameter : module.parameters()) {
    const double around = parameter.eq(1).all().item<bool>() ? 1 : 0;  // weights of norms
    parameter.copy_(numbers(parameter.sizes(), ++salt) * (parameter.dim() > 1 ? 0.3 : 0.1) +
                    around);
  }
}

/// Convolutions with batch norm, in-place activations and a connection around each block.
struct ResidualNetImpl : torch::nn::Module {
  struct BlockImpl : torch::nn::Module {
    BlockImpl() {
      convolution = register_module(
          "convolution",
          torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1).bias(false)));
      norm = register_module("norm", torch::nn::BatchNorm2d(4));
    }
    torch::Tensor forward(const torch::Tensor& x) {
      torch::Tensor sum = norm(convolution(x)) + x;
      return torch::relu_(sum);
    }
    torch::nn::Conv2d convolution{nullptr};
    torch::nn::BatchNorm2d norm{nullptr};
  };
  TORCH_MODULE(Block);

  ResidualNetImpl() {
    head = register_module("head", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)));
    for (int i = 0; i < 3; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
    classifier = register_module("classifier", torch::nn::Linear(4, 5));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = head(x);
    for (std::size_t i = 0; i < blocks->size(); ++i) x = blocks->ptr<BlockImpl>(i)->forward(x);
    return classifier(x.mean({2, 3}));
  }
  torch::nn::Conv2d head{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::Linear classifier{nullptr};
};

inline Network residual_net() {
  auto net = std::make_shared<ResidualNetImpl>();
  fill(*net);
  return {.module = net,
          .forward = [net = net.get()](const auto& in) -> std::vector<torch::Tensor> {
            return {torch::cross_entropy_loss(net->forward(in[0]), in[1])};
          },
          .batch = [](std::int64_t rows, std::int64_t step) -> std::vector<torch::Tensor> {
            return {numbers({rows, 3, 6, 6}, step), (torch::arange(rows) + step).remainder(5)};
          },
          .modules = {"head", "blocks.0", "blocks.1", "blocks.2"}};
}

inline Network language_model(double dropout, bool tied = false) {
  auto net = std::make_shared<models::GPTImpl>(models::GPTOptions{.vocabulary = 11,
                                                                  .sequence = 6,
                                                                  .hidden = 8,
                                                                  .layers = 4,
                                                                  .heads = 2,
                                                                  .dropout = dropout,
                                                                  .tied = tied});
  fill(*net);
  return {.module = net,
          .forward = [net = net.get()](const auto& in) -> std::vector<torch::Tensor> {
            // Statements: which argument of a call is computed first depends on the compiler.
            const torch::Tensor targets = in[1].flatten();
            return {torch::cross_entropy_loss(net->forward(in[0]).flatten(0, 1), targets)};
          },
          .batch = [](std::int64_t rows, std::int64_t step) -> std::vector<torch::Tensor> {
            const auto tokens =
                (torch::arange(rows * 7).reshape({rows, 7}) * 5 + step).remainder(11);
            return {tokens.narrow(1, 0, 6), tokens.narrow(1, 1, 6)};
          },
          .modules = {"token_embedding", "blocks.1", "blocks.2", "blocks.3"}};
}

/// Connections from the way down to the way up, over all stages between.
struct SkippingNetImpl : torch::nn::Module {
  SkippingNetImpl() {
    const auto layer = [](int in, int out) {
      return torch::nn::Conv1d(torch::nn::Conv1dOptions(in, out, 3).padding(1));
    };
    first = register_module("first", layer(2, 4));
    second = register_module("second", layer(4, 4));
    bottom = register_module("bottom", layer(4, 4));
    third = register_module("third", layer(8, 4));
    last = register_module("last", layer(8, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto a = torch::gelu(first(x));
    const auto b = torch::gelu(second(torch::avg_pool1d(a, 2)));
    auto c = torch::tanh(bottom(torch::avg_pool1d(b, 2)));
    c = torch::upsample_nearest1d(c, b.size(2));
    c = torch::gelu(third(torch::cat({c, b}, 1)));
    return last(torch::cat({torch::upsample_nearest1d(c, a.size(2)), a}, 1));
  }
  torch::nn::Conv1d first{nullptr}, second{nullptr}, bottom{nullptr}, third{nullptr}, last{nullptr};
};

inline Network skipping_net() {
  auto net = std::make_shared<SkippingNetImpl>();
  fill(*net);
  return {.module = net,
          .forward = [net = net.get()](const auto& in) -> std::vector<torch::Tensor> {
            return {torch::mse_loss(net->forward(in[0]), in[1])};
          },
          .batch = [](std::int64_t rows, std::int64_t step) -> std::vector<torch::Tensor> {
            return {numbers({rows, 2, 8}, step), numbers({rows, 1, 8}, step + 100)};
          },
          .modules = {"first", "second", "third", "last"}};
}

struct RecurrentNetImpl : torch::nn::Module {
  RecurrentNetImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(9, 6));
    lower =
        register_module("lower", torch::nn::LSTM(torch::nn::LSTMOptions(6, 6).batch_first(true)));
    upper =
        register_module("upper", torch::nn::LSTM(torch::nn::LSTMOptions(6, 6).batch_first(true)));
    head = register_module("head", torch::nn::Linear(6, 9));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto below = std::get<0>(lower(embedding(tokens)));
    return head(std::get<0>(upper(below)));
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LSTM lower{nullptr}, upper{nullptr};
  torch::nn::Linear head{nullptr};
};

/// Sequences with padding: an integer mask, and the state of the lower layer, cross stages, one of
/// which begins at a mark and has no parameters.
struct PaddedNetImpl : torch::nn::Module {
  PaddedNetImpl() {
    const auto layer = torch::nn::LSTMOptions(6, 6).batch_first(true);
    embedding = register_module("embedding", torch::nn::Embedding(9, 6));
    lower = register_module("lower", torch::nn::LSTM(layer));
    upper = register_module("upper", torch::nn::LSTM(layer));
    head = register_module("head", torch::nn::Linear(6, 9));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    const torch::Tensor is_there = tokens.ne(0).to(torch::kInt).unsqueeze(-1);
    auto [x, state] = lower(embedding(tokens));
    x = torch::tanh(mark(x, "middle") * is_there);
    return head(std::get<0>(upper(x, state)) * is_there);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LSTM lower{nullptr}, upper{nullptr};
  torch::nn::Linear head{nullptr};
};

inline Network recurrent_net() {
  auto net = std::make_shared<RecurrentNetImpl>();
  fill(*net);
  return {.module = net,
          .forward = [net = net.get()](const auto& in) -> std::vector<torch::Tensor> {
            return {torch::cross_entropy_loss(net->forward(in[0]).flatten(0, 1), in[1].flatten())};
          },
          .batch = [](std::int64_t rows, std::int64_t step) -> std::vector<torch::Tensor> {
            const auto tokens =
                (torch::arange(rows * 5).reshape({rows, 5}) * 4 + step).remainder(9);
            return {tokens.narrow(1, 0, 4), tokens.narrow(1, 1, 4)};
          },
          .modules = {"embedding", "lower", "upper", "head"}};
}

inline Network padded_net() {
  auto net = std::make_shared<PaddedNetImpl>();
  fill(*net);
  Network network = recurrent_net();  // whose batches have zeros
  network.module = net;
  network.forward = [net = net.get()](const auto& in) -> std::vector<torch::Tensor> {
    return {torch::cross_entropy_loss(net->forward(in[0]).flatten(0, 1), in[1].flatten())};
  };
  network.modules = {"embedding", "middle", "upper", "head"};
  return network;
}

}  // namespace trireme::test
