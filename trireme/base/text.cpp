// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/text.h>

#include <array>
#include <ctime>

namespace trireme {
namespace {

template <typename Number>
std::string fewest_digits(Number value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

}  // namespace

std::string shortest_text(float value) { return fewest_digits(value); }
std::string shortest_text(double value) { return fewest_digits(value); }

std::string printable(std::string_view text) {
  std::string line;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool is_of_two_bytes = byte == 0xC2 && next >= 0x80 && next < 0xA0;
    if (is_of_two_bytes) ++i;
    line += byte < ' ' || byte == 0x7F || is_of_two_bytes ? '?' : text[i];
  }
  return line;
}

std::string shell_quoted(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(word);
  }
  std::string quoted = "'";
  for (const char letter : word) {
    quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  }
  return quoted + "'";
}

std::string utc_text(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  const std::size_t length =
      std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return {text.data(), length};
}

}  // namespace trireme
