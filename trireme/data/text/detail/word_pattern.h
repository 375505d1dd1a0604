// SPDX-License-Identifier: Apache-2.0
// Splits text into words by a regular expression (PCRE2). No token crosses the border of a word.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::data::detail {

/// The expression of GPT-2 (encoder.py): contractions, then letters, digits or other signs, each
/// with an optional space before it, then white space.
extern const std::string_view kGpt2Words;

/// A compiled regular expression. Const methods may be called concurrently.
///
/// `\s` and `\S` use Unicode's White_Space. The Unicode version of the installed PCRE2 decides
/// which characters are letters or digits.
class WordPattern {
 public:
  /// Compiles `expression`. Throws DataError with PCRE2's message if it is not a valid expression.
  /// @param expression the regular expression.
  /// @param name what messages call it, such as a file and the place in it.
  WordPattern(std::string_view expression, std::string name);
  /// Moves a compiled expression.
  WordPattern(WordPattern&& other) noexcept;
  /// Moves a compiled expression.
  WordPattern& operator=(WordPattern&& other) noexcept;
  WordPattern(const WordPattern&) = delete;
  WordPattern& operator=(const WordPattern&) = delete;
  ~WordPattern();

 private:
  friend class WordScanner;
  struct Compiled;

  std::unique_ptr<const Compiled> compiled_;
};

/// Returns the words of a text in order: the matches that are not empty, and the text between them.
/// Consecutive bytes that are not UTF-8 are one word. Not thread-safe.
class WordScanner {
 public:
  /// Makes a scanner. `pattern` must outlive it.
  explicit WordScanner(const WordPattern& pattern);
  /// Moves a scanner.
  WordScanner(WordScanner&& other) noexcept;
  /// Moves a scanner.
  WordScanner& operator=(WordScanner&& other) noexcept;
  WordScanner(const WordScanner&) = delete;
  WordScanner& operator=(const WordScanner&) = delete;
  ~WordScanner();

  /// Starts with another text, which is not copied.
  void begin(std::string_view text);

  /// Returns the next word, or nullopt after the last one. Throws DataError if PCRE2 gives up on
  /// the text.
  std::optional<std::string_view> next();

 private:
  struct Matches;

  std::string_view take(std::size_t end);
  void find_match();

  const WordPattern::Compiled* compiled_;
  std::unique_ptr<Matches> matches_;
  std::string_view text_;
  std::size_t done_ = 0;
  // The stretch of valid UTF-8 that is being scanned.
  std::size_t stretch_begin_ = 0;
  std::size_t stretch_end_ = 0;
  // The next match in that stretch, at or after `done_`.
  std::size_t match_begin_ = 0;
  std::size_t match_end_ = 0;
};

/// Replaces `\s` and `\S` by classes of Unicode's White_Space; PCRE2's `\s` has one character more
/// (U+180E). A `\S` inside a class stays as it is.
std::string with_white_space(std::string_view expression);

/// Returns the expression that matches exactly this text.
std::string quoted_expression(std::string_view text);

}  // namespace trireme::data::detail
