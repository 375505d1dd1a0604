// SPDX-License-Identifier: Apache-2.0
// Calls the hooks of callbacks, and keeps what one throws until all ranks can stop together.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/train/callback.h>

#include <exception>
#include <string>
#include <string_view>
#include <unordered_set>

namespace trireme::detail {

/// `what()` of an exception and of those nested in it.
std::string describe(const std::exception_ptr& exception);

/// The callbacks of one run on this rank. Not thread-safe.
class CallbackCalls {
 public:
  CallbackCalls(Callbacks callbacks, comm::Group group)
      : callbacks_(std::move(callbacks)), group_(std::move(group)) {}

  /// Calls `call(callback)` for each. Over several ranks, the first exception is kept until
  /// throw_on_all: those that come after are still called, because other ranks may wait for them in
  /// a collective, and the one that threw is left out from then on. A CommError is thrown at once:
  /// the group is dead.
  /// @param hook its name, for the message.
  template <typename Call>
  void each(std::string_view hook, const Call& call) {
    for (Callback& callback : callbacks_) {
      if (failed_.contains(&callback)) continue;
      try {
        call(callback);
      } catch (...) {
        keep(callback, hook);
      }
    }
  }

  /// Where training is, for the message.
  void set_place(std::int64_t epoch, std::int64_t global_step) {
    epoch_ = epoch;
    global_step_ = global_step;
  }

  bool has_failed() const { return exception_ != nullptr; }

  /// Throws TrainingError with one text on every rank, where has_failed on any. Collective,
  /// blocking.
  [[noreturn]] void throw_on_all() const;

  const Callbacks& all() const { return callbacks_; }

 private:
  void keep(Callback& callback, std::string_view hook);

  Callbacks callbacks_;
  comm::Group group_;
  std::unordered_set<const Callback*> failed_;
  std::exception_ptr exception_;
  std::string message_;
  std::int64_t epoch_ = 0;
  std::int64_t global_step_ = 0;
};

}  // namespace trireme::detail
