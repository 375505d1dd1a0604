// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/calibrate_tools.h>

#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/comm/world.h>
#include <trireme/predict/calibration/calibrate.h>
#include <trireme/report/number.h>

#include <filesystem>
#include <iostream>

namespace trireme::apps {

void do_calibrate(const std::string& output) {
  const std::filesystem::path folder = std::filesystem::absolute(output).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError(join_message("folder ", folder.string(),
                                   ", where --output is to be written, does not exist"),
                      "create it, or name a file in another folder");
  }
  const World world = init();
  const cluster::Cluster measured = predict::calibrate(world.group);
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
