// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/pictures/svg_text.h>

#include <trireme/base/error.h>

#include <array>
#include <charconv>
#include <cmath>

namespace trireme::schedule {

std::string svg_number(double value) {
  std::array<char, 64> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, 2).ptr;
  std::string result(text.data(), end);
  while (result.ends_with('0')) result.pop_back();
  if (result.ends_with('.')) result.pop_back();
  return result;
}

std::string svg_escaped(std::string_view text) {
  std::string result;
  for (const char character : text) {
    if (character == '<') {
      result += "&lt;";
    } else if (character == '>') {
      result += "&gt;";
    } else if (character == '&') {
      result += "&amp;";
    } else {
      result += static_cast<unsigned char>(character) < ' ' ? '?' : character;
    }
  }
  return result;
}

std::string svg_text(std::string_view style, double x, double y, std::string_view text) {
  return join_message("<text class=\"", style, "\" x=\"", svg_number(x), "\" y=\"", svg_number(y),
                      "\">", svg_escaped(text), "</text>\n");
}

std::string svg_document(double width, double height, std::string_view title,
                         std::string_view style, std::string_view body) {
  return join_message("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", svg_number(width),
                      "\" height=\"", svg_number(height), "\" viewBox=\"0 0 ", svg_number(width),
                      " ", svg_number(height), "\" role=\"img\">\n<title>", svg_escaped(title),
                      "</title>\n", style,
                      "<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n", body, "</svg>\n");
}

double tick_distance(double length, double most_ticks) {
  const double least = length / most_ticks;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

}  // namespace trireme::schedule
