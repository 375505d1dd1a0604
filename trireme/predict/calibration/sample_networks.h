// SPDX-License-Identifier: Apache-2.0
// The networks whose operators a calibration times.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::predict {

/// A network with its input.
struct SampleNetwork {
  std::string name;  ///< for messages
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor()> forward;  ///< returns the loss
};

/// Returns functions that make networks of growing sizes, of the kinds that people train: stacks of
/// linear layers, convolutions with batch norm, recurrent layers and transformers, in fp32 on the
/// CPU. Together they run in about a second on one core.
std::vector<std::function<SampleNetwork()>> sample_networks();

}  // namespace trireme::predict
