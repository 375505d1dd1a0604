// SPDX-License-Identifier: Apache-2.0
// What `trireme calibrate` does on each rank.
#pragma once

#include <string>

namespace trireme::apps {

/// Measures this host with all ranks of the run. The first rank writes the description to a file
/// and prints a summary. Throws ConfigError, before it measures, if the folder of the file does not
/// exist, and as predict::calibrate() and cluster::write_cluster().
void do_calibrate(const std::string& output);

}  // namespace trireme::apps
