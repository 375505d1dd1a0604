// SPDX-License-Identifier: Apache-2.0
// What `trireme calibrate` does on each rank.
#pragma once

#include <string>

namespace trireme::apps {

/// What `trireme calibrate` measures.
struct CalibrateTask {
  std::string output;  ///< file of the description
  std::string device;  ///< `cpu`, or the type of the accelerators of this machine, such as `cuda`
  double memory_gib = 0;  ///< memory of an accelerator; 0: what it says
};

/// Returns how many accelerators of a type this machine has. Throws ConfigError if it has none, if
/// LibTorch knows no such type, if it is no accelerator, or if an index follows the type.
int count_accelerators(const std::string& device);

/// Measures this host with all ranks of the run. Accelerators belong to ranks in order. The first
/// rank writes the description to a file and prints a summary. Throws before it measures, on all
/// ranks, if the machine has fewer devices of the type than ranks, and as count_accelerators().
/// Throws ConfigError if the folder of the file does not exist, and as predict::calibrate() and
/// cluster::write_cluster().
void do_calibrate(const CalibrateTask& task);

}  // namespace trireme::apps
