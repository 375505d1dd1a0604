// SPDX-License-Identifier: Apache-2.0
// The commands of the program as plain data, taken from the definition of its parser. Man pages and
// shell completions are made from this data, so they always agree with what the program accepts.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace trireme::apps {

/// An option or a positional argument.
struct Argument {
  std::vector<std::string> names;    ///< the names as typed, such as `-n` and `--nproc`, or the
                                     ///< name of a positional argument
  std::string description;           ///< one sentence or more, without line breaks
  std::string value;                 ///< name of its value, such as `FILE`; empty for a flag
  std::string default_value;         ///< as text; may be empty
  std::vector<std::string> choices;  ///< all accepted values; empty if they are not listed
  bool is_number = false;
  bool is_required = false;
  bool is_repeated = false;  ///< takes several values, or may be given several times

  bool is_flag() const { return value.empty(); }
};

/// A command and its subcommands, without hidden options and commands.
struct Command {
  std::string name;     ///< the last word of `path`
  std::string path;     ///< all words, such as `trireme checkpoint verify`
  std::string summary;  ///< the first line of its description, without punctuation at its end
  std::string details;  ///< the other lines of its description
  std::string footer;
  std::vector<Argument> options;
  std::vector<Argument> positionals;
  std::vector<Command> commands;
  bool runs_program = false;  ///< true if the other words are a program and its arguments
};

/// Returns the command that a parser defines.
Command describe_command(const CLI::App& app);

/// Calls `function` for a command and all its subcommands, each before its own subcommands.
template <typename Function>
void for_each_command(const Command& command, const Function& function) {
  function(command);
  for (const Command& below : command.commands) for_each_command(below, function);
}

}  // namespace trireme::apps
