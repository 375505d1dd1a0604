// SPDX-License-Identifier: Apache-2.0
// Small networks of all kinds that a Model trains with an automatic plan, and what comes of it.
#pragma once

#include <models/bert.h>
#include <models/gpt.h>
#include <models/llama.h>
#include <models/mixture.h>
#include <models/resnet.h>
#include <models/vit.h>
#include <trireme/data/data_loader.h>
#include <trireme/data/dataset.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/model.h>

#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::test {

/// A network, its loss, and rows to train on.
struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  Model::BatchLoss loss;
  torch::Tensor inputs;
  torch::Tensor targets;
};

/// Rows of a step over all ranks: divisible by 2, 3, 4, 6 and 8.
inline constexpr std::int64_t kRowsOfStep = 24;
inline constexpr std::int64_t kSteps = 3;
inline constexpr std::int64_t kRows = kRowsOfStep * kSteps;

/// Two convolutions down, two up, and a connection across.
struct UNetImpl : torch::nn::Module {
  UNetImpl() {
    down = register_module("down", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)));
    bottom =
        register_module("bottom", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).padding(1)));
    up = register_module(
        "up", torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(16, 8, 2).stride(2)));
    out = register_module("out", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 5, 3).padding(1)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto high = torch::relu(down(x));
    const auto low = torch::relu(bottom(torch::max_pool2d(high, 2)));
    return out(torch::cat({high, up(low)}, 1));
  }
  torch::nn::Conv2d down{nullptr}, bottom{nullptr}, out{nullptr};
  torch::nn::ConvTranspose2d up{nullptr};
};
TORCH_MODULE(UNet);

/// An LSTM and a linear layer for its last output.
struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl() {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(6, 8).batch_first(true)));
    head = register_module("head", torch::nn::Linear(8, 5));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head(std::get<0>(lstm(x)).select(1, x.size(1) - 1));
  }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Recurrent);

inline torch::Tensor classes(const std::vector<std::int64_t>& sizes, std::int64_t count) {
  std::int64_t all = 1;
  for (const std::int64_t size : sizes) all *= size;
  return (torch::arange(all) * 7 + torch::arange(all).div(3, "floor")).remainder(count).view(sizes);
}

/// Makes a subject of a network that maps `inputs` to classes along `dim`.
template <typename NetworkType>
Subject classifier(NetworkType network, const torch::Tensor& inputs, const torch::Tensor& targets,
                   std::int64_t dim = 1) {
  const auto module = std::shared_ptr<torch::nn::Module>(network.ptr());
  fill(*module);
  return {.module = module,
          .loss =
              [network, dim](const data::Batch& batch) mutable {
                const torch::Tensor logits = [&] {
                  if constexpr (std::is_same_v<NetworkType, models::MixtureGPT>) {
                    return network->forward(batch.columns[0]).output;
                  } else {
                    return network->forward(batch.columns[0]);
                  }
                }();
                return torch::cross_entropy_loss(logits.movedim(dim, -1).flatten(0, -2),
                                                 batch.columns[1].flatten());
              },
          .inputs = inputs,
          .targets = targets};
}

inline models::GPTOptions small_gpt() {
  return {.vocabulary = 32, .sequence = 8, .hidden = 16, .layers = 4, .heads = 4, .tied = true};
}

/// Returns a network by name.
inline Subject subject(const std::string& name) {
  const auto tokens = [] { return classes({kRows, 8}, 32); };
  const auto next = [] { return classes({kRows, 8}, 31) + 1; };
  const auto images = [] { return numbers({kRows, 3, 8, 8}, 3); };
  if (name == "gpt") return classifier(models::GPT(small_gpt()), tokens(), next(), 2);
  if (name == "llama") {
    return classifier(models::LLaMA(models::LLaMAOptions{.vocabulary = 32,
                                                         .sequence = 8,
                                                         .hidden = 16,
                                                         .layers = 4,
                                                         .heads = 4,
                                                         .feed_forward = 32}),
                      tokens(), next(), 2);
  }
  if (name == "bert") {
    return classifier(
        models::BERT(models::BERTOptions{
            .vocabulary = 32, .sequence = 8, .hidden = 16, .layers = 4, .heads = 4, .dropout = 0}),
        tokens(), next(), 2);
  }
  if (name == "mixture") {
    return classifier(models::MixtureGPT(models::MixtureOptions{.gpt = small_gpt(), .experts = 4}),
                      tokens(), next(), 2);
  }
  if (name == "vit") {
    return classifier(models::ViT(models::ViTOptions{.image_size = 8,
                                                     .patch_size = 4,
                                                     .hidden = 16,
                                                     .layers = 4,
                                                     .heads = 4,
                                                     .feed_forward = 32,
                                                     .classes = 5}),
                      images(), classes({kRows}, 5));
  }
  if (name == "resnet") {
    return classifier(
        models::ResNet(models::ResNetOptions{
            .stem = models::Stem::kSmall, .blocks = {1, 1}, .width = 8, .classes = 5}),
        images(), classes({kRows}, 5));
  }
  if (name == "u-net") {
    return classifier(UNet(), images(), classes({kRows, 8, 8}, 5));
  }
  return classifier(Recurrent(), numbers({kRows, 4, 6}, 3), classes({kRows}, 5));
}

}  // namespace trireme::test
