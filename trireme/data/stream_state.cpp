// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/stream_state.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <optional>

namespace trireme::data {
namespace {

constexpr std::string_view kTitle = "trireme stream state 1";
constexpr std::string_view kSeparator = " = ";

// Escapes line breaks, because column names may contain them but each setting takes one line.
std::string escaped(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else {
      line += c == '\\' ? "\\\\" : std::string(1, c);
    }
  }
  return line;
}

std::string unescaped(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      text += line[i];
    } else {
      text += line[++i] == 'n' ? '\n' : line[i];
    }
  }
  return text;
}

[[noreturn]] void fail(std::size_t line, std::string_view found, std::string_view expected) {
  throw DataError(
      join_message("state of a stream, line ", line, ": '", found, "', expected ", expected),
      "give the text that StreamState::to_text() wrote, all of it");
}

// Removes the next line from the text; returns nullopt if there is no complete line.
std::optional<std::string_view> take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

std::int64_t number_of(const std::pair<std::string, std::string>& entry, std::string_view name,
                       std::size_t line) {
  const auto number = parse_number<std::int64_t>(entry.second);
  if (entry.first != name || !number || *number < 0) {
    fail(line, entry.first + std::string(kSeparator) + entry.second,
         join_message("'", name, kSeparator, "<number>'"));
  }
  return *number;
}

}  // namespace

std::string StreamState::to_text() const {
  std::string text = join_message(kTitle, "\nepoch", kSeparator, epoch, "\nnext batch", kSeparator,
                                  next_batch, "\n");
  for (const auto& [name, value] : settings) {
    text += join_message(name, kSeparator, escaped(value), "\n");
  }
  return text + "end\n";
}

StreamState StreamState::from_text(std::string_view text) {
  std::size_t number = 1;
  const auto title = take_line(text);
  if (title != kTitle) {
    fail(number, title.value_or(text.substr(0, 40)), join_message("'", kTitle, "'"));
  }
  std::vector<std::pair<std::string, std::string>> entries;
  for (;;) {
    ++number;
    const auto line = take_line(text);
    if (line == "end") break;
    const std::size_t place = line ? line->find(kSeparator) : std::string_view::npos;
    if (place == std::string_view::npos) {
      fail(number, line.value_or("the end of the text"), "'<name> = <value>' or 'end'");
    }
    entries.emplace_back(line->substr(0, place),
                         unescaped(line->substr(place + kSeparator.size())));
  }
  // The first two entries are epoch and batch; all others are settings.
  if (entries.size() < 2) fail(number, "end", "'epoch = <number>' and 'next batch = <number>'");
  StreamState state;
  state.epoch = number_of(entries[0], "epoch", 2);
  state.next_batch = number_of(entries[1], "next batch", 3);
  state.settings.assign(entries.begin() + 2, entries.end());
  return state;
}

}  // namespace trireme::data
