// SPDX-License-Identifier: Apache-2.0
// Reads and writes schedules as text that people can edit: docs/formats/schedule.md.
#pragma once

#include <trireme/schedule/schedule.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::schedule {

/// Returns a schedule as text, which `parse_schedule` reads back as the same value. Throws
/// UsageError if its name is not one word.
std::string to_text(const Schedule& schedule);

/// Parses a schedule, without checking that it can be executed (see `verify`). Throws DataError
/// with `source`, line and column (both from 1) if the text is not a schedule.
Schedule parse_schedule(std::string_view text, std::string_view source = "schedule");

/// Reads a schedule from a file. Throws DataError if it cannot be read or is not a schedule.
Schedule read_schedule(const std::filesystem::path& file);

/// Writes a schedule to a file atomically. Throws UsageError like `to_text`, and DataError if the
/// file system refuses.
void write_schedule(const Schedule& schedule, const std::filesystem::path& file);

}  // namespace trireme::schedule
