// SPDX-License-Identifier: Apache-2.0
// Compares several runs on one page.
#pragma once

#include <trireme/report/page/run_log.h>

#include <string>
#include <vector>

namespace trireme::report {

/// Returns the body of a page that compares runs: their results, the settings and environments in
/// which they differ, and charts with one line per run.
std::string comparison_of(const std::vector<RunLog>& runs);

}  // namespace trireme::report
