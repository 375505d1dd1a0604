// SPDX-License-Identifier: Apache-2.0
// The networks whose operators a calibration times.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::predict {

struct SampleNetwork {
  std::string name;  ///< for messages
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<std::vector<at::Tensor>> inputs;  ///< what `forward` reads
  std::function<at::Tensor()> forward;              ///< returns the loss
};

/// Returns functions that make networks of growing sizes, of the kinds that people train: stacks of
/// linear layers, convolutions with batch norm, and transformers, in fp32. Those for the CPU run
/// together in about a second on one core; those for accelerators are larger.
std::vector<std::function<SampleNetwork()>> sample_networks(const c10::Device& device);

}  // namespace trireme::predict
