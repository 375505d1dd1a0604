// SPDX-License-Identifier: Apache-2.0
// Several runs beside each other.
#pragma once

#include <trireme/report/page/run_log.h>

#include <string>
#include <vector>

namespace trireme::report {

/// Returns the body of a page that compares runs: what each came to, the settings and surroundings
/// in which they differ, and charts with one line for each run.
std::string comparison_of(const std::vector<RunLog>& runs);

}  // namespace trireme::report
