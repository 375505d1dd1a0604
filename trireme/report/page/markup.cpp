// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/markup.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>

namespace trireme::report {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Replaces invalid UTF-8 by U+FFFD, which the JSON library does.
std::string valid_utf8(std::string_view text) {
  const nlohmann::json replaced = nlohmann::json::parse(json_text(text));
  return replaced.get<std::string>();
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char letter : valid_utf8(text)) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == '<') {
      out += "&lt;";
    } else if (letter == '>') {
      out += "&gt;";
    } else if (letter == '&') {
      out += "&amp;";
    } else if (letter == '"') {
      out += "&quot;";
    } else if (letter == '\'') {
      out += "&#39;";
    } else if ((code < 0x20 && letter != '\t' && letter != '\n') || code == 0x7F) {
      out += kReplacement;
    } else {
      out += letter;
    }
  }
  // These two code points are valid in UTF-8, but not in XML.
  for (const std::string_view none : {"\xEF\xBF\xBE", "\xEF\xBF\xBF"}) {
    for (std::size_t at = out.find(none); at != std::string::npos; at = out.find(none, at)) {
      out.replace(at, none.size(), kReplacement);
    }
  }
  return out;
}

std::string script_safe(std::string json) {
  for (std::size_t at = json.find('<'); at != std::string::npos; at = json.find('<', at)) {
    json.replace(at, 1, "\\u003c");
  }
  return json;
}

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t taken = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      group = group << 8U | (i < taken ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      text += i <= taken ? kDigits[group >> (18 - 6 * i) & 63U] : '=';
    }
  }
  return text;
}

std::string definition_table(const std::vector<std::pair<std::string, std::string>>& rows) {
  if (rows.empty()) return {};
  std::string table = "<div class=\"scroll\"><table class=\"pairs\">\n";
  for (const auto& [name, value] : rows) {
    const bool is_aligned = value.find("  ") != std::string::npos;  // with spaces, as in a plan
    table += "<tr><th scope=\"row\">" + escaped(name) + "</th><td" +
             (is_aligned ? " class=\"code\">" : ">") + escaped(value) + "</td></tr>\n";
  }
  return table + "</table></div>\n";
}

}  // namespace trireme::report
