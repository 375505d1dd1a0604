// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/manual/command.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <string_view>

namespace trireme::apps {
namespace {

// The words of a check that one_of made: it describes itself as `{a,b}`.
std::vector<std::string> choices_in(const std::string& type) {
  const std::size_t begin = type.find(":{");
  if (begin == std::string::npos) return {};
  const std::size_t end = type.find('}', begin);
  return CLI::detail::split(type.substr(begin + 2, end - begin - 2), ',');
}

std::string on_one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

Argument describe_argument(const CLI::Option& option) {
  Argument argument;
  for (const std::string& name : option.get_snames()) argument.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) argument.names.push_back("--" + name);
  if (argument.names.empty()) argument.names.push_back(option.get_name(/*positional=*/true));
  argument.description = on_one_line(option.get_description());
  if (option.get_items_expected_max() == 0) return argument;

  const std::string type = option.get_type_name();
  const std::string base = type.substr(0, type.find(':'));
  argument.choices = choices_in(type);
  argument.value = option.get_option_text().empty() ? base : option.get_option_text();
  if (argument.value.empty()) argument.value = "VALUE";
  if (!argument.choices.empty()) argument.value = CLI::detail::join(argument.choices, "|");
  argument.default_value = option.get_default_str();
  argument.is_number = base == "INT" || base == "UINT" || base == "FLOAT";
  argument.is_required = option.get_required();
  argument.is_repeated = option.get_items_expected_max() > 1;
  return argument;
}

Command describe_below(const CLI::App& app, const std::string& parent) {
  Command command;
  command.name = app.get_name();
  command.path = parent + app.get_name();
  const std::string description = app.get_description();
  const std::size_t line_end = std::min(description.find('\n'), description.size());
  command.summary = description.substr(0, line_end);
  while (command.summary.ends_with('.') || command.summary.ends_with(':')) {
    command.summary.pop_back();
  }
  if (line_end < description.size()) command.details = description.substr(line_end + 1);
  command.footer = app.get_footer();
  command.runs_program = app.get_prefix_command();
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    auto& list = option->nonpositional() ? command.options : command.positionals;
    list.push_back(describe_argument(*option));
  }
  for (const CLI::App* below : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (below->get_group().empty()) continue;
    command.commands.push_back(describe_below(*below, command.path + " "));
  }
  return command;
}

}  // namespace

Command describe_command(const CLI::App& app) { return describe_below(app, ""); }

}  // namespace trireme::apps
