// SPDX-License-Identifier: Apache-2.0
// Replaces nccl.cpp if LibTorch has no CUDA or the headers of NCCL were not found.
#include <trireme/base/error.h>
#include <trireme/comm/engines/nccl/nccl.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trireme::comm {
namespace {

std::string missing() {
  return "built without CUDA: build with a LibTorch that has CUDA, and with NCCL's headers "
         "(libnccl-dev)";
}

}  // namespace

std::string identity_of(at::Device device) { return device.str(); }

Engine nccl_engine() {
  return {.name = "nccl",
          .scope = Scope::kAnyHosts,
          .device = at::kCUDA,
          .unavailable_because = missing,
          .connect = [](const EngineContext&) -> c10::intrusive_ptr<c10d::Backend> {
            throw ConfigError("engine nccl is not in this build", missing());
          },
          .summation_order = [](const EngineContext&) { return SummationOrder::kUnspecified; }};
}

}  // namespace trireme::comm
