// SPDX-License-Identifier: Apache-2.0
// Common parts of the commands: checks of numbers and words, and errors about unknown words.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace trireme::apps {

/// Returns a validator that accepts one of `words`. Its message lists them and names the nearest.
CLI::Validator one_of(std::vector<std::string> words);

/// Returns a validator that accepts an integer from `minimum` to `maximum`.
CLI::Validator integer_from(std::int64_t minimum,
                            std::int64_t maximum = std::numeric_limits<std::int64_t>::max());

/// A number as the value of an option. CLI11 would parse a `double` in the format of the locale.
struct Real {
  /// The number.
  double value = 0;
};

/// Parses a Real; CLI11 finds this function by argument-dependent lookup.
bool lexical_cast(const std::string& text, Real& real);

/// Returns a validator that accepts a finite number of 0 or more.
CLI::Validator number_from_zero();

/// Throws ConfigError if `option` was given although it has no effect.
/// @param command the parsed command.
/// @param option the option.
/// @param because why it has no effect.
/// @param instead what to do, for the hint.
void refuse_given(const CLI::App& command, const std::string& option, const std::string& because,
                  const std::string& instead);

/// Throws ConfigError unless the first word is the name of a command.
void check_first_word(const CLI::App& app, const std::vector<std::string>& words);

/// Throws ConfigError about an option that the command does not have, with the nearest one that it
/// has.
/// @param command the command.
/// @param word the option as it was typed.
/// @param more an addition to the hint.
[[noreturn]] void refuse_option(const CLI::App& command, const std::string& word,
                                const std::string& more = "");

/// Rethrows a parse error as ConfigError. For an unknown word, names the nearest known one.
[[noreturn]] void explain(const CLI::App& app, const CLI::ParseError& wrong);

}  // namespace trireme::apps
