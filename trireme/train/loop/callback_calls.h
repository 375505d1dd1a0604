// SPDX-License-Identifier: Apache-2.0
// CallbackCalls: calls the hooks of callbacks, and keeps the exception of one until all ranks can
// stop together.
#pragma once

#include <trireme/train/callback.h>
#include <trireme/train/loop/failures.h>

#include <string>
#include <string_view>
#include <unordered_set>

namespace trireme::detail {

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
