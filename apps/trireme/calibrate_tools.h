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

/// Measures this host with all ranks of the run. Accelerators belong to ranks in order. The first
/// rank writes the description to a file and prints a summary. Throws ConfigError, before it
/// measures, if the folder of the file does not exist, if the machine has no such device or fewer
/// than ranks, and as predict::calibrate() and cluster::write_cluster().
void do_calibrate(const CalibrateTask& task);

}  // namespace trireme::apps
