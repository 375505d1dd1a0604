// SPDX-License-Identifier: Apache-2.0
#ifndef USE_C10D_NCCL
#define USE_C10D_NCCL  // LibTorch's headers ask for it; its CMake target sets it only in some
                       // versions
#endif

#include <trireme/comm/engines/nccl/nccl.h>

#include <trireme/base/error.h>

#include <ATen/Context.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <array>

namespace trireme::comm {
namespace {

std::string unavailable_because() {
  return at::getNumGPUs() > 0 ? "" : "LibTorch sees no CUDA device";
}

// NCCL's own message for two ranks on one device names neither of them.
void check_devices(const EngineContext& context) {
  const auto ranks = context.ranks_on_one_device();
  if (!ranks) return;
  throw ConfigError(
      join_message("engine nccl: ranks ", ranks->first, " and ", ranks->second, " of '",
                   context.group_name, "' share a CUDA device"),
      "start as many ranks on each host as it has devices, or leave the engine out or name "
      "cuda:staged, which copies tensors through the memory of the host");
}

c10::intrusive_ptr<c10d::Backend> connect_nccl(const EngineContext& context) {
  check_devices(context);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  // DeviceMonitor notices a late operation first. It names the rank, where NCCL's own watchdog
  // would end the process.
  options->timeout = context.timeout + std::chrono::minutes{1};
  options->group_name = context.group_name;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(context.store, context.rank, context.size,
                                                     options);
}

}  // namespace

std::string identity_of(at::Device device) {
  std::array<char, 32> address{};
  if (device.is_cuda() && cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()),
                                                device.index()) == cudaSuccess) {
    return address.data();
  }
  return device.str();
}

Engine nccl_engine() {
  return {.name = "nccl",
          .scope = Scope::kAnyHosts,
          .device = at::kCUDA,
          .unavailable_because = unavailable_because,
          .connect = connect_nccl,
          // NCCL uses rings or trees, depending on size. With two ranks the order does not matter,
          // because addition commutes.
          .summation_order = [](const EngineContext& context) {
            return context.size <= 2 ? SummationOrder::kRank : SummationOrder::kUnspecified;
          }};
}

}  // namespace trireme::comm
