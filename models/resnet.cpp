// SPDX-License-Identifier: Apache-2.0
#include <models/resnet.h>

#include <string>

namespace models {
namespace {

constexpr std::int64_t kBottleneckExpansion = 4;

torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                              std::int64_t stride = 1) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// Returns the 1x1 convolution on the shortcut; empty, the identity, if the shape stays the same.
torch::nn::Sequential shortcut(std::int64_t in, std::int64_t out, std::int64_t stride) {
  if (stride == 1 && in == out) return nullptr;
  return torch::nn::Sequential(convolution(in, out, 1, stride), torch::nn::BatchNorm2d(out));
}

class BasicBlockImpl : public torch::nn::Module {
 public:
  BasicBlockImpl(std::int64_t in, std::int64_t width, std::int64_t stride)
      : conv1_(register_module("conv1", convolution(in, width, 3, stride))),
        bn1_(register_module("bn1", torch::nn::BatchNorm2d(width))),
        conv2_(register_module("conv2", convolution(width, width, 3))),
        bn2_(register_module("bn2", torch::nn::BatchNorm2d(width))),
        downsample_(shortcut(in, width, stride)) {
    if (downsample_) register_module("downsample", downsample_);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor output = bn1_(conv1_(input)).relu_();
    output = bn2_(conv2_(output));
    output += downsample_ ? downsample_->forward(input) : input;
    return output.relu_();
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d bn2_;
  torch::nn::Sequential downsample_;
};
TORCH_MODULE(BasicBlock);

class BottleneckImpl : public torch::nn::Module {
 public:
  BottleneckImpl(std::int64_t in, std::int64_t width, std::int64_t out, std::int64_t stride)
      : conv1_(register_module("conv1", convolution(in, width, 1))),
        bn1_(register_module("bn1", torch::nn::BatchNorm2d(width))),
        conv2_(register_module("conv2", convolution(width, width, 3, stride))),
        bn2_(register_module("bn2", torch::nn::BatchNorm2d(width))),
        conv3_(register_module("conv3", convolution(width, out, 1))),
        bn3_(register_module("bn3", torch::nn::BatchNorm2d(out))),
        downsample_(shortcut(in, out, stride)) {
    if (downsample_) register_module("downsample", downsample_);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor output = bn1_(conv1_(input)).relu_();
    output = bn2_(conv2_(output)).relu_();
    output = bn3_(conv3_(output));
    output += downsample_ ? downsample_->forward(input) : input;
    return output.relu_();
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d bn2_;
  torch::nn::Conv2d conv3_;
  torch::nn::BatchNorm2d bn3_;
  torch::nn::Sequential downsample_;
};
TORCH_MODULE(Bottleneck);

}  // namespace

ResNetImpl::ResNetImpl(const ResNetOptions& options)
    : stem_(options.stem), channels_(options.width) {
  TORCH_CHECK(options.bottleneck_widening > 0, "ResNetOptions.bottleneck_widening is ",
              options.bottleneck_widening, ", expected 1 or more");
  TORCH_CHECK(options.block == Block::kBottleneck || options.bottleneck_widening == 1,
              "ResNetOptions.bottleneck_widening is ", options.bottleneck_widening,
              ", expected 1 for basic blocks");
  conv1_ = register_module("conv1", stem_ == Stem::kImageNet
                                        ? convolution(options.channels, options.width, 7, 2)
                                        : convolution(options.channels, options.width, 3));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(options.width));
  // The first stage keeps the size of the image; every later one halves it and doubles the
  // channels.
  std::int64_t width = options.width;
  for (const std::int64_t blocks : options.blocks) {
    const bool is_first = stages_.empty();
    stages_.push_back(make_stage(options, width, blocks, is_first ? 1 : 2));
    register_module("layer" + std::to_string(stages_.size()), stages_.back());
    width *= 2;
  }
  fc_ = register_module("fc", torch::nn::Linear(channels_, options.classes));

  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* conv = module->as<torch::nn::Conv2d>()) {
      torch::nn::init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut, torch::kReLU);
    }
  }
}

torch::nn::Sequential ResNetImpl::make_stage(const ResNetOptions& options, std::int64_t width,
                                             std::int64_t blocks, std::int64_t stride) {
  torch::nn::Sequential stage;
  for (std::int64_t index = 0; index < blocks; ++index) {
    // Only the first block of a stage changes the size and the number of channels.
    const std::int64_t block_stride = index == 0 ? stride : 1;
    if (options.block == Block::kBasic) {
      stage->push_back(BasicBlock(channels_, width, block_stride));
      channels_ = width;
    } else {
      const std::int64_t out = width * kBottleneckExpansion;
      stage->push_back(
          Bottleneck(channels_, width * options.bottleneck_widening, out, block_stride));
      channels_ = out;
    }
  }
  return stage;
}

torch::Tensor ResNetImpl::forward(const torch::Tensor& images) {
  torch::Tensor features = bn1_(conv1_(images)).relu_();
  if (stem_ == Stem::kImageNet) features = torch::max_pool2d(features, 3, 2, 1);
  for (auto& stage : stages_) features = stage->forward(features);
  return fc_(torch::adaptive_avg_pool2d(features, {1, 1}).flatten(1));
}

ResNet resnet20(std::int64_t classes, std::int64_t channels) {
  return ResNet(ResNetOptions{.stem = Stem::kSmall,
                              .blocks = {3, 3, 3},
                              .width = 16,
                              .classes = classes,
                              .channels = channels});
}

ResNet resnet18(std::int64_t classes, std::int64_t channels, Stem stem) {
  return ResNet(ResNetOptions{.stem = stem, .classes = classes, .channels = channels});
}

ResNet resnet50(std::int64_t classes, std::int64_t channels, Stem stem) {
  return ResNet(ResNetOptions{.block = Block::kBottleneck,
                              .stem = stem,
                              .blocks = {3, 4, 6, 3},
                              .classes = classes,
                              .channels = channels});
}

ResNet wide_resnet50(std::int64_t classes, std::int64_t channels, Stem stem) {
  return ResNet(ResNetOptions{.block = Block::kBottleneck,
                              .stem = stem,
                              .blocks = {3, 4, 6, 3},
                              .bottleneck_widening = 2,
                              .classes = classes,
                              .channels = channels});
}

}  // namespace models
