// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/manual/man_pages.h>

#include <trireme/base/text.h>

#include <algorithm>
#include <string_view>

namespace trireme::apps {
namespace {

constexpr std::size_t kLongestTitle = 12;

// Text as roff shows it: hyphens that can be copied, and nothing that it takes for a request.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    if (letter == '\\') {
      result += "\\e";
    } else if (letter == '-') {
      result += "\\-";
    } else if (letter == '\'') {
      result += "\\(aq";
    } else if (letter == '`') {
      result += "\\(ga";
    } else {
      result += letter;
    }
  }
  if (result.starts_with('.')) result.insert(0, "\\&");
  return result;
}

std::string bold(std::string_view text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + escaped(text) + "\\fR"; }

std::string in_capitals(std::string text) {
  std::ranges::transform(text, text.begin(), [](char letter) {
    return letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
  });
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// Text of a description or footer. Indented lines are commands to type; a blank line ends a
// paragraph, and one that begins with `Title:` begins a section of that name.
std::string prose(const std::string& text) {
  std::string result;
  bool is_paragraph_start = true;
  bool is_example = false;
  bool is_section_start = false;
  for (std::string line : lines_of(text)) {
    const bool is_indented = line.starts_with("  ");
    if (is_example && !is_indented) {
      result += ".fi\n.in\n";
      is_paragraph_start = true;
    }
    if (line.empty()) {
      is_paragraph_start = true;
    } else if (is_indented) {
      if (!is_example) result += is_section_start ? ".in +4n\n.nf\n" : ".PP\n.in +4n\n.nf\n";
      result += escaped(line.substr(2)) + "\n";
      is_section_start = false;
    } else {
      const std::size_t colon = line.find(':');
      if (is_paragraph_start && colon < kLongestTitle) {
        result += ".SH " + in_capitals(escaped(line.substr(0, colon))) + "\n";
        line.erase(0, std::min(colon + 2, line.size()));
        is_section_start = line.empty();
      } else if (is_paragraph_start) {
        result += ".PP\n";
      }
      if (!line.empty()) result += escaped(line) + "\n";
      is_paragraph_start = false;
    }
    is_example = is_indented;
  }
  if (is_example) result += ".fi\n.in\n";
  return result;
}

std::string arguments(const std::vector<Argument>& list) {
  std::string result;
  for (const Argument& argument : list) {
    const bool is_option = argument.names.front().starts_with('-');
    result += ".TP\n" + list_text(argument.names, ", ", is_option ? bold : italic);
    if (is_option && !argument.is_flag()) result += " " + italic(argument.value);
    result +=
        "\n" + escaped(argument.description.empty() ? "No description" : argument.description);
    if (!argument.description.ends_with('.')) result += '.';
    if (!is_option && !argument.choices.empty()) {
      result += "\nOne of " + escaped(argument.value) + ".";
    }
    if (!argument.default_value.empty()) {
      result += "\nDefault: " + escaped(argument.default_value) + ".";
    }
    result += '\n';
  }
  return result;
}

std::string synopsis(const Command& command) {
  std::string result = bold(command.path);
  if (!command.options.empty()) result += " [" + italic("options") + "]";
  for (const Argument& argument : command.positionals) {
    const std::string name =
        italic(argument.names.front()) + (argument.is_repeated ? "\\~..." : "");
    result += argument.is_required ? " " + name : " [" + name + "]";
  }
  if (command.runs_program) {
    result += " [" + bold("--") + "] " + italic("program") + " [" + italic("arguments") + "\\~...]";
  }
  if (!command.commands.empty()) result += " " + italic("command") + "\\~...";
  return result + "\n";
}

std::string page_of(const Command& command) {
  std::string name = command.path;
  std::ranges::replace(name, ' ', '-');
  return name;
}

std::string head(const Command& command, const std::string& version) {
  const std::string page = page_of(command);
  return ".\\\" Made from the options of the program.\n.TH " + in_capitals(escaped(page)) +
         " 1 \"\" \"trireme " + version + "\" \"Trireme\"\n.SH NAME\n" + escaped(page) + " \\- " +
         escaped(command.summary) + "\n.SH SYNOPSIS\n";
}

std::string see_also(const Command& program, const Command& except) {
  std::string result;
  for_each_command(program, [&](const Command& command) {
    const bool has_page =
        command.path == program.path || command.path == program.path + " " + command.name;
    if (!has_page || command.path == except.path) return;
    result +=
        (result.empty() ? "" : ",\n") + std::string(".BR ") + escaped(page_of(command)) + " (1)";
  });
  return ".SH SEE ALSO\n" + result + "\n";
}

// Commands below a command of the program are sections of its page.
std::string section_of(const Command& command) {
  std::string result = ".SS " + escaped(command.path) + "\n" + synopsis(command) + ".PP\n" +
                       escaped(command.summary) + ".\n";
  if (!command.details.empty()) result += prose(command.details);
  return result + arguments(command.positionals) + arguments(command.options);
}

std::string page(const Command& program, const Command& command, const std::string& version) {
  std::string result = head(command, version) + synopsis(command) + ".SH DESCRIPTION\n" +
                       escaped(command.summary) + ".\n";
  if (!command.details.empty()) result += prose(command.details);
  if (!command.positionals.empty()) result += ".SH ARGUMENTS\n" + arguments(command.positionals);
  if (!command.options.empty()) result += ".SH OPTIONS\n" + arguments(command.options);
  if (!command.commands.empty()) result += ".SH COMMANDS\n";
  for (const Command& below : command.commands) result += section_of(below);
  if (!command.footer.empty()) result += prose(command.footer);
  return result + see_also(program, command);
}

std::string overview(const Command& program, const std::string& version) {
  std::string result = head(program, version) + synopsis(program) + ".SH DESCRIPTION\n" +
                       escaped(program.summary) + ".\nEach command has a page of its own.\n" +
                       ".SH COMMANDS\n";
  for (const Command& command : program.commands) {
    result += ".TP\n.BR " + escaped(page_of(command)) + " (1)\n" + escaped(command.summary) + ".\n";
  }
  return result + ".SH OPTIONS\n" + arguments(program.options) + see_also(program, program);
}

}  // namespace

std::map<std::string, std::string> man_pages(const Command& program, const std::string& version) {
  std::map<std::string, std::string> pages{{page_of(program) + ".1", overview(program, version)}};
  for (const Command& command : program.commands) {
    pages.emplace(page_of(command) + ".1", page(program, command, version));
  }
  return pages;
}

}  // namespace trireme::apps
