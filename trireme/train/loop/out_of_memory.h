// SPDX-License-Identifier: Apache-2.0
// Says what the memory of a device held when it was full.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace trireme::detail {

/// Throws TrainingError for an allocation on `device` that failed, nested in which is the error of
/// LibTorch that is being handled. The message says how many bytes parameters, gradients, the state
/// of the optimizer and everything else, mostly activations, take there.
[[noreturn]] void throw_out_of_memory(const torch::nn::Module& module,
                                      const torch::optim::Optimizer& optimizer, at::Device device);

/// Calls `call`. Throws as throw_out_of_memory does if it runs out of memory on `device`.
template <typename Call>
auto with_memory_account(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
                         at::Device device, const Call& call) {
  try {
    return call();
  } catch (const c10::OutOfMemoryError&) {
    throw_out_of_memory(module, optimizer, device);
  }
}

}  // namespace trireme::detail
