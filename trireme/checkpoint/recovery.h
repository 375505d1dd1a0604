// SPDX-License-Identifier: Apache-2.0
// The folder in which a training keeps its state, so that all ranks can go on from there when the
// launcher starts them again after a failure. docs/guide/recovery.md shows its use.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>

namespace trireme::checkpoint {

/// Returns the folder for states that need not outlive the run (TRIREME_RECOVERY_FOLDER). `trireme
/// run --restarts` makes one in the memory of the host. All ranks of the run see it, and what they
/// write there survives them. Returns std::nullopt in a run without restarts.
std::optional<std::filesystem::path> recovery_folder();

/// Returns the time that should pass between two states (TRIREME_RECOVERY_SECONDS), or std::nullopt
/// if the training chooses it. Throws ConfigError if the variable is no integer from 0 to a month.
std::optional<std::chrono::seconds> recovery_interval();

/// Returns how often the ranks have been started again (TORCHELASTIC_RESTART_COUNT): 0 for the
/// first attempt. Throws ConfigError if the variable is no count.
int restart_count();

}  // namespace trireme::checkpoint
