// SPDX-License-Identifier: Apache-2.0
// Saves checkpoints beside the training: a step waits for a copy into memory, and the files are
// written while it goes on.
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

/// What a save does while the one before it is still under way: wait for that one, or leave itself
/// out.
enum class WhenBusy { kWait, kSkip };

struct AsyncOptions {
  WhenBusy when_busy = WhenBusy::kWait;
  /// Called with the message of a save that failed, by the thread that calls `save` or `finish`
  /// next, or destroys the saver; training goes on then. Without it these throw.
  std::function<void(const std::string&)> on_failure{};
};

/// One save is under way at a time, so that memory for one copy of what this rank writes is all it
/// takes; that memory is kept for the next one. A failure is reported once, by the next call.
/// Thread-safety: none; the thread that writes is its own.
class AsyncSaver {
 public:
  /// Makes a group of its own for the writing thread. Throws UsageError for an empty group.
  /// Collective.
  explicit AsyncSaver(const comm::Group& group, AsyncOptions options = {});
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;
  /// Waits for the save that is under way. A failure that nobody asked for goes to on_failure, or
  /// else to standard error. Collective where a save is under way.
  ~AsyncSaver();

  /// Copies what this rank writes and returns; the tensors may change from then on. Reports the
  /// failure of the save before, in which case this one is not begun unless there is an on_failure.
  /// Returns false where it was left out. Arguments as for save_parts. Collective, alike on all
  /// ranks. What one rank alone cannot make or copy is a failure of this save, on all of them.
  bool save(const SaveOptions& options, const std::vector<TensorPart>& parts, const State& state);
  bool save(const SaveOptions& options, const std::function<Content()>& make);

  /// Waits until nothing is under way, reports a failure, and returns the path of the checkpoint
  /// that was saved last. Blocking.
  std::optional<std::filesystem::path> finish();

  /// Throws the failure of a save that has ended, as often as it is asked, and leaves reporting it
  /// to the next call of the others; nothing while one is under way. Not collective: one rank may
  /// know before another.
  void check() const;

  /// Whether files are being written.
  bool is_busy() const;

  /// From the begin of the save whose path `finish` has returned until it was on the disk.
  std::chrono::duration<double> seconds() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::checkpoint
