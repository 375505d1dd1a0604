// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/operator_layouts.h>

#include <trireme/base/text.h>

#include <cstddef>
#include <cstdint>
#include <regex>

namespace trireme {
namespace {

// Parses `{{4, 1}, {}, {1, 1}}`.
std::optional<OperatorStrategy> parse_parts(const std::string& text) {
  static const std::regex whole(R"(\{\s*(\{[\d,\s]*\}(?:\s*,\s*\{[\d,\s]*\})*)\s*\})");
  static const std::regex tuple(R"(\{\s*((?:\d{1,9}(?:\s*,\s*\d{1,9})*)?)\s*\}\s*,?\s*)");
  static const std::regex number(R"(\d+)");
  std::smatch all;
  if (!std::regex_match(text, all, whole)) return std::nullopt;
  OperatorStrategy parts;
  std::string rest = all[1].str();
  while (!rest.empty()) {
    std::smatch found;
    if (!std::regex_search(rest, found, tuple, std::regex_constants::match_continuous)) {
      return std::nullopt;
    }
    std::vector<std::int64_t>& dims = parts.emplace_back();
    const std::string numbers = found[1].str();
    for (std::sregex_iterator each(numbers.begin(), numbers.end(), number), end; each != end;
         ++each) {
      dims.push_back(parse_number<std::int64_t>(each->str()).value());
    }
    rest = found.suffix().str();
  }
  return parts;
}

}  // namespace

bool names_operators(const OperatorLayout& layout) {
  return layout.pattern.find("::") != std::string::npos;
}

std::string to_string(const OperatorLayout& layout) {
  TextWriter text;
  text << layout.pattern;
  if (!layout.parts.empty()) text << " takes " << to_string(layout.parts);
  if (!layout.parts.empty() && !layout.result.empty()) text << " and";
  const char* separator = " gives ";
  for (const auto& [axis, placement] : layout.result) {
    text << separator << placement.to_string() << " on " << axis;
    separator = " and ";
  }
  return text.str();
}

std::optional<OperatorLayout> parse_operator_layout(std::string_view text) {
  constexpr std::size_t kLongest = 1024;  // std::regex uses stack memory for each character
  if (text.size() > kLongest) return std::nullopt;
  static const std::regex whole(
      R"(\s*(\S+)\s+(?:takes\s+(\{.*\})\s*)?(?:(?:and\s+)?gives\s+(.*?))?\s*)");
  const std::string line(text);
  std::smatch found;
  if (!std::regex_match(line, found, whole)) return std::nullopt;
  if (!found[2].matched && !found[3].matched) return std::nullopt;
  OperatorLayout layout = {.pattern = found[1].str()};
  if (found[2].matched) {
    const auto parts = parse_parts(found[2].str());
    if (!parts) return std::nullopt;
    layout.parts = *parts;
  }
  if (found[3].matched) {
    const auto result = parse_layout("result -> " + found[3].str());
    if (!result || result->placements.empty() || result->is_optional) return std::nullopt;
    layout.result = result->placements;
  }
  return layout;
}

}  // namespace trireme
