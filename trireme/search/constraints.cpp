// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/constraints.h>

#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/schedule/generators/generators.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace trireme::search {
namespace {

constexpr std::array kRecomputations = {Recomputation::kNone, Recomputation::kRepeated};

struct Wish {
  std::string name;
  std::string relation;  // `=`, `<=` or `>=`
  std::string value;
  std::string text;
};

Wish parse_wish(std::string_view text) {
  const std::size_t begin = text.find_first_of("<>=");
  if (begin == std::string_view::npos || begin == 0) {
    throw ConfigError(join_message("constraint '", printable(text), "' has no value"),
                      "write a name, = and a value, such as tensor=8, or pipe<=4");
  }
  const std::size_t end = text[begin] == '=' ? begin + 1 : begin + 2;
  Wish wish = {.name = std::string(text.substr(0, begin)),
               .relation = std::string(text.substr(begin, end - begin)),
               .value = std::string(text.substr(std::min(end, text.size()))),
               .text = std::string(text)};
  if (wish.relation != "=" && wish.relation != "<=" && wish.relation != ">=") {
    throw ConfigError(join_message("constraint '", printable(text), "' has the relation ",
                                   printable(wish.relation), ", expected =, <= or >="),
                      "write it as tensor=8, pipe<=4 or data>=2");
  }
  return wish;
}

[[noreturn]] void refuse_value(const Wish& wish, const std::string& expected) {
  throw ConfigError(join_message("constraint '", printable(wish.text), "': expected ", expected,
                                 " after ", wish.relation),
                    "correct the value, or leave the constraint out");
}

std::int64_t integer_of(const Wish& wish, std::int64_t least) {
  const auto number = parse_number<std::int64_t>(wish.value);
  if (!number || *number < least) {
    refuse_value(wish, join_message("a whole number of ", least, " or more"));
  }
  return *number;
}

[[noreturn]] void refuse_contradiction(const std::string& earlier, const Wish& wish) {
  throw ConfigError(join_message("the constraints ", earlier, " and ", printable(wish.text),
                                 " contradict each other"),
                    "leave one of them out");
}

// Sets a value that can only be equal to one.
template <typename Value>
void set(std::optional<Value>& field, const Value& value, const Wish& wish,
         const std::string& earlier) {
  if (wish.relation != "=") {
    throw ConfigError(join_message("constraint '", printable(wish.text), "': ", wish.name,
                                   " can only be set by ="),
                      join_message("write ", wish.name, "=", printable(wish.value)));
  }
  if (field && *field != value) refuse_contradiction(earlier, wish);
  field = value;
}

std::string to_text(const std::string& name, const AxisRange& range) {
  if (range.least == range.most) return join_message(name, "=", range.least);
  std::string text;
  if (range.least > 1) text = join_message(name, ">=", range.least);
  if (range.most < AxisRange().most) {
    text += join_message(text.empty() ? "" : ", ", name, "<=", range.most);
  }
  return text;
}

void add_axis(Constraints& constraints, const Wish& wish) {
  const std::int64_t size = integer_of(wish, 1);
  AxisRange& range = constraints.axes[wish.name];
  const AxisRange before = range;
  if (wish.relation != ">=") range.most = std::min(range.most, size);
  if (wish.relation != "<=") range.least = std::max(range.least, size);
  if (range.least > range.most) refuse_contradiction(to_text(wish.name, before), wish);
}

Recomputation recomputation_of(const Wish& wish) {
  for (const Recomputation each : kRecomputations) {
    if (wish.value == name_of(each)) return each;
  }
  refuse_value(wish, "none or repeated");
}

}  // namespace

AxisRange Constraints::axis(const std::string& name) const {
  const auto found = axes.find(name);
  return found == axes.end() ? AxisRange() : found->second;
}

void add_constraint(Constraints& constraints, std::string_view text) {
  static const std::vector<std::string> names = {
      "data",          "pipe", "context",  "expert", "tensor",    "zero_level",
      "micro_batches", "rows", "schedule", "chunks", "recompute", "memory_gib"};
  const Wish wish = parse_wish(text);
  const auto earlier = [&](const auto& value) { return join_message(wish.name, "=", value); };
  if (wish.name == "data" || wish.name == "pipe" || wish.name == "context" ||
      wish.name == "expert" || wish.name == "tensor") {
    add_axis(constraints, wish);
  } else if (wish.name == "zero_level") {
    constexpr std::int64_t kHighest = 3;
    const std::int64_t level = integer_of(wish, 0);
    if (level > kHighest) refuse_value(wish, "a level from 0 to 3");
    set(constraints.zero_level, static_cast<int>(level), wish,
        earlier(constraints.zero_level.value_or(0)));
  } else if (wish.name == "micro_batches") {
    set(constraints.micro_batches, integer_of(wish, 1), wish,
        earlier(constraints.micro_batches.value_or(0)));
  } else if (wish.name == "rows") {
    set(constraints.rows, integer_of(wish, 1), wish, earlier(constraints.rows.value_or(0)));
  } else if (wish.name == "chunks") {
    set(constraints.chunks, integer_of(wish, 1), wish, earlier(constraints.chunks.value_or(0)));
  } else if (wish.name == "schedule") {
    if (std::ranges::find(schedule::kKinds, wish.value) == schedule::kKinds.end()) {
      refuse_value(wish, "one of " + list_text(schedule::kKinds));
    }
    set(constraints.schedule, wish.value, wish, earlier(constraints.schedule.value_or("")));
  } else if (wish.name == "recompute") {
    set(constraints.recomputation, recomputation_of(wish), wish,
        earlier(name_of(constraints.recomputation.value_or(Recomputation::kNone))));
  } else if (wish.name == "memory_gib") {
    const auto limit = parse_number<double>(wish.value);
    if (!limit || !(*limit > 0) || !std::isfinite(*limit) || wish.relation == ">=") {
      refuse_value(wish, "GiB above 0, after = or <=");
    }
    const bool is_other = constraints.memory_gib > 0 && constraints.memory_gib != *limit;
    if (is_other && wish.relation == "=") {
      refuse_contradiction(earlier(constraints.memory_gib), wish);
    }
    constraints.memory_gib =
        constraints.memory_gib > 0 ? std::min(constraints.memory_gib, *limit) : *limit;
  } else {
    const std::string meant = config::did_you_mean(wish.name, names);
    throw ConfigError(join_message("constraint '", printable(text), "' has an unknown name"),
                      meant.empty() ? "use one of " + list_text(names) : meant);
  }
}

std::string to_string(const Constraints& constraints) {
  std::string text;
  const auto add = [&](const std::string& item) {
    if (!item.empty()) text += (text.empty() ? "" : ", ") + item;
  };
  for (const auto& [name, range] : constraints.axes) add(to_text(name, range));
  const auto add_value = [&](std::string_view name, const auto& value) {
    if (value) add(join_message(name, "=", *value));
  };
  add_value("zero_level", constraints.zero_level);
  add_value("micro_batches", constraints.micro_batches);
  add_value("rows", constraints.rows);
  add_value("schedule", constraints.schedule);
  add_value("chunks", constraints.chunks);
  if (constraints.recomputation) {
    add(join_message("recompute=", name_of(*constraints.recomputation)));
  }
  if (constraints.memory_gib > 0) add(join_message("memory_gib=", constraints.memory_gib));
  return text;
}

std::string_view name_of(Recomputation recomputation) {
  return recomputation == Recomputation::kNone ? "none" : "repeated";
}

}  // namespace trireme::search
