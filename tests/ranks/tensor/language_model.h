// SPDX-License-Identifier: Apache-2.0
// A language model in small, in double precision, and how it is cut.
#pragma once

#include <trireme/plan/parameter_layouts.h>

#include <torch/torch.h>

#include <mutex>

namespace trireme::test {

// An embedding, two blocks with a residual path, a head over the
// vocabulary that shares the embedding's weight.
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})))),
        up(register_module("up", torch::nn::Linear(8, 12))),
        down(register_module("down", torch::nn::Linear(12, 8))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct LanguageModelImpl : torch::nn::Module {
  LanguageModelImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(10, 8))),
        first(register_module("first", Block())),
        second(register_module("second", Block())) {}
  torch::Tensor forward(const torch::Tensor& tokens) {
    return torch::linear(second(first(embedding(tokens))), embedding->weight);
  }
  torch::nn::Embedding embedding;
  Block first, second;
};
TORCH_MODULE(LanguageModel);

// Ranks are threads, and share the generator.
inline LanguageModel seeded() {
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  torch::manual_seed(11);
  LanguageModel model;
  model->to(torch::kDouble);
  return model;
}

inline ParameterLayouts megatron() {
  return join({vocabulary_parallel("embedding"), column_parallel("*.up"), row_parallel("*.down")});
}

inline torch::Tensor loss_of(LanguageModel& model, const torch::Tensor& tokens) {
  const auto logits = model(tokens.narrow(1, 0, tokens.size(1) - 1));
  const auto targets = tokens.narrow(1, 1, tokens.size(1) - 1);
  return torch::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), targets.reshape({-1}));
}

}  // namespace trireme::test
