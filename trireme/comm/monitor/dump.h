// SPDX-License-Identifier: Apache-2.0
// Dumps: files with the last operations of each rank, written when a group fails. Comparing them
// shows where the ranks went different ways. There is one JSON file per rank and group.
#pragma once

#include <trireme/comm/monitor/flight_recorder.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::comm {

/// Writes `<folder>/trireme-dump-<group>-rank<rank>.json` and creates the folder if necessary.
/// Returns the path; empty if it could not be written. Never throws, because it runs while another
/// error is handled.
std::filesystem::path write_dump(const std::filesystem::path& folder, const Dump& dump) noexcept;

/// Returns all dumps in the folder. Throws ConfigError if there is none, or if a file cannot be
/// read.
std::vector<Dump> read_dumps(const std::filesystem::path& folder);

/// Returns a text that says for each group which ranks have no dump, how far each rank came, and
/// the first collective that differs between ranks.
std::string compare_dumps(const std::vector<Dump>& dumps);

}  // namespace trireme::comm
