// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/text.h>

#include <apps/trireme/manual/completions.h>

#include <string_view>

namespace trireme::apps {
namespace {

std::string quoted(std::string_view text) {
  std::string result = "'";
  for (const char letter : text) {
    if (letter == '\'' || letter == '\\') result += '\\';
    result += letter;
  }
  return result + "'";
}

// Walks over the words before the cursor, and prints the command that they name. `program` is
// added to it where the words go on with the name of the program that the command starts.
std::string walk(const std::string& takes_value, const std::string& names,
                 const std::string& runs_program) {
  const auto one_case = [](const std::string& patterns, const std::string& action) {
    return patterns.empty() ? "" : "            case" + patterns + "\n" + action;
  };
  return "function __trireme_command\n"
         "    set -l command trireme\n"
         "    set -l skips no\n"
         "    for word in (commandline -opc)[2..]\n"
         "        if test $skips = yes\n"
         "            set skips no\n"
         "            continue\n"
         "        end\n"
         "        switch \"$command $word\"\n" +
         one_case(takes_value, "                set skips yes\n") +
         one_case(names, "                set command \"$command $word\"\n") +
         "            case '* --'\n" + "            case '* -*'\n" +
         one_case(runs_program,
                  "                echo \"$command program\"\n                return\n") +
         "        end\n    end\n    echo $command\nend\n\n"
         "function __trireme_is\n    test (__trireme_command) = \"$argv\"\nend\n\n";
}

std::string value_of(const Argument& argument) {
  const std::string words = list_text(argument.choices, " ");
  if (!words.empty()) return " -x -a " + quoted(words);
  return argument.is_number ? " -x" : " -r -F";
}

std::string names_of(const Argument& option) {
  std::string result;
  for (const std::string& name : option.names) {
    result += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  return result;
}

std::string lines_of(const Command& command) {
  const std::string begin = "complete -c trireme -n '__trireme_is " + command.path + "'";
  std::string result;
  for (const Command& below : command.commands) {
    result += begin + " -a " + below.name + " -d " + quoted(below.summary) + "\n";
  }
  for (const Argument& option : command.options) {
    result += begin + names_of(option) + (option.is_flag() ? "" : value_of(option)) + " -d " +
              quoted(option.description) + "\n";
  }
  for (const Argument& argument : command.positionals) {
    result += begin + (argument.choices.empty() ? " -F" : value_of(argument)) + "\n";
  }
  if (command.runs_program) {
    result += begin + " -F -a '(__fish_complete_command)'\n";
    result += "complete -c trireme -n '__trireme_is " + command.path + " program' -F\n";
  }
  return result;
}

}  // namespace

std::string fish_completion(const Command& program) {
  std::string takes_value;
  std::string names;
  std::string runs_program;
  std::string lines;
  for_each_command(program, [&](const Command& command) {
    if (&command != &program) names += " " + quoted(command.path);
    if (command.runs_program) runs_program += " " + quoted(command.path + " *");
    for (const Argument& option : command.options) {
      if (option.is_flag()) continue;
      for (const std::string& name : option.names) {
        takes_value += " " + quoted(command.path + " " + name);
      }
    }
    lines += lines_of(command);
  });
  return "# Completion of trireme for fish, made from the options of the program.\n\n" +
         walk(takes_value, names, runs_program) + "complete -c trireme -f\n" + lines;
}

}  // namespace trireme::apps
