// SPDX-License-Identifier: Apache-2.0
// Starts all ranks of a run again after one of them has failed. The state that trainings keep in
// memory survives (checkpoint/recovery.h).
// docs/decisions/0013-ranks-restart-from-memory.md gives the reasons.
#pragma once

#include <trireme/launch/run/run.h>
#include <trireme/launch/run/run_plan.h>
#include <trireme/launch/run/two_processes.h>

#include <filesystem>

namespace trireme::launch {

/// The folder in which trainings keep their state. If it was not given, it is a new one in the
/// memory of the host (/dev/shm) that only this user can read, and is removed with everything in it
/// when this object is destroyed. Without restarts there is none.
class RecoveryFolder {
 public:
  /// Throws ConfigError if the folder cannot be created.
  explicit RecoveryFolder(const RunOptions& options);
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
};

/// Supervises the ranks (supervisor.h), again after each failure until no restart is left. Each
/// attempt has a store of its own at the same address. Logs continue. What the ranks of a failed
/// attempt have dumped goes to the folder `failure_<n>` beside the logs. Returns the exit code of
/// the run.
int supervise_with_restarts(const RunPlan& plan, const RunOptions& options,
                            const std::filesystem::path& log_folder, const StoreAddress& place,
                            const SupervisorSetting& setting);

}  // namespace trireme::launch
