// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/slurm_lists.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <optional>

namespace trireme::launch {
namespace {

constexpr std::size_t kMostEntries = 65536;

[[noreturn]] void refuse(std::string_view list, std::string_view variable,
                         std::string_view expected) {
  throw ConfigError(
      join_message("environment variable ", variable, " is '", list, "', expected ", expected),
      join_message("srun sets it; start the ranks by srun and leave ", variable, " alone"));
}

std::optional<int> read_number(std::string_view text) {
  const auto value = parse_number<int>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

// Splits a list at the commas outside brackets.
std::vector<std::string_view> split_outside_brackets(std::string_view list) {
  std::vector<std::string_view> parts;
  std::size_t start = 0;
  int depth = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '[') ++depth;
    if (list[i] == ']') --depth;
    if (list[i] == ',' && depth == 0) {
      parts.push_back(list.substr(start, i - start));
      start = i + 1;
    }
  }
  parts.push_back(list.substr(start));
  return parts;
}

// Returns the numbers of one bracket, such as `01-03,07`, with the width they are written with.
// Returns an empty list if it is malformed.
std::vector<std::string> expand_ranges(std::string_view ranges) {
  std::vector<std::string> numbers;
  for (const std::string_view range : split_outside_brackets(ranges)) {
    const auto dash = range.find('-');
    const std::string_view first_text = range.substr(0, dash);
    const auto first = read_number(first_text);
    const auto last = dash == std::string_view::npos ? first : read_number(range.substr(dash + 1));
    if (!first || !last || *last < *first) return {};
    if (static_cast<std::size_t>(*last - *first) >= kMostEntries - numbers.size()) return {};
    for (int number = *first; number <= *last; ++number) {
      std::string digits = std::to_string(number);
      if (digits.size() < first_text.size())
        digits.insert(0, first_text.size() - digits.size(), '0');
      numbers.push_back(std::move(digits));
    }
  }
  return numbers;
}

// Returns the hosts of one entry, such as `rack[1-2]node[01-04]`. Returns an empty list if it is
// malformed.
std::vector<std::string> expand_hosts(std::string_view entry) {
  std::vector<std::string> hosts{""};
  while (!entry.empty()) {
    const auto open = entry.find('[');
    for (std::string& host : hosts) host += entry.substr(0, open);
    if (open == std::string_view::npos) break;
    const auto close = entry.find(']', open);
    if (close == std::string_view::npos) return {};
    const auto numbers = expand_ranges(entry.substr(open + 1, close - open - 1));
    if (hosts.size() * numbers.size() > kMostEntries) return {};
    std::vector<std::string> longer;
    for (const std::string& host : hosts) {
      for (const std::string& number : numbers) longer.push_back(host + number);
    }
    hosts = std::move(longer);
    entry.remove_prefix(close + 1);
  }
  return hosts;
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view list, std::string_view variable) {
  std::vector<std::string> all;
  for (const std::string_view entry : split_outside_brackets(list)) {
    const auto hosts = expand_hosts(entry);
    const bool malformed = hosts.empty() || hosts.front().empty() ||
                           hosts.front().find_first_of("[] ") != std::string::npos;
    if (malformed || all.size() + hosts.size() > kMostEntries) {
      refuse(list, variable, "a list of hosts such as node[01-04,07],login");
    }
    all.insert(all.end(), hosts.begin(), hosts.end());
  }
  return all;
}

std::vector<int> expand_tasks_per_node(std::string_view list, std::string_view variable) {
  std::vector<int> tasks;
  for (std::string_view entry : split_outside_brackets(list)) {
    std::optional<int> nodes = 1;
    if (const auto open = entry.find("(x");
        open != std::string_view::npos && entry.ends_with(')')) {
      nodes = read_number(entry.substr(open + 2, entry.size() - open - 3));
      entry = entry.substr(0, open);
    }
    const auto count = read_number(entry);
    if (!count || !nodes || static_cast<std::size_t>(*nodes) > kMostEntries - tasks.size()) {
      refuse(list, variable, "tasks per node such as 4(x2),3");
    }
    tasks.insert(tasks.end(), static_cast<std::size_t>(*nodes), *count);
  }
  return tasks;
}

}  // namespace trireme::launch
