// SPDX-License-Identifier: Apache-2.0
// Saves checkpoints in the background: a thread writes the files. Training waits only while
// tensors are copied in memory, and only for those that it changes before they are written.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/comm/group.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// The behaviour of a save while the previous one is running: wait for it, or skip itself.
enum class WhenBusy { kWait, kSkip };

/// Options of AsyncSaver.
struct AsyncOptions {
  /// The behaviour of save() while the previous save is running.
  WhenBusy when_busy = WhenBusy::kWait;
  /// Receives the message of a failed save, and training continues. It is called on the thread that
  /// next calls save() or finish(), or destroys the saver. Without it, save() and finish() throw.
  std::function<void(const std::string&)> on_failure{};
};

/// Saves checkpoints on a thread of its own.
///
/// One save runs at a time, so one copy of the data that this rank writes is enough. The memory of
/// the copy is kept for the next save. A failure is reported once, by the next call. Not
/// thread-safe.
///
/// With Copying::kBeforeChange, tensors are written from where they are while the next step
/// computes forward and backward, which do not change them in most networks. The step waits for a
/// copy of what is left:
///
///     saver.save(options, make, Copying::kBeforeChange);
///     loss = forward(batch);
///     loss.backward();
///     saver.before_change();
///     optimizer.step();
class AsyncSaver {
 public:
  /// Makes a process group of its own for the writing thread. Throws UsageError for an empty group.
  /// Collective.
  explicit AsyncSaver(const comm::Group& group, AsyncOptions options = {});
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;
  /// Waits for a running save. An unreported failure goes to on_failure, or else to standard error.
  /// Collective if a save is running.
  ~AsyncSaver();

  /// Copies the data that this rank writes and returns; the tensors may be changed afterwards. With
  /// Copying::kBeforeChange, it copies only parts with `changes_any_time` and those on
  /// accelerators, and the others must not be changed before before_change(). The save fails if it
  /// notices that one was changed, but not every change can be noticed.
  ///
  /// Reports the failure of the previous save. In that case this save begins only if there is an
  /// on_failure. Returns false if this save was skipped. The arguments are those of save_parts().
  /// Collective with the same options on all ranks. An error of one rank while it makes or copies
  /// its data is a failure of this save on all ranks.
  bool save(const SaveOptions& options, const std::vector<TensorPart>& parts, const State& state,
            Copying copying = Copying::kAtOnce);
  /// Saves what `make` returns on each rank; otherwise like the overload above.
  bool save(const SaveOptions& options, const std::function<Content()>& make,
            Copying copying = Copying::kAtOnce);

  /// Copies the tensors of a running save with Copying::kBeforeChange that have not been written,
  /// so that they may be changed. Does nothing if there are none. If there is no memory for the
  /// copies, the save fails. Not collective.
  void before_change() noexcept;

  /// Waits for a running save, reports a failure, and returns the path of the last saved
  /// checkpoint; nullopt if there is none. Blocking.
  std::optional<std::filesystem::path> finish();

  /// Throws the failure of a finished save, in every call until save() or finish() reports it. Does
  /// nothing while a save is running. Not collective: one rank may see a failure before another.
  void check() const;

  /// Returns true while files are being written.
  bool is_busy() const;

  /// Returns the time from the start of the last successful save until it was on disk. Call it only
  /// when no save is running.
  std::chrono::duration<double> seconds() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::checkpoint
