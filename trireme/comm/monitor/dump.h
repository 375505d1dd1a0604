// SPDX-License-Identifier: Apache-2.0
// Files with what each rank did last, written when a group fails, and the comparison that says
// where the ranks went different ways. One JSON file per rank and group.
#pragma once

#include <trireme/comm/monitor/operation_record.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::comm {

/// Writes `<folder>/trireme-dump-<group>-rank<rank>.json`, making the folder where needed. Never
/// throws: it runs while another error is on its way. Returns the path; empty where it could not be
/// written.
std::filesystem::path write_dump(const std::filesystem::path& folder, const Dump& dump) noexcept;

/// Reads every dump in the folder. Throws ConfigError where there is none, or a file cannot be
/// read.
std::vector<Dump> read_dumps(const std::filesystem::path& folder);

/// Says, group by group, which ranks' dumps are missing, how far each rank came, and the first
/// collective that was not the same on all of them.
std::string compare_dumps(const std::vector<Dump>& dumps);

}  // namespace trireme::comm
