// SPDX-License-Identifier: Apache-2.0
// The memory format in which convolutions on CPUs are a third faster.
#pragma once

#include <torch/torch.h>

namespace examples {

/// Stores the weights of 2-d convolutions with the channels next to each other; images then follow
/// through the network. To be called before the optimizer is made.
inline void use_channels_last(torch::nn::Module& module) {
  for (at::Tensor& parameter : module.parameters()) {
    if (parameter.dim() == 4)
      parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
}

}  // namespace examples
