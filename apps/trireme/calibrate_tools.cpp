// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/calibrate_tools.h>

#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/comm/consensus.h>
#include <trireme/comm/world.h>
#include <trireme/predict/calibration/calibrate.h>
#include <trireme/report/number.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <filesystem>
#include <iostream>
#include <optional>
#include <string>

namespace trireme::apps {

namespace {

// The type of the accelerators to measure.
at::DeviceType accelerator_of(const std::string& device) {
  constexpr const char* kHint = "give cpu, cuda or another type of accelerator";
  std::optional<at::Device> parsed;
  try {
    parsed = at::Device(device);
  } catch (const c10::Error&) {
    throw ConfigError(join_message("--device ", device, " is no type of device of LibTorch"),
                      kHint);
  }
  const std::string type = c10::DeviceTypeName(parsed->type(), /*lower_case=*/true);
  if (parsed->has_index()) {
    throw ConfigError(
        join_message("--device ", device, " names one device, but each rank measures its own"),
        join_message("give the type alone: --device ", type));
  }
  if (!at::isAccelerator(parsed->type())) {
    throw ConfigError(join_message("--device ", device, " is no accelerator"), kHint);
  }
  return parsed->type();
}

int count_of(at::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount()
                                             : 0;
}

at::Device device_of(const CalibrateTask& task, const World& world) {
  if (task.device == "cpu") return at::kCPU;
  const at::DeviceType type = accelerator_of(task.device);
  const int count = count_of(type);
  if (world.local_rank >= count) {
    throw ConfigError(
        join_message("rank ", world.rank, " would measure ", task.device, " ", world.local_rank,
                     ", but LibTorch can use ", count, " devices of this type on this machine"),
        "use as many ranks as there are devices (--ranks), or --device cpu");
  }
  return {type, static_cast<at::DeviceIndex>(world.local_rank)};
}

}  // namespace

int count_accelerators(const std::string& device) {
  const int count = count_of(accelerator_of(device));
  if (count > 0) return count;
  throw ConfigError(
      join_message("--device ", device,
                   ": LibTorch can use no device of this type on this machine"),
      "use a LibTorch that was built for the device, look at its driver, or give --device cpu");
}

void do_calibrate(const CalibrateTask& task) {
  const std::string& output = task.output;
  const std::filesystem::path folder = std::filesystem::absolute(output).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError(join_message("folder ", folder.string(),
                                   ", where --output is to be written, does not exist"),
                      "create it, or name a file in another folder");
  }
  const World world = init();
  at::Device device_of_rank = at::kCPU;
  comm::succeed_together("choose its device", world.group,
                         [&] { device_of_rank = device_of(task, world); });
  const cluster::Cluster measured =
      predict::calibrate(world.group, device_of_rank, task.memory_gib);
  if (!world.is_first()) return;
  cluster::write_cluster(measured, output);
  const cluster::DeviceKind& device = measured.devices.front();
  std::cout << output << ": " << world.size << " ranks, each with "
            << report::fixed(device.teraflops.float32 * 1000, 1) << " GFLOP/s in fp32, "
            << report::fixed(device.memory_gb_per_s, 1) << " GB/s of memory, "
            << report::fixed(device.memory_gib, 1) << " GiB; " << measured.operators.size()
            << " operators measured";
  if (!measured.links.empty()) {
    std::cout << "; messages at " << report::fixed(measured.links.front().gb_per_s, 1) << " GB/s";
  }
  std::cout << '\n';
}

}  // namespace trireme::apps
