// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/command_line.h>

#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::apps {
namespace {

// Returns the full name of a command, such as `trireme checkpoint prune`.
std::string full_name(const CLI::App& command) {
  const CLI::App* const parent = command.get_parent();
  return (parent == nullptr ? "" : full_name(*parent) + " ") + command.get_name();
}

std::vector<std::string> commands_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (!subcommand->get_group().empty()) names.push_back(subcommand->get_name());  // not hidden
  }
  return names;
}

std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;  // Hidden.
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// Returns `did you mean 'prune'? `, or an empty string.
std::string meant(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string text = config::did_you_mean(word, candidates);
  return text.empty() ? text : text + " ";
}

[[noreturn]] void refuse_word(const CLI::App& command, const std::string& word) {
  const std::string name = full_name(command);
  const std::string help = "see " + name + " --help";
  const std::vector<std::string> commands = commands_of(command);
  if (!commands.empty()) {
    throw ConfigError(
        join_message(name, " has no command '", word, "'"),
        join_message(meant(word, commands), "the commands are ", list_text(commands), "; ", help));
  }
  throw ConfigError(join_message(name, " was given '", word, "', and expects no such word"), help);
}

}  // namespace

CLI::Validator one_of(std::vector<std::string> words) {
  std::string shown;
  for (const std::string& word : words) shown += (shown.empty() ? "{" : ",") + word;
  return {[words = std::move(words)](std::string& text) {
            if (std::ranges::find(words, text) != words.end()) return std::string();
            const std::string nearest = config::did_you_mean(text, words);
            return join_message("'", text, "', expected one of ", list_text(words),
                                nearest.empty() ? "" : "; ", nearest);
          },
          shown + "}"};
}

CLI::Validator integer_from(std::int64_t minimum, std::int64_t maximum) {
  const bool is_open = maximum == std::numeric_limits<std::int64_t>::max();
  const std::string expected = is_open ? join_message("an integer from ", minimum)
                                       : join_message("an integer from ", minimum, " to ", maximum);
  return {[=](std::string& text) {
            const auto number = parse_number<std::int64_t>(text);
            if (number && *number >= minimum && *number <= maximum) return std::string();
            return join_message("'", text, "', expected ", expected);
          },
          ""};
}

bool lexical_cast(const std::string& text, Real& real) {
  const auto number = parse_number<double>(text);
  real.value = number.value_or(0);
  return number.has_value();
}

CLI::Validator number_from_zero() {
  return {[](std::string& text) {
            const auto number = parse_number<double>(text);
            if (number && *number >= 0 && std::isfinite(*number)) return std::string();
            return join_message("'", text, "', expected a number, 0 or more");
          },
          ""};
}

void refuse_given(const CLI::App& command, const std::string& option, const std::string& because,
                  const std::string& instead) {
  if (command.count(option) == 0) return;
  throw ConfigError(join_message(option, " has no effect here: ", because), instead);
}

void check_first_word(const CLI::App& app, const std::vector<std::string>& words) {
  const std::vector<std::string> names = commands_of(app);
  const std::string commands =
      join_message("the commands are ", list_text(names), "; see trireme --help");
  if (words.empty()) throw ConfigError("no command", commands);
  const std::string& word = words.front();
  const auto is_named = [&](const CLI::App* command) { return command->get_name() == word; };
  if (word.starts_with('-') || !app.get_subcommands(is_named).empty()) return;
  throw ConfigError(join_message("no command is called '", word, "'"),
                    meant(word, names) + commands);
}

void refuse_option(const CLI::App& command, const std::string& word, const std::string& more) {
  const std::string name = full_name(command);
  const std::string option = word.substr(0, word.find('='));
  throw ConfigError(
      join_message(name, " has no option '", option, "'"),
      join_message(meant(option, options_of(command)), "see ", name, " --help", more));
}

// Returns the short and the first long name of an option, such as `-n (--nproc)`.
std::string names_of(const CLI::App& command, const std::string& long_name) {
  const CLI::Option* const option = command.get_option_no_throw(long_name);
  if (option == nullptr || option->get_snames().empty()) return long_name;
  return join_message("-", option->get_snames().front(), " (", long_name, ")");
}

// Rewords a parse error. CLI11 says "Could not convert: --nproc = two" even if the user typed `-n
// two`, "path: At Most 1 required but received 4" and "--dump: 1 required TEXT missing". Only
// numbers are converted.
std::string text_of(const CLI::App& command, const CLI::ParseError& wrong) {
  std::string text = wrong.what();
  constexpr std::string_view kConversion = "Could not convert: ";
  constexpr std::string_view kMost = ": At Most ";
  constexpr std::string_view kReceived = " required but received ";
  const std::size_t equals = text.find(" = ");
  if (text.starts_with(kConversion) && equals != std::string::npos) {
    const std::string name = text.substr(kConversion.size(), equals - kConversion.size());
    return join_message(names_of(command, name), " is '", text.substr(equals + 3),
                        "', expected a number");
  }
  const std::size_t most = text.find(kMost);
  const std::size_t received = text.find(kReceived);
  if (most != std::string::npos && received != std::string::npos && most < received) {
    const std::size_t number = most + kMost.size();
    return join_message(full_name(command), " takes at most ",
                        text.substr(number, received - number), " ", text.substr(0, most),
                        ", and was given ", text.substr(received + kReceived.size()));
  }
  const std::size_t required = text.find(": 1 required ");
  if (required != std::string::npos && text.ends_with(" missing")) {
    return join_message(text.substr(0, required), " was given no value");
  }
  return text;
}

void explain(const CLI::App& app, const CLI::ParseError& wrong) {
  const CLI::App* command = &app;
  for (auto below = app.get_subcommands(); !below.empty(); below = command->get_subcommands()) {
    command = below.back();
  }
  // A misspelt option or word often causes another error first, such as a missing value. So unknown
  // words are reported before the parser's own error. The remaining words of a prefix command
  // belong to the program to run.
  const bool is_own = !command->get_prefix_command();
  const std::vector<std::string> unknown =
      is_own ? command->remaining() : std::vector<std::string>();
  const auto option =
      std::ranges::find_if(unknown, [](const std::string& word) { return word.starts_with('-'); });
  if (option != unknown.end()) refuse_option(*command, *option);
  if (!unknown.empty()) refuse_word(*command, unknown.front());
  const std::vector<std::string> commands = commands_of(*command);
  if (!commands.empty()) {
    throw ConfigError(join_message(full_name(*command), " was given no command"),
                      join_message("the commands are ", list_text(commands), "; see ",
                                   full_name(*command), " --help"));
  }
  throw ConfigError(text_of(*command, wrong), join_message("see ", full_name(*command), " --help"));
}

}  // namespace trireme::apps
