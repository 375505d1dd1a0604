// SPDX-License-Identifier: Apache-2.0
// Calls the hooks of callbacks and what lies between them, and keeps what one throws until all
// ranks can stop together.
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

  /// Calls `call(callback)` for each, by Failures::attempt: those that come after one that has
  /// thrown are still called, because other ranks may wait for them in a collective, and the one
  /// that threw is left out from then on.
  /// @param hook its name, for the message.
  template <typename Call>
  void each(std::string_view hook, const Call& call) {
    for (Callback& callback : callbacks_) {
      if (failed_.contains(&callback)) continue;
      const bool is_well =
          failures_.attempt([&] { call(callback); }, [&] { return name_of(callback, hook); });
      if (!is_well) failed_.insert(&callback);
    }
  }

  /// The same for what this rank does itself; returns whether `call` came back.
  /// @param doing such as `reading data`, as it is when `call` throws.
  template <typename Call>
  bool attempt(const std::string_view& doing, const Call& call) {
    return failures_.attempt(call, [&] { return name_of(doing); });
  }

  /// `rank 1, reading data in epoch 2, step 6 of all`.
  std::string name_of(std::string_view doing) const;

  /// Where training is, for the message.
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
