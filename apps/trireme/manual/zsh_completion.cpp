// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/text.h>

#include <apps/trireme/manual/completions.h>

#include <algorithm>
#include <string_view>

namespace trireme::apps {
namespace {

std::string function_of(const Command& command) {
  std::string name = "_" + command.path;
  std::ranges::replace_if(name, [](char letter) { return letter == ' ' || letter == '-'; }, '_');
  return name;
}

// Text inside of '…' with a backslash before `letters`, which _arguments and _describe would read.
std::string quoted(std::string_view text, std::string_view letters) {
  std::string result;
  for (const char letter : text) {
    if (letter == '\'') {
      result += "'\\''";
      continue;
    }
    if (letters.find(letter) != std::string_view::npos) result += '\\';
    result += letter;
  }
  return result;
}

// What stands behind the last colon: how a value is completed. A blank shows the name alone.
std::string action(const Argument& argument) {
  if (argument.choices.empty()) return argument.is_number ? " " : "_files";
  return "(" + list_text(argument.choices, " ") + ")";
}

std::string specification(const Argument& option, const std::string& name) {
  std::string result = option.is_repeated ? "*" : "(" + list_text(option.names, " ") + ")";
  result += name;
  if (!option.is_flag()) result += name.starts_with("--") ? "=" : "+";
  result += "[" + quoted(option.description, "[]\\") + "]";
  if (!option.is_flag()) result += ":" + quoted(option.value, ":\\") + ":" + action(option);
  return "    '" + result + "' \\\n";
}

std::string specifications(const Command& command) {
  std::string result;
  for (const Argument& option : command.options) {
    for (const std::string& name : option.names) result += specification(option, name);
  }
  int position = 0;
  for (const Argument& argument : command.positionals) {
    const std::string place = argument.is_repeated ? "*" : std::to_string(++position);
    result += "    '" + place + ":" + quoted(argument.names.front(), ":\\") + ":" +
              action(argument) + "' \\\n";
  }
  return result;
}

std::string leaf(const Command& command) {
  std::string result =
      function_of(command) + "() {\n  _arguments -s -S : \\\n" + specifications(command);
  if (command.runs_program) {
    result +=
        "    '(-)1:program:{ _command_names -e; _files }' \\\n    '*::arguments:_normal' \\\n";
  }
  result.erase(result.size() - 3);
  return result + "\n}\n\n";
}

std::string branch(const Command& command) {
  std::string names;
  std::string cases;
  for (const Command& below : command.commands) {
    names += "        '" + quoted(below.name, ":\\") + ":" + quoted(below.summary, "\\") + "'\n";
    cases += "        " + below.name + ") " + function_of(below) + " ;;\n";
  }
  return function_of(command) +
         "() {\n  local context state state_descr line\n  typeset -A opt_args\n"
         "  _arguments -C -s -S : \\\n" +
         specifications(command) +
         "    '1: :->command' \\\n    '*:: :->arguments' && return\n"
         "  case $state in\n    command)\n      local -a commands=(\n" +
         names + "      )\n      _describe -t commands '" + command.path +
         " command' commands\n      ;;\n    arguments)\n      case $line[1] in\n" + cases +
         "      esac\n      ;;\n  esac\n}\n\n";
}

}  // namespace

std::string zsh_completion(const Command& program) {
  std::string result =
      "#compdef trireme\n# Completion of trireme for zsh, made from the options of the "
      "program.\n\n";
  for_each_command(program, [&](const Command& command) {
    result += command.commands.empty() ? leaf(command) : branch(command);
  });
  return result + function_of(program) + " \"$@\"\n";
}

}  // namespace trireme::apps
