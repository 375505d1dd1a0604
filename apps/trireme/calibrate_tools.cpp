// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/calibrate_tools.h>

#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/comm/world.h>
#include <trireme/predict/calibration/calibrate.h>
#include <trireme/report/number.h>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <filesystem>
#include <iostream>

namespace trireme::apps {

namespace {

at::Device device_of(const CalibrateTask& task, const World& world) {
  if (task.device == "cpu") return at::kCPU;
  at::DeviceType type = at::kCPU;
  try {
    type = at::Device(task.device).type();
  } catch (const c10::Error&) {
    throw ConfigError(join_message("--device ", task.device, " is no type of device of LibTorch"),
                      "give cpu, cuda or another type of accelerator");
  }
  const bool has_guard = c10::impl::hasDeviceGuardImpl(type);
  const int count = has_guard ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
  if (world.local_rank >= count) {
    throw ConfigError(join_message("rank ", world.rank, " would measure ", task.device, " ",
                                   world.local_rank, ", and this machine has ", count,
                                   " devices of this type that LibTorch can use"),
                      "use as many ranks as there are devices (--ranks), or --device cpu");
  }
  return {type, static_cast<at::DeviceIndex>(world.local_rank)};
}

}  // namespace

void do_calibrate(const CalibrateTask& task) {
  const std::string& output = task.output;
  const std::filesystem::path folder = std::filesystem::absolute(output).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError(join_message("folder ", folder.string(),
                                   ", where --output is to be written, does not exist"),
                      "create it, or name a file in another folder");
  }
  const World world = init();
  const cluster::Cluster measured =
      predict::calibrate(world.group, device_of(task, world), task.memory_gib);
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
