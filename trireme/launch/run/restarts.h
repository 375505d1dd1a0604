// SPDX-License-Identifier: Apache-2.0
// Starts all ranks of a run again after one of them has failed. The state that trainings keep in
// memory survives (checkpoint/recovery.h).
// docs/decisions/0014-ranks-restart-from-memory.md gives the reasons.
#pragma once

#include <trireme/base/unique_fd.h>
#include <trireme/launch/run/run.h>
#include <trireme/launch/run/run_plan.h>
#include <trireme/launch/run/two_processes.h>

#include <filesystem>
#include <functional>
#include <string>

namespace trireme::launch {

/// The folder in which trainings keep their state. By default it is a new one in the memory of the
/// host (/dev/shm) that only this user can read. It is removed with everything in it when this
/// object is destroyed; if both processes of the launcher are killed, by the next run of the same
/// user. In a folder that was given, it has the name of the run and stays. Without restarts there
/// is none.
class RecoveryFolder {
 public:
  /// Throws ConfigError if the folder cannot be created.
  /// @param run the name of the run, which is the same in all attempts.
  RecoveryFolder(const RunOptions& options, const std::string& run);
  ~RecoveryFolder() { remove(); }
  RecoveryFolder(const RecoveryFolder&) = delete;
  RecoveryFolder& operator=(const RecoveryFolder&) = delete;

  /// Removes a folder that was not given. For the process that is forked while this object exists.
  void remove() const noexcept;

  /// Returns the path; empty without restarts.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool is_temporary_ = false;
  UniqueFd lock_;  // shows that the folder is in use
};

/// What an attempt needs.
struct PreparedRun {
  RunPlan plan;        ///< the processes to start
  StoreAddress place;  ///< the address of the store
};

/// Prepares an attempt with these options.
using Preparation = std::function<PreparedRun(const RunOptions&)>;

/// Returns a copy of a descriptor, which is empty if the descriptor is. Throws ConfigError on
/// failure.
UniqueFd copy_of_descriptor(const UniqueFd& fd);

/// Moves what the ranks of a failed attempt have dumped to `failure_<attempt>` in the folder of the
/// logs, because it would be taken for that of a later one. Returns the folder that has it.
std::filesystem::path put_dumps_aside(const std::filesystem::path& log_folder, int attempt);

/// Supervises the ranks (supervisor.h), again after each failure until no restart is left. Each
/// attempt has a store of its own. Logs continue. What the ranks of a failed attempt have dumped
/// goes to the folder `failure_<n>` beside the logs. Returns the exit code of the run.
///
/// In the world of a scheduler, the scheduler decides about restarts. Between two attempts this
/// process waits until the world is complete again, and signals end it.
/// @param first the first attempt.
/// @param prepare prepares the others.
int supervise_with_restarts(const PreparedRun& first, const Preparation& prepare,
                            const RunOptions& options, const std::filesystem::path& log_folder,
                            const SupervisorSetting& setting);

}  // namespace trireme::launch
