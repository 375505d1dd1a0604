// SPDX-License-Identifier: Apache-2.0
// Renders a run as one HTML page: docs/guide/report.md shows its content.
#pragma once

#include <trireme/report/page/run_log.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::report {

/// Returns the run as HTML that needs neither a network nor other files. All texts of the run are
/// escaped. Without scripts, only the numbers under the pointer are missing. The same run always
/// gives the same text.
std::string to_html(const RunLog& run);

/// Returns several runs on one page of the same kind: a table of results, the settings in which
/// they differ, and curves with one line per run (the mean of its ranks). The `name` of each run
/// identifies it.
std::string to_html(const std::vector<RunLog>& runs);

/// Writes `to_html` to a file atomically. Throws CheckpointError if the file system refuses.
void write_page(const RunLog& run, const std::filesystem::path& file);
/// Writes the comparison of several runs to a file atomically.
void write_page(const std::vector<RunLog>& runs, const std::filesystem::path& file);

}  // namespace trireme::report
