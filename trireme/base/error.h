// SPDX-License-Identifier: Apache-2.0
// The exceptions of Trireme, grouped by what the caller can do about them, and the macros that
// check invariants. docs/guide/errors.md lists for each exception its causes, its meaning for the
// other ranks, and the remedy.
#pragma once

#include <chrono>
#include <cstdint>
#include <locale>
#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace trireme {

/// The base class of all exceptions that Trireme throws on purpose. `what()` is one message for
/// people. It says what went wrong with which value, what was expected and, after "hint:", what to
/// do.
class Error : public std::runtime_error {
 public:
  /// @param message what went wrong, with the values concerned.
  /// @param hint what the user can do about it; it may be empty.
  /// @param where the source location that throws.
  Error(const std::string& message, std::string_view hint,
        std::source_location where = std::source_location::current());

  /// Returns the location in Trireme's own sources that threw the exception.
  const std::source_location& where() const noexcept { return where_; }

 private:
  std::source_location where_;
};

/// The call or the program is wrong. Fix the arguments, the model or the order of calls.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// The environment of the program is wrong: an environment variable, a command-line option, a
/// configuration file, a port, or a missing program.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// Describes where communication failed, as far as it is known.
struct CommFailure {
  int rank = -1;                       ///< this rank, within its group; -1 if unknown
  int peer = -1;                       ///< the rank that caused the failure; -1 if unknown
  std::string operation;               ///< the operation that failed, such as `all-reduce`
  std::uint64_t sequence = 0;          ///< the sequence number of the operation in its group
  std::chrono::nanoseconds elapsed{};  ///< the time from the start of the operation to the failure
};

/// Communication with other ranks failed. The group cannot be used any more: create a new group, or
/// end the process.
class CommError : public Error {
 public:
  using Error::Error;
  /// Creates an error with details for programs.
  CommError(const std::string& message, std::string_view hint, CommFailure failure,
            std::source_location where = std::source_location::current())
      : Error(message, hint, where), failure_(std::move(failure)) {}

  /// Returns the details of the failure, for programs.
  const CommFailure& failure() const noexcept { return failure_; }

 private:
  CommFailure failure_;
};

/// A data set is missing, damaged, or does not fit the model. The message names the file and the
/// offset or sample index.
class DataError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint could not be written or read, or belongs to another model. The message names the
/// file and the parameter.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// Training cannot continue, for example because the loss is not finite or a callback failed on
/// some rank.
class TrainingError : public Error {
 public:
  using Error::Error;
};

/// An invariant of Trireme itself is broken. Please report it with the message.
class InternalError : public Error {
 public:
  using Error::Error;
};

/// Concatenates its arguments with operator<<, for error messages, names and paths. Always uses the
/// classic locale: 12000 is never written as `12,000`.
template <typename... Parts>
std::string join_message(const Parts&... parts) {
  std::ostringstream message;
  message.imbue(std::locale::classic());
  (message << ... << parts);
  return message.str();
}

/// Returns the text of an errno value, such as `Broken pipe (errno 32)`.
std::string describe_errno(int error_number);

}  // namespace trireme

/// Throws InternalError with both operands unless `a == b`. For invariants of Trireme's own code,
/// never for user input.
#define TRIREME_CHECK_EQ(a, b)                                                                  \
  do {                                                                                          \
    const auto& trireme_a = (a);                                                                \
    const auto& trireme_b = (b);                                                                \
    if (!(trireme_a == trireme_b)) {                                                            \
      throw ::trireme::InternalError(::trireme::join_message("expected " #a " == " #b ", got ", \
                                                             trireme_a, " and ", trireme_b),    \
                                     "this is a defect in Trireme; please report it");          \
    }                                                                                           \
  } while (false)

/// Throws InternalError unless `condition` holds. For invariants of Trireme's own code, never for
/// user input.
#define TRIREME_CHECK(condition)                                                       \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      throw ::trireme::InternalError("expected " #condition,                           \
                                     "this is a defect in Trireme; please report it"); \
    }                                                                                  \
  } while (false)
