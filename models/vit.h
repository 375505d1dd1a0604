// SPDX-License-Identifier: Apache-2.0
// A vision transformer in plain LibTorch, as a user would write it: Dosovitskiy et al., "An Image
// is Worth 16x16 Words: Transformers for Image Recognition at Scale" (2021). A convolution embeds
// the patches of an image, the output of a class token is classified, and positions are learned.
// Layer norms precede attention and MLP. Unlike in the authors' program, all weights have the same
// initial deviation.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace models {

/// The architecture of a vision transformer. The default sizes are those of ViT-B/16 for ImageNet.
struct ViTOptions {
  /// The height and width of an image in pixels; `patch_size` must divide it.
  std::int64_t image_size = 224;
  /// The height and width of a patch in pixels.
  std::int64_t patch_size = 16;
  /// The number of channels of an image.
  std::int64_t channels = 3;
  /// The size of a patch's features.
  std::int64_t hidden = 768;
  /// The number of blocks.
  std::int64_t layers = 12;
  /// The number of attention heads; it must divide `hidden`.
  std::int64_t heads = 12;
  /// The number of features between the linear layers of an MLP.
  std::int64_t feed_forward = 3072;
  /// The dropout of embeddings and of linear layers, without those of queries, keys and values.
  double dropout = 0.0;
  /// What layer norms add to the variance.
  double norm_epsilon = 1e-6;
  /// The number of classes.
  std::int64_t classes = 1000;
};

/// Maps images [batch, channels, image_size, image_size] to logits [batch, classes].
///
/// The submodules are patch_embedding, dropout, blocks, norm and head; class_token
/// [1, 1, hidden] and position_embedding [1, 1 + patches, hidden] are parameters of the module
/// itself. Weights and positions are initialized from normal(0, 0.02), biases and the class token
/// with 0, norms as the identity. Throws c10::Error for invalid options and images.
class ViTImpl : public torch::nn::Module {
 public:
  /// Makes the module. Throws c10::Error for invalid options.
  explicit ViTImpl(const ViTOptions& options);
  /// Returns the logits, [batch, classes].
  torch::Tensor forward(const torch::Tensor& images);

 private:
  std::int64_t image_size_;
  torch::nn::Conv2d patch_embedding_{nullptr};
  torch::Tensor class_token_;
  torch::Tensor position_embedding_;
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::Sequential blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(ViT);

}  // namespace models
