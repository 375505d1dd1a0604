// SPDX-License-Identifier: Apache-2.0
// Describes the origin of a run: the command, and the revision of the sources.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace trireme::report {

/// Returns the command line of this process, quoted for a shell. Returns an empty text if the
/// system does not provide it.
std::string command_line();

/// Returns the commit (40 or 64 hexadecimal digits) that is checked out in the git work tree
/// containing `folder`. Returns std::nullopt outside a work tree, or if it has no commit. Reads the
/// files of git (gitrepository-layout) and starts no program. Uncommitted changes are therefore not
/// detected.
std::optional<std::string> git_revision(const std::filesystem::path& folder);

}  // namespace trireme::report
