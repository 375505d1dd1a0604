// SPDX-License-Identifier: Apache-2.0
// What commands share: checks of numbers, and words that nobody knows.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace trireme::apps {

/// Returns a check of an option: one of `words`. Its message names them and the nearest.
CLI::Validator one_of(std::vector<std::string> words);

/// Returns a check of an option: an integer from `minimum` to `maximum`.
CLI::Validator integer_from(std::int64_t minimum,
                            std::int64_t maximum = std::numeric_limits<std::int64_t>::max());

/// A number that an option takes. CLI11 reads a `double` as the locale writes it.
struct Real {
  double value = 0;
};

/// What CLI11 reads one with.
bool lexical_cast(const std::string& text, Real& real);

/// Returns a check of an option: a finite number, 0 or more.
CLI::Validator number_from_zero();

/// Throws ConfigError where `option` was given: it has no effect `because`, and `instead` says what
/// to do.
void refuse_given(const CLI::App& command, const std::string& option, const std::string& because,
                  const std::string& instead);

/// Throws ConfigError unless the first word names a command.
void check_first_word(const CLI::App& app, const std::vector<std::string>& words);

/// Throws ConfigError that names an option which the command does not have, and the nearest one
/// that it has.
/// @param more for the hint.
[[noreturn]] void refuse_option(const CLI::App& command, const std::string& word,
                                const std::string& more = "");

/// Throws what parsing failed with as ConfigError: where a word was not known, with the nearest one
/// that is.
[[noreturn]] void explain(const CLI::App& app, const CLI::ParseError& wrong);

}  // namespace trireme::apps
