// SPDX-License-Identifier: Apache-2.0
// CallbackCalls: calls the hooks of callbacks. Failures keeps the exception of a rank until all
// ranks can stop together.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/train/callback.h>

#include <exception>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace trireme::detail {

/// The failures of one rank. Not thread-safe.
class Failures {
 public:
  explicit Failures(comm::Group group) : group_(std::move(group)) {}

  /// Calls `call` and returns whether it succeeded. Over several ranks the first exception is kept
  /// until throw_on_all. A CommError is thrown at once, because the group cannot be used any more.
  /// In a group of one rank every exception is thrown at once.
  /// @param who returns what has failed, for the message, with `rank N` in it. Called after the
  /// exception.
  template <typename Call, typename Who>
  bool attempt(const Call& call, const Who& who) {
    try {
      call();
      return true;
    } catch (...) {
      keep_or_throw(who());
      return false;
    }
  }

  /// Returns whether an exception is kept.
  bool has_failed() const { return exception_ != nullptr; }

  /// Throws TrainingError with the same text on every rank. Call it on all ranks if has_failed on
  /// any. On the ranks that have failed, the exception is nested. A failure that several ranks
  /// share is named once. Collective and blocking.
  /// @param what has failed, such as `training`.
  [[noreturn]] void throw_on_all(std::string_view what) const;

 private:
  void keep_or_throw(const std::string& who);

  comm::Group group_;
  std::exception_ptr exception_;
  std::string message_;
};

/// The callbacks of one run on this rank. Not thread-safe.
class CallbackCalls {
 public:
  CallbackCalls(Callbacks callbacks, const comm::Group& group)
      : callbacks_(std::move(callbacks)), rank_(group.rank()), failures_(group) {}

  /// Calls `call(callback)` for each callback through Failures::attempt. If one throws, those after
  /// it are still called, because other ranks may wait for them in a collective. A callback that
  /// has thrown is not called again.
  /// @param hook the name of the hook, for the message.
  template <typename Call>
  void each(std::string_view hook, const Call& call) {
    for (Callback& callback : callbacks_) {
      if (failed_.contains(&callback)) continue;
      const bool is_well =
          failures_.attempt([&] { call(callback); }, [&] { return name_of(callback, hook); });
      if (!is_well) failed_.insert(&callback);
    }
  }

  /// Calls `call`, which is work of this rank itself, through Failures::attempt. Returns whether it
  /// succeeded.
  /// @param doing what `call` does, such as `reading data`. Read when `call` throws.
  template <typename Call>
  bool attempt(const std::string_view& doing, const Call& call) {
    return failures_.attempt(call, [&] { return name_of(doing); });
  }

  /// Returns a text such as `rank 1, reading data in epoch 2, step 6 of all`.
  std::string name_of(std::string_view doing) const;

  /// Sets the position of training that messages name.
  void set_place(std::int64_t epoch, std::int64_t global_step) {
    epoch_ = epoch;
    global_step_ = global_step;
  }

  const Failures& failures() const { return failures_; }

  const Callbacks& all() const { return callbacks_; }

 private:
  std::string name_of(const Callback& callback, std::string_view hook) const;
  std::string place() const;

  Callbacks callbacks_;
  int rank_;
  Failures failures_;
  std::unordered_set<const Callback*> failed_;
  std::int64_t epoch_ = 0;
  std::int64_t global_step_ = 0;
};

}  // namespace trireme::detail
