// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/calibration/sample_networks.h>

#include <torch/torch.h>

#include <cstdint>
#include <utility>

namespace trireme::predict {
namespace {

// Fixed, so that two calibrations time the same work.
constexpr std::int64_t kClasses = 16;

at::Tensor classes(std::int64_t rows) { return torch::arange(rows) % kClasses; }

std::shared_ptr<std::vector<at::Tensor>> shared(std::vector<at::Tensor> inputs) {
  return std::make_shared<std::vector<at::Tensor>>(std::move(inputs));
}

// Three linear layers of which the middle one is square.
SampleNetwork linear_layers(std::int64_t rows, std::int64_t features) {
  torch::nn::Sequential layers(torch::nn::Linear(features, features), torch::nn::ReLU(),
                               torch::nn::Linear(features, features), torch::nn::Tanh(),
                               torch::nn::Linear(features, kClasses));
  const auto inputs = shared({torch::randn({rows, features}), classes(rows)});
  return {
      .name = "linear layers", .module = layers.ptr(), .inputs = inputs, .forward = [=]() mutable {
        return torch::cross_entropy_loss(layers->forward((*inputs)[0]), (*inputs)[1]);
      }};
}

// Convolutions as in residual networks: 3x3, 1x1, and one with stride 2.
SampleNetwork convolutions(std::int64_t rows, std::int64_t channels, std::int64_t size) {
  using torch::nn::Conv2dOptions;
  const auto convolution = [&](std::int64_t from, std::int64_t to, std::int64_t kernel,
                               std::int64_t stride) {
    return torch::nn::Conv2d(
        Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false));
  };
  torch::nn::Sequential first(
      convolution(channels, channels, 3, 1), torch::nn::BatchNorm2d(channels), torch::nn::ReLU(),
      convolution(channels, channels, 3, 1), torch::nn::BatchNorm2d(channels));
  torch::nn::Sequential last(torch::nn::ReLU(), convolution(channels, 2 * channels, 1, 1),
                             torch::nn::BatchNorm2d(2 * channels), torch::nn::ReLU(),
                             convolution(2 * channels, channels, 3, 2), torch::nn::MaxPool2d(2),
                             torch::nn::AdaptiveAvgPool2d(1), torch::nn::Flatten(),
                             torch::nn::Linear(channels, kClasses));
  auto stem = convolution(3, channels, 3, 1);
  torch::nn::ModuleList all(stem, first, last);
  const auto inputs = shared({torch::randn({rows, 3, size, size}), classes(rows)});
  return {.name = "convolutions", .module = all.ptr(), .inputs = inputs, .forward = [=]() mutable {
            const at::Tensor features = torch::relu(stem->forward((*inputs)[0]));
            return torch::cross_entropy_loss(last->forward(first->forward(features) + features),
                                             (*inputs)[1]);
          }};
}

class TransformerImpl : public torch::nn::Module {
 public:
  TransformerImpl(std::int64_t hidden, std::int64_t vocabulary, bool is_gated)
      : hidden_(hidden),
        is_gated_(is_gated),
        embedding_(register_module("embedding", torch::nn::Embedding(vocabulary, hidden))),
        norm1_(register_module("norm1", torch::nn::LayerNorm(std::vector{hidden}))),
        input_(register_module("input", torch::nn::Linear(hidden, 3 * hidden))),
        output_(register_module("output", torch::nn::Linear(hidden, hidden))),
        norm2_(register_module("norm2", torch::nn::LayerNorm(std::vector{hidden}))),
        up_(register_module("up", torch::nn::Linear(hidden, kExpansion * hidden))),
        down_(register_module("down", torch::nn::Linear(kExpansion * hidden, hidden))),
        dropout_(register_module("dropout", torch::nn::Dropout(kDropout))) {
    if (!is_gated) return;
    gate_ = register_module("gate", torch::nn::Linear(hidden, kExpansion * hidden));
    scale_ = register_parameter("scale", torch::ones({hidden}));
  }

  at::Tensor forward(const at::Tensor& tokens) {
    constexpr std::int64_t kHeads = 4;
    at::Tensor features = embedding_(tokens);
    const auto parts = input_(norm(features, norm1_)).chunk(3, -1);
    const auto by_head = [](const at::Tensor& part) {
      return part.unflatten(-1, {kHeads, -1}).transpose(1, 2);
    };
    const at::Tensor mixed = torch::scaled_dot_product_attention(
        by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), {}, 0.0, /*is_causal=*/true);
    features = features + dropout_(output_(mixed.transpose(1, 2).flatten(2)));
    const at::Tensor normed = norm(features, norm2_);
    const at::Tensor inside =
        is_gated_ ? torch::silu(gate_(normed)) * up_(normed) : torch::gelu(up_(normed));
    features = features + dropout_(down_(inside));
    return torch::linear(features, embedding_->weight);
  }

 private:
  static constexpr std::int64_t kExpansion = 4;
  static constexpr double kDropout = 0.1;

  at::Tensor norm(const at::Tensor& features, torch::nn::LayerNorm& layer) {
    return is_gated_ ? torch::rms_norm(features, {hidden_}, scale_) : layer(features);
  }

  std::int64_t hidden_;
  bool is_gated_;
  torch::nn::Embedding embedding_;
  torch::nn::LayerNorm norm1_;
  torch::nn::Linear input_, output_;
  torch::nn::LayerNorm norm2_;
  torch::nn::Linear up_, down_;
  torch::nn::Linear gate_{nullptr};
  torch::nn::Dropout dropout_;
  at::Tensor scale_;
};
TORCH_MODULE(Transformer);

SampleNetwork transformer(std::int64_t rows, std::int64_t sequence, std::int64_t hidden,
                          bool is_gated) {
  constexpr std::int64_t kVocabulary = 1024;
  Transformer model(hidden, kVocabulary, is_gated);
  const auto inputs = shared({torch::arange(rows * sequence).view({rows, sequence}) % kVocabulary});
  return {.name = "transformer", .module = model.ptr(), .inputs = inputs, .forward = [=]() mutable {
            const at::Tensor& tokens = inputs->front();
            return torch::cross_entropy_loss(model->forward(tokens).flatten(0, 1),
                                             tokens.flatten());
          }};
}

}  // namespace

std::vector<std::function<SampleNetwork()>> sample_networks(const c10::Device& device) {
  std::vector<std::function<SampleNetwork()>> networks = {
      [] { return linear_layers(8, 64); },
      [] { return linear_layers(64, 64); },
      [] { return linear_layers(64, 256); },
      [] { return linear_layers(256, 512); },
      [] { return linear_layers(16, 1024); },
      [] { return linear_layers(512, 1024); },
      [] { return linear_layers(64, 2048); },
      [] { return convolutions(4, 16, 14); },
      [] { return convolutions(32, 16, 28); },
      [] { return convolutions(32, 64, 14); },
      [] { return convolutions(32, 128, 7); },
      [] { return convolutions(16, 64, 56); },
      [] { return transformer(2, 16, 64, false); },
      [] { return transformer(4, 64, 128, false); },
      [] { return transformer(4, 128, 256, false); },
      [] { return transformer(8, 256, 256, false); },
      [] { return transformer(4, 128, 512, false); },
      [] { return transformer(2, 16, 64, true); },
      [] { return transformer(4, 128, 256, true); },
  };
  if (device.is_cpu()) return networks;
  networks.insert(networks.end(), {
                                      [] { return linear_layers(1024, 2048); },
                                      [] { return linear_layers(4096, 4096); },
                                      [] { return convolutions(128, 128, 28); },
                                      [] { return transformer(8, 512, 1024, false); },
                                      [] { return transformer(8, 1024, 2048, false); },
                                      [] { return transformer(8, 512, 1024, true); },
                                  });
  for (auto& make : networks) {
    make = [make, device] {
      SampleNetwork network = make();
      network.module->to(device);
      for (at::Tensor& input : *network.inputs) input = input.to(device);
      return network;
    };
  }
  return networks;
}

}  // namespace trireme::predict
