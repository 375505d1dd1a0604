// SPDX-License-Identifier: Apache-2.0
// Keeps the state of a training in the recovery folder of the run (checkpoint/recovery.h), and
// finds it again when all ranks have been started anew.
#pragma once

#include <trireme/checkpoint/async_saver.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/comm/group.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace trireme::detail {

/// The states of one model. Methods are collective and blocking unless they say otherwise.
class Recovery {
 public:
  /// Returns null in a run without restarts. Throws UsageError if the ranks have different folders.
  /// @param group the ranks that train the model. Its first rank must construct its models in the
  /// same order in each attempt, because a model is recognised by its number there.
  static std::unique_ptr<Recovery> of_process(const comm::Group& group);

  /// Returns the newest state that an earlier attempt has kept, if it has more steps than
  /// `global_step`. Returns std::nullopt in the first attempt and in all later calls. All ranks get
  /// the same. Throws CheckpointError on all ranks if the folder cannot be read.
  std::optional<std::filesystem::path> take_newest(std::int64_t global_step);

  /// Returns true if after_step() keeps the state after this step. The same on all ranks.
  bool is_due(std::int64_t global_step) const {
    return !is_broken_ && global_step >= next_ && global_step != last_;
  }

  /// Keeps the state after a step, if it is time to. Blocks until the data of this rank is copied;
  /// it is written while training goes on. If it cannot be kept, rank 0 prints a warning, and
  /// nothing is kept from then on.
  /// @param make returns the data of this rank.
  void after_step(std::int64_t global_step, const std::function<checkpoint::Content()>& make);

  /// Notes that a loss of this step was not finite. Returns true if an earlier attempt has noted
  /// the same step: to go back and to try it again has not helped.
  bool note_loss(std::int64_t global_step);

  /// Waits until the last state is written.
  void finish();
  /// Waits for this rank's part of the last state, after an exception. Not collective; never
  /// throws.
  void abandon() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

  Recovery(const comm::Group& group, const std::filesystem::path& folder, std::string prefix);
  void schedule_next(std::int64_t global_step, Seconds cost, Clock::time_point started);
  void stop_keeping(const std::string& reason);

  comm::Group group_;
  checkpoint::SaveOptions options_;
  std::optional<std::chrono::seconds> interval_;
  std::unique_ptr<checkpoint::AsyncSaver> saver_;
  bool may_take_ = true;
  bool is_broken_ = false;
  std::int64_t next_ = 0;   // the global step after which the next state is kept
  std::int64_t last_ = -1;  // that of the last one
  std::optional<Clock::time_point> last_time_;
};

}  // namespace trireme::detail
