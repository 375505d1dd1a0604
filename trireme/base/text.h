// SPDX-License-Identifier: Apache-2.0
// Numbers and streams of text that is read back, by this program or another one: names, files and
// messages between ranks. The global locale has no say in any of it: 12000 is never written as
// `12,000`, and `0.5` is read as a half where people write `0,5`.
#pragma once

#include <charconv>
#include <locale>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

namespace trireme {

/// An std::ostringstream in the classic locale.
class TextWriter : public std::ostringstream {
 public:
  TextWriter() { imbue(std::locale::classic()); }
};

/// An std::istringstream in the classic locale. Its operator>> does not read `inf` and `nan`, which
/// TextWriter writes: take the word, and parse_number.
class TextReader : public std::istringstream {
 public:
  explicit TextReader(const std::string& text) : std::istringstream(text) {
    imbue(std::locale::classic());
  }
};

/// Returns the fewest digits that read back as the same number: `1.4686084`, `1`, `1e-05`, `inf`.
std::string shortest_text(float value);
std::string shortest_text(double value);

/// Returns the number that all of `text` is; nothing where there is more, or it does not fit.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): the end is given
  const auto [rest, failure] = std::from_chars(text.data(), end, number);
  if (failure != std::errc{} || rest != end) return std::nullopt;
  return number;
}

/// Returns the text on one line that a terminal does not obey: question marks for control
/// characters, also for those of Unicode beyond ASCII (U+0080 to U+009F).
std::string printable(std::string_view text);

/// ASCII's letters alone change: with std::tolower the locale would decide.
constexpr char ascii_lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

/// Whether it is one of ASCII's digits or letters.
constexpr bool is_ascii_alphanumeric(char letter) {
  const char lower = ascii_lower(letter);
  return (lower >= 'a' && lower <= 'z') || (letter >= '0' && letter <= '9');
}

}  // namespace trireme
