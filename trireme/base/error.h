// SPDX-License-Identifier: Apache-2.0
// The exceptions of Trireme, by what the caller can do about them, and the checks that throw them.
// docs/guide/errors.md lists each with its causes, what it means for the other ranks, and the
// remedy.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <locale>
#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace trireme {

/// Root of every exception that Trireme throws on purpose. `what()` is one message for people: what
/// went wrong with which value, what was expected, and after "hint:" what to do.
class Error : public std::runtime_error {
 public:
  Error(const std::string& message, std::string_view hint,
        std::source_location where = std::source_location::current());

  /// Place in Trireme's own sources that threw.
  const std::source_location& where() const noexcept { return where_; }

 private:
  std::source_location where_;
};

/// The call or the program is wrong: fix the arguments, the model or the order of calls.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// The surroundings are wrong: an environment variable, a command-line option, a port, a missing
/// program.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// Where communication failed, as far as it is known.
struct CommFailure {
  int rank = -1;          ///< this rank, within its group
  int peer = -1;          ///< the rank that is to blame
  std::string operation;  ///< such as `all-reduce`
  std::uint64_t sequence = 0;
  std::chrono::nanoseconds elapsed{};
};

/// Communication with other ranks failed. The group is dead: make a new one, or end the process.
class CommError : public Error {
 public:
  using Error::Error;
  CommError(const std::string& message, std::string_view hint, CommFailure failure,
            std::source_location where = std::source_location::current())
      : Error(message, hint, where), failure_(std::move(failure)) {}

  const CommFailure& failure() const noexcept { return failure_; }

 private:
  CommFailure failure_;
};

/// A data set is missing, damaged, or does not fit the model; names file and offset or sample
/// index.
class DataError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint could not be written or read, or belongs to another model; names file and
/// parameter.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// Training cannot go on as it is: the loss is not a number, a callback failed on some rank.
class TrainingError : public Error {
 public:
  using Error::Error;
};

/// A broken invariant in Trireme itself. Please report it with the message.
class InternalError : public Error {
 public:
  using Error::Error;
};

/// Joins its arguments with operator<<: error messages, names and paths without format strings. The
/// global locale has no say in it: 12000 is never written as `12,000`.
template <typename... Parts>
std::string join_message(const Parts&... parts) {
  std::ostringstream message;
  message.imbue(std::locale::classic());
  (message << ... << parts);
  return message.str();
}

/// `Broken pipe (errno 32)` for an errno value.
std::string describe_errno(int error_number);

}  // namespace trireme

/// Throws InternalError with both operands unless `a == b`; for invariants of our own code, never
/// for user input.
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

/// Throws InternalError unless `condition`; for invariants of our own code, never for user input.
#define TRIREME_CHECK(condition)                                                       \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      throw ::trireme::InternalError("expected " #condition,                           \
                                     "this is a defect in Trireme; please report it"); \
    }                                                                                  \
  } while (false)
