// SPDX-License-Identifier: Apache-2.0
// A run as one page for a browser: docs/guide/report.md shows what is on it.
#pragma once

#include <trireme/report/page/run_log.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::report {

/// Returns the run as HTML that needs nothing beside itself: no network, no other file. Every text
/// of the run is escaped. Without scripts it lacks only the numbers under the pointer. The same run
/// gives the same text.
std::string to_html(const RunLog& run);

/// Returns several runs beside each other on one page of the same kind: a table of what each came
/// to, the settings in which they differ, and curves with one line for each run (the mean of its
/// ranks). Runs are named by their `name`.
std::string to_html(const std::vector<RunLog>& runs);

/// Writes `to_html` to a file, which appears whole. Throws CheckpointError where the file system
/// refuses.
void write_page(const RunLog& run, const std::filesystem::path& file);
void write_page(const std::vector<RunLog>& runs, const std::filesystem::path& file);

}  // namespace trireme::report
