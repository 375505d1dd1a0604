// SPDX-License-Identifier: Apache-2.0
// Residual networks in plain LibTorch, as a user would write them: He, Zhang, Ren, Sun, "Deep
// Residual Learning for Image Recognition" (2015). Submodules are named as in torchvision, so that
// state dicts fit both ways; the stride of a bottleneck sits in its 3x3 convolution, as there. A
// shortcut that changes shape is a 1x1 convolution with batch norm (the paper's option B) in every
// network here, ResNet-20 included.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace models {

/// First layers: for images of about 224x224 (7x7 convolution of stride 2, then 3x3 max pooling of
/// stride 2), or for small ones such as 32x32 (3x3 convolution of stride 1).
enum class Stem { kImageNet, kSmall };

enum class Block { kBasic, kBottleneck };

struct ResNetOptions {
  Block block = Block::kBasic;
  Stem stem = Stem::kImageNet;
  /// Blocks in each stage. Stage i has `width * 2^i` channels (four times as many with
  /// bottlenecks); from the second on a stage halves the image.
  std::vector<std::int64_t> blocks = {2, 2, 2, 2};
  std::int64_t width = 64;
  std::int64_t classes = 1000;
  std::int64_t channels = 3;
};

/// conv1, bn1, layer1 to layer<n>, average pooling, fc. Maps images [N, channels, H, W] to logits
/// [N, classes]. Convolutions start from Kaiming's normal distribution (fan out), batch norms as
/// the identity.
class ResNetImpl : public torch::nn::Module {
 public:
  explicit ResNetImpl(const ResNetOptions& options);
  torch::Tensor forward(const torch::Tensor& images);

 private:
  torch::nn::Sequential make_stage(const ResNetOptions& options, std::int64_t width,
                                   std::int64_t blocks, std::int64_t stride);

  Stem stem_;
  std::int64_t channels_ = 0;  // of the features so far, while stages are made
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::vector<torch::nn::Sequential> stages_;
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(ResNet);

/// 20 layers for 32x32 images (section 4.2 of the paper): three stages of 16, 32 and 64 channels,
/// small stem.
ResNet resnet20(std::int64_t classes = 10, std::int64_t channels = 3);

ResNet resnet18(std::int64_t classes = 1000, std::int64_t channels = 3,
                Stem stem = Stem::kImageNet);

ResNet resnet50(std::int64_t classes = 1000, std::int64_t channels = 3,
                Stem stem = Stem::kImageNet);

}  // namespace models
