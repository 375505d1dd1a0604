// SPDX-License-Identifier: Apache-2.0
#ifndef USE_C10D_NCCL
#define USE_C10D_NCCL  // LibTorch's headers ask for it; its CMake target sets it only in some
                       // versions
#endif

#include <trireme/comm/engines/nccl/nccl.h>

#include <trireme/base/error.h>

#include <ATen/Context.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>

namespace trireme::comm {
namespace {

std::string unavailable_because() {
  return at::getNumGPUs() > 0 ? "" : "LibTorch sees no CUDA device";
}

// NCCL's own message for two ranks on one device names neither of them.
void check_devices(const EngineContext& context) {
  const auto own =
      context.machines.empty()
          ? std::ptrdiff_t{context.size}
          : std::ranges::count(context.machines,
                               context.machines[static_cast<std::size_t>(context.rank)]);
  const auto devices = static_cast<std::ptrdiff_t>(at::getNumGPUs());
  if (own <= devices) return;
  throw ConfigError(
      join_message("engine nccl: ", own, " ranks of '", context.group_name, "' share a host with ",
                   devices, " CUDA devices"),
      "start as many ranks on each host as it has devices; engine gloo lets ranks share one");
}

c10::intrusive_ptr<c10d::Backend> connect_nccl(const EngineContext& context) {
  check_devices(context);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = context.timeout;
  options->group_name = context.group_name;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(context.store, context.rank, context.size,
                                                     options);
}

}  // namespace

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
