// SPDX-License-Identifier: Apache-2.0
// Residual networks in plain LibTorch, as a user would write them: He, Zhang, Ren, Sun, "Deep
// Residual Learning for Image Recognition" (2015). Submodules have the names of torchvision, so
// state dicts are compatible; the stride of a bottleneck is in its 3x3 convolution, as there.
// Shortcuts that change the shape are 1x1 convolutions with batch norm (option B of the paper) in
// every network, including ResNet-20. Wide networks follow Zagoruyko, Komodakis, "Wide Residual
// Networks" (2016), as torchvision does.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace models {

/// The first layers. kImageNet, for images of about 224x224: a 7x7 convolution of stride 2, then
/// 3x3 max pooling of stride 2. kSmall, for images such as 32x32: a 3x3 convolution of stride 1.
enum class Stem { kImageNet, kSmall };

/// The kind of residual block: two 3x3 convolutions, or 1x1, 3x3 and 1x1.
enum class Block { kBasic, kBottleneck };

/// The architecture of a residual network.
struct ResNetOptions {
  /// The kind of block.
  Block block = Block::kBasic;
  /// The first layers.
  Stem stem = Stem::kImageNet;
  /// The number of blocks in each stage. Stage i has `width * 2^i` channels, four times as many
  /// with bottlenecks. Every stage except the first halves the image.
  std::vector<std::int64_t> blocks = {2, 2, 2, 2};
  /// The number of channels of the first stage.
  std::int64_t width = 64;
  /// The factor by which the 3x3 convolution of a bottleneck has more channels than its stage; the
  /// input and output of the block stay the same. It is torchvision's `width_per_group` / 64, and
  /// 1 for basic blocks.
  std::int64_t bottleneck_widening = 1;
  /// The number of classes.
  std::int64_t classes = 1000;
  /// The number of channels of an image.
  std::int64_t channels = 3;
};

/// Maps images [N, channels, H, W] to logits [N, classes].
///
/// The submodules are conv1, bn1, layer1 to `layer<n>`, average pooling and fc. Convolutions are
/// initialized from Kaiming's normal distribution (fan out), batch norms as the identity. Throws
/// c10::Error for invalid options.
class ResNetImpl : public torch::nn::Module {
 public:
  /// Makes the network. Throws c10::Error for invalid options.
  explicit ResNetImpl(const ResNetOptions& options);
  /// Returns the logits, [N, classes].
  torch::Tensor forward(const torch::Tensor& images);

 private:
  torch::nn::Sequential make_stage(const ResNetOptions& options, std::int64_t width,
                                   std::int64_t blocks, std::int64_t stride);

  Stem stem_;
  std::int64_t channels_ = 0;  // The channels of the features so far, while stages are made.
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::vector<torch::nn::Sequential> stages_;
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(ResNet);

/// Returns ResNet-20 for 32x32 images (section 4.2 of the paper): three stages of 16, 32 and 64
/// channels and the small stem.
ResNet resnet20(std::int64_t classes = 10, std::int64_t channels = 3);

/// Returns ResNet-18: four stages of two basic blocks.
ResNet resnet18(std::int64_t classes = 1000, std::int64_t channels = 3,
                Stem stem = Stem::kImageNet);

/// Returns ResNet-50: four stages of 3, 4, 6 and 3 bottlenecks.
ResNet resnet50(std::int64_t classes = 1000, std::int64_t channels = 3,
                Stem stem = Stem::kImageNet);

/// Returns WRN-50-2: ResNet-50 whose 3x3 convolutions have twice as many channels.
ResNet wide_resnet50(std::int64_t classes = 1000, std::int64_t channels = 3,
                     Stem stem = Stem::kImageNet);

}  // namespace models
