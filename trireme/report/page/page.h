// SPDX-License-Identifier: Apache-2.0
// A run as one page for a browser: docs/guide/report.md shows what is on it.
#pragma once

#include <trireme/report/page/run_log.h>

#include <filesystem>
#include <string>

namespace trireme::report {

/// Returns the run as HTML that needs nothing beside itself: no network, no other file. Every text
/// of the run is escaped. Without scripts it lacks only the numbers under the pointer. The same run
/// gives the same text.
std::string to_html(const RunLog& run);

/// Writes `to_html` to a file, which appears whole. Throws CheckpointError where the file system
/// refuses.
void write_page(const RunLog& run, const std::filesystem::path& file);

}  // namespace trireme::report
