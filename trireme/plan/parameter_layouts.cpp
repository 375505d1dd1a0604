// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/parameter_layouts.h>

#include <trireme/base/text.h>

#include <fnmatch.h>

#include <algorithm>
#include <regex>

namespace trireme {

const ParameterLayout* find_layout(const ParameterLayouts& layouts, std::string_view name) {
  const std::string text(name);
  const auto found = std::ranges::find_if(layouts, [&](const ParameterLayout& layout) {
    // Without FNM_PATHNAME or FNM_PERIOD, `*` also matches dots, which separate modules.
    return ::fnmatch(layout.pattern.c_str(), text.c_str(), FNM_NOESCAPE) == 0;
  });
  return found == layouts.end() ? nullptr : &*found;
}

ParameterLayouts column_parallel(const std::string& modules, const std::string& axis) {
  return {{modules + ".weight", {{axis, Shard{0}}}},
          {.pattern = modules + ".bias", .placements = {{axis, Shard{0}}}, .is_optional = true}};
}

ParameterLayouts row_parallel(const std::string& modules, const std::string& axis) {
  return {{modules + ".weight", {{axis, Shard{1}}}}};
}

ParameterLayouts vocabulary_parallel(const std::string& modules, const std::string& axis) {
  return column_parallel(modules, axis);
}

ParameterLayouts keep_whole(const std::string& modules) {
  return {{.pattern = modules + ".*", .placements = {}, .is_plain = true}};
}

ParameterLayouts join(const std::vector<ParameterLayouts>& lists) {
  ParameterLayouts all;
  for (const ParameterLayouts& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::string to_string(const ParameterLayout& layout) {
  TextWriter text;
  text << layout.pattern << " -> ";
  const char* separator = "";
  for (const auto& [axis, placement] : layout.placements) {
    text << separator << placement.to_string() << " on " << axis;
    separator = " and ";
  }
  if (layout.placements.empty()) text << (layout.is_plain ? "plain" : "Replicate");
  if (layout.is_optional) text << " if there";
  return text.str();
}

std::string to_string(const ParameterLayouts& layouts) {
  std::string text;
  for (const ParameterLayout& layout : layouts) text += to_string(layout) + "\n";
  return text;
}

std::optional<ParameterLayout> parse_layout(std::string_view text) {
  constexpr std::size_t kLongest = 1024;  // std::regex uses stack memory for each character
  if (text.size() > kLongest) return std::nullopt;
  // One layout per line: pattern, placements, and optionally the words "if there".
  static const std::regex whole(R"(\s*(\S+)\s*->\s*(.*?)(\s+if\s+there)?\s*)");
  static const std::regex one(
      R"((?:Replicate|Shard\(\s*(\d{1,2})\s*(?:,\s*level\s+(\d{1,2})\s*)?\))\s+on\s+(\S+)(?:\s+and\s+|$))");
  const std::string line(text);
  std::smatch parts;
  if (!std::regex_match(line, parts, whole)) return std::nullopt;
  ParameterLayout layout = {
      .pattern = parts[1].str(), .placements = {}, .is_optional = parts[3].matched};
  std::string rest = parts[2].str();
  layout.is_plain = rest == "plain";
  if (rest == "Replicate" || layout.is_plain) return layout;
  do {
    std::smatch found;
    // Each match must begin where the previous one ended; anything else is not a layout.
    if (!std::regex_search(rest, found, one, std::regex_constants::match_continuous)) {
      return std::nullopt;
    }
    Placement placement = Replicate{};
    if (found[1].matched) {
      placement = Shard{.dim = parse_number<int>(found[1].str()).value(),
                        .level = found[2].matched ? parse_number<int>(found[2].str()).value() : -1};
    }
    layout.placements.emplace_back(found[3].str(), placement);
    rest = found.suffix().str();
  } while (!rest.empty());
  return layout;
}

}  // namespace trireme
