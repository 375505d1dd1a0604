// SPDX-License-Identifier: Apache-2.0
// Schedules as text that people can read and edit: docs/formats/schedule.md.
#pragma once

#include <trireme/schedule/schedule.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::schedule {

/// Returns the schedule as text, which `parse_schedule` reads back as the same value. Throws
/// UsageError where its name is no word.
std::string to_text(const Schedule& schedule);

/// Reads a schedule; whether it can be executed is for `verify` to say. Throws DataError with
/// `source`, line and column, both from 1, for text that is no schedule.
Schedule parse_schedule(std::string_view text, std::string_view source = "schedule");

/// Reads a file. Throws DataError where it cannot be read or is no schedule.
Schedule read_schedule(const std::filesystem::path& file);

/// Writes a file, which appears whole. Throws UsageError as to_text, and DataError where the file
/// system refuses.
void write_schedule(const Schedule& schedule, const std::filesystem::path& file);

}  // namespace trireme::schedule
