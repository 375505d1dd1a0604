// SPDX-License-Identifier: Apache-2.0
// Failures: keeps the exception of a rank until all ranks can stop together.
#pragma once

#include <trireme/comm/group.h>

#include <exception>
#include <string>
#include <string_view>
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

}  // namespace trireme::detail
