// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/text.h>

#include <array>

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

}  // namespace trireme
