// SPDX-License-Identifier: Apache-2.0
// What keeps a rank from going on, until all ranks can stop together.
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

  /// Calls `call` and returns whether it came back. Over several ranks an exception is kept until
  /// throw_on_all, the first one of all; a CommError is thrown at once, for the group is dead then,
  /// and in a group of one everything is.
  /// @param who returns what the message says has failed, with `rank N` in it; called afterwards.
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

  bool has_failed() const { return exception_ != nullptr; }

  /// Throws TrainingError with one text on every rank, where has_failed on any; on those where it
  /// has, with the exception nested. What happened to several ranks is said once. Collective,
  /// blocking.
  /// @param what has failed, such as `training`.
  [[noreturn]] void throw_on_all(std::string_view what) const;

 private:
  void keep_or_throw(const std::string& who);

  comm::Group group_;
  std::exception_ptr exception_;
  std::string message_;
};

}  // namespace trireme::detail
