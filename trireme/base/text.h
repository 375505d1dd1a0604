// SPDX-License-Identifier: Apache-2.0
// Numbers and streams for text that a program reads back: names, files and messages between ranks.
// All functions use the classic locale. 12000 is never written as `12,000`, and `0.5` is read as a
// half even where people write `0,5`.
#pragma once

#include <charconv>
#include <cstdint>
#include <functional>
#include <locale>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

namespace trireme {

/// A std::ostringstream with the classic locale.
class TextWriter : public std::ostringstream {
 public:
  TextWriter() { imbue(std::locale::classic()); }
};

/// A std::istringstream with the classic locale. Its operator>> does not read `inf` and `nan`,
/// which TextWriter writes. To read such numbers, read a word and call parse_number().
class TextReader : public std::istringstream {
 public:
  /// Creates a stream that reads `text`.
  explicit TextReader(const std::string& text) : std::istringstream(text) {
    imbue(std::locale::classic());
  }
};

/// Returns the shortest text that reads back as the same number: `1.4686084`, `1`, `1e-05`, `inf`.
std::string shortest_text(float value);
/// Returns the same for a double.
std::string shortest_text(double value);

/// Parses the whole of `text` as a number. Returns std::nullopt if there are other characters or
/// the number does not fit the type.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): the end is given
  const auto [rest, failure] = std::from_chars(text.data(), end, number);
  if (failure != std::errc{} || rest != end) return std::nullopt;
  return number;
}

/// Returns the elements of a range as text, with a separator between them: `1, 2, 3`.
/// @param projection gives what is written of an element, such as a pointer to a member.
template <typename Range, typename Projection = std::identity>
std::string list_text(const Range& range, std::string_view separator = ", ",
                      const Projection& projection = {}) {
  TextWriter text;
  bool is_first = true;
  for (const auto& element : range) {
    if (!is_first) text << separator;
    text << std::invoke(projection, element);
    is_first = false;
  }
  return text.str();
}

/// Returns the text as one line that cannot control a terminal. Control characters become question
/// marks, including those of Unicode beyond ASCII (U+0080 to U+009F).
std::string printable(std::string_view text);

/// Returns the lower-case letter for an ASCII capital, and any other character unchanged. Unlike
/// std::tolower it does not depend on the locale.
constexpr char ascii_lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

/// Returns true for an ASCII digit or letter.
constexpr bool is_ascii_alphanumeric(char letter) {
  const char lower = ascii_lower(letter);
  return (lower >= 'a' && lower <= 'z') || (letter >= '0' && letter <= '9');
}

/// Returns the text without spaces at its beginning and end.
constexpr std::string_view without_spaces(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

/// Returns a word as a shell reads it: in quotation marks where it has characters with a meaning.
std::string shell_quoted(std::string_view word);

/// Returns a time in seconds since 1970 as text, such as `2026-01-31 09:30:00 UTC`.
std::string utc_text(std::int64_t seconds);

}  // namespace trireme
