// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/config/configuration.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/config/suggestion.h>
#include <trireme/base/config/toml.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <ranges>
#include <span>
#include <utility>

namespace trireme::config {
namespace {

constexpr std::size_t kCommentColumn = 40;
constexpr std::size_t kHelpColumns = 96;

// TOML comments must not contain control characters. Other characters outside ASCII are replaced
// too, so that the comment is readable everywhere.
std::string comment_of(const Origin& origin) {
  std::string text =
      origin.kind == Origin::Kind::kCommandLine ? std::string("command line") : to_string(origin);
  for (char& letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (code < 0x20 || code >= 0x7F) letter = '?';
  }
  return text;
}

// Breaks `text` into indented lines of at most kHelpColumns.
std::string wrapped(const std::string& text, const std::string& indent) {
  std::string lines;
  std::string line = indent;
  TextReader words(text);
  for (std::string word; words >> word;) {
    if (line.size() > indent.size() && line.size() + 1 + word.size() > kHelpColumns) {
      lines += line + "\n";
      line = indent;
    }
    line += (line.size() > indent.size() ? " " : "") + word;
  }
  return lines + line + "\n";
}

struct Arguments {
  std::vector<std::string> files;
  std::vector<std::string> assignments;
  bool wants_help = false;
};

Arguments sort_arguments(const std::vector<std::string>& words) {
  Arguments sorted;
  for (std::size_t index = 0; index < words.size(); ++index) {
    const std::string& word = words[index];
    if (word == "--help" || word == "-h") {
      sorted.wants_help = true;
      continue;
    }
    const std::string name = word.substr(0, word.find('='));
    if (name != "--config" && name != "--set") {
      const std::string suggestion = did_you_mean(name, {"--config", "--set", "--help"});
      throw ConfigError(
          join_message("unknown argument '", word, "'"),
          suggestion.empty() ? "expected --config FILE, --set KEY=VALUE or --help" : suggestion);
    }
    std::string value;
    if (word.size() > name.size()) {
      value = word.substr(name.size() + 1);
    } else if (++index < words.size()) {
      value = words[index];
    } else {
      throw ConfigError(join_message(name, " is the last argument, expected ",
                                     name == "--set" ? "KEY=VALUE" : "a file", " after it"),
                        "see --help");
    }
    (name == "--set" ? sorted.assignments : sorted.files).push_back(value);
  }
  return sorted;
}

}  // namespace

void Configuration::begin(const Fields& defaults) {
  // Values are compared as TOML text, which works for every type.
  for (std::size_t index = 0; index < fields_.all().size(); ++index) {
    const std::string text = toml_text(fields_.all()[index]->write());
    const bool is_default = toml_text(defaults.all()[index]->write()) == text;
    known_.push_back(
        {.origin = {.kind = is_default ? Origin::Kind::kDefault : Origin::Kind::kProgram},
         .text = text});
  }
}

// A value that differs from the text noted when it was read was changed by the program since.
Origin Configuration::origin_at(std::size_t field) const {
  if (toml_text(fields_.all()[field]->write()) != known_[field].text) {
    return {.kind = Origin::Kind::kProgram};
  }
  return known_[field].origin;
}

void Configuration::read(const Value& value, const std::string* key) {
  Problems problems;
  std::vector<std::pair<std::size_t, Origin>> read;
  const auto note = [&](std::size_t field, const Value& taken) {
    read.emplace_back(field, taken.origin);
  };
  if (key == nullptr) {
    fields_.read(value, "", problems, note);
  } else {
    fields_.read_key(*key, value, problems, note);
  }
  // Nothing has been stored so far, so that a source with problems leaves all settings as they
  // were.
  throw_if_any(std::move(problems));
  for (const auto& [field, origin] : read) {
    fields_.all()[field]->commit();
    known_[field] = {.origin = origin, .text = toml_text(fields_.all()[field]->write())};
  }
}

void Configuration::read_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream || std::filesystem::is_directory(file)) {
    throw ConfigError(join_message("cannot read the configuration file ", file.string()),
                      "check that it is there and may be read");
  }
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  read_text(text, file.string());
}

void Configuration::read_text(std::string_view text, const std::string& name) {
  read(parse_toml(text, name), nullptr);
}

void Configuration::set(std::string_view assignment) {
  const std::size_t mark = assignment.find('=');
  const Origin origin = {.kind = Origin::Kind::kCommandLine,
                         .argument = "--set " + std::string(assignment)};
  if (mark == std::string_view::npos || mark == 0) {
    throw ConfigError(join_message(to_string(origin), ": expected KEY=VALUE"),
                      "write it without spaces, as in --set plan.zero_level=2");
  }
  const std::string key(assignment.substr(0, mark));
  read(typed_value(std::string(assignment.substr(mark + 1)), origin), &key);
}

bool Configuration::read_command_line(int count, const char* const* arguments) {
  // The first argument is the name of the program.
  const auto words = std::span(arguments, static_cast<std::size_t>(count)) | std::views::drop(1);
  return read_command_line(std::vector<std::string>(words.begin(), words.end()), std::cout);
}

bool Configuration::read_command_line(const std::vector<std::string>& arguments,
                                      std::ostream& output) {
  const Arguments sorted = sort_arguments(arguments);
  if (sorted.wants_help) {
    output << "--config FILE      read settings from a TOML file\n"
              "--set KEY=VALUE    set one of them; stronger than files\n"
              "--help             print this\n\n"
           << help() << std::flush;
    return false;
  }
  for (const std::string& file : sorted.files) read_file(file);
  for (const std::string& assignment : sorted.assignments) set(assignment);
  check();
  return true;
}

void Configuration::check() const {
  Problems problems;
  for (std::size_t index = 0; index < fields_.all().size(); ++index) {
    fields_.all()[index]->check(origin_at(index), problems);
  }
  throw_if_any(std::move(problems));
}

std::string Configuration::line_of(std::size_t field) const {
  const AnyField& setting = *fields_.all()[field];
  const std::string text = toml_text(setting.write());
  // Reading the text back proves that the saved file can be read again.
  const auto back = parse_toml_value(text);
  if (!back || toml_text(*back) != text) {
    throw ConfigError(join_message(setting.key(), " is ", text, ", which TOML cannot hold"),
                      "texts and paths must be UTF-8");
  }
  std::string line = last_part(setting.key()) + " = " + text;
  if (line.size() < kCommentColumn) line.resize(kCommentColumn, ' ');
  return line + "  # " + comment_of(origin_at(field)) + "\n";
}

std::string Configuration::to_toml() const {
  check();
  std::string text =
      "# The settings in effect, and where each came from. Reads back as a configuration file.\n";
  // In TOML, the values of a table come before its sub-tables.
  const auto add_table = [&](const std::string& table) {
    std::string lines;
    for (std::size_t index = 0; index < fields_.all().size(); ++index) {
      if (table_of(fields_.all()[index]->key()) == table) lines += line_of(index);
    }
    if (!lines.empty() && !table.empty()) text += "\n[" + table + "]\n";
    text += lines;
  };
  add_table("");
  for (const auto& section : fields_.sections()) add_table(section.key);
  return text;
}

void Configuration::save(const std::filesystem::path& file) const { write_file(file, to_toml()); }

std::map<std::string, std::string> Configuration::to_texts() const {
  std::map<std::string, std::string> texts;
  for (const auto& field : fields_.all()) texts[field->key()] = toml_text(field->write());
  return texts;
}

std::string Configuration::help() const {
  std::string text;
  std::string table;
  for (const auto& field : fields_.all()) {
    if (const std::string around = table_of(field->key()); around != table) {
      table = around;
      for (const auto& section : fields_.sections()) {
        if (section.key == table)
          text += "\n" + wrapped("[" + table + "] " + section.description, "");
      }
    }
    text += field->key() + " = " + toml_text(field->write()) + "\n";
    text += wrapped(field->description() + " (" + field->expected() + ")", "    ");
  }
  return text;
}

Origin Configuration::origin_of(std::string_view key) const {
  for (std::size_t index = 0; index < fields_.all().size(); ++index) {
    if (fields_.all()[index]->key() == key) return origin_at(index);
  }
  throw UsageError(join_message("there is no setting '", key, "'"), did_you_mean(key, keys()));
}

std::vector<std::string> Configuration::keys() const {
  std::vector<std::string> all;
  all.reserve(fields_.all().size());
  for (const auto& field : fields_.all()) all.push_back(field->key());
  return all;
}

}  // namespace trireme::config
