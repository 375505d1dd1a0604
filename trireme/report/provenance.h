// SPDX-License-Identifier: Apache-2.0
// Where a run came from: what was typed, where, and which revision of the sources lay there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace trireme::report {

/// Returns how this process was started, quoted so that a shell takes it again; empty where the
/// system does not tell.
std::string command_line();

/// Returns the commit, 40 or 64 hexadecimal digits, that is checked out in the git work tree that
/// `folder` lies in; nothing outside of one, or where the tree has no commit. Reads the files of
/// git (gitrepository-layout) and starts no program, so it does not know of uncommitted changes.
std::optional<std::string> git_revision(const std::filesystem::path& folder);

}  // namespace trireme::report
