// SPDX-License-Identifier: Apache-2.0
// Cutting text into words by a regular expression (PCRE2), which no token crosses.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::data::detail {

/// The words of GPT-2 (encoder.py): contractions, then letters, digits or other signs, each with a
/// space before it, then white space.
extern const std::string_view kGpt2Words;

/// A regular expression. `\s` and `\S` are by Unicode's White_Space; which characters are letters
/// or digits is what the PCRE2 that runs knows of Unicode. Const methods may be called
/// concurrently.
class WordPattern {
 public:
  /// @param name what messages call it, such as a file and a place in it.
  /// Throws DataError with what PCRE2 says where `expression` is none.
  WordPattern(std::string_view expression, std::string name);
  WordPattern(WordPattern&& other) noexcept;
  WordPattern& operator=(WordPattern&& other) noexcept;
  WordPattern(const WordPattern&) = delete;
  WordPattern& operator=(const WordPattern&) = delete;
  ~WordPattern();

 private:
  friend class WordScanner;
  struct Compiled;

  std::unique_ptr<const Compiled> compiled_;
};

/// The words of a text in order: the matches that are not empty, and what is between them.
/// Consecutive bytes that are not UTF-8 are a word of their own. Not thread-safe.
class WordScanner {
 public:
  /// @param pattern outlives the scanner.
  explicit WordScanner(const WordPattern& pattern);
  WordScanner(WordScanner&& other) noexcept;
  WordScanner& operator=(WordScanner&& other) noexcept;
  WordScanner(const WordScanner&) = delete;
  WordScanner& operator=(const WordScanner&) = delete;
  ~WordScanner();

  /// @param text is not copied.
  void begin(std::string_view text);

  /// Returns the next word, nothing after the last. Throws DataError where the expression gives up
  /// on the text.
  std::optional<std::string_view> next();

 private:
  struct Matches;

  std::string_view take(std::size_t end);
  void find_match();

  const WordPattern::Compiled* compiled_;
  std::unique_ptr<Matches> matches_;
  std::string_view text_;
  std::size_t done_ = 0;
  std::size_t stretch_begin_ = 0;  // of the UTF-8 that is looked at
  std::size_t stretch_end_ = 0;
  std::size_t match_begin_ = 0;  // in it, from `done_` on
  std::size_t match_end_ = 0;
};

/// Replaces `\s` and `\S` by classes of Unicode's White_Space: PCRE2's have one character more
/// (U+180E). A `\S` inside of a class stays.
std::string with_white_space(std::string_view expression);

/// The expression of exactly these characters.
std::string quoted_expression(std::string_view text);

}  // namespace trireme::data::detail
