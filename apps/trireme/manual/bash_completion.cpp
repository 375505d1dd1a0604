// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/text.h>

#include <apps/trireme/manual/completions.h>

namespace trireme::apps {
namespace {

// Walks over the words before the cursor. `command` grows by every command's name; `waiting` is an
// option whose value comes next. Bash splits `--bind=core` into three words.
constexpr const char* kWalk = R"(_trireme() {
    local current=${COMP_WORDS[COMP_CWORD]} command=trireme waiting= program= word index
    COMPREPLY=()
    for ((index = 1; index < COMP_CWORD; ++index)); do
        word=${COMP_WORDS[index]}
        if [[ $word == = ]]; then continue; fi
        if [[ -n $waiting ]]; then waiting=; continue; fi
        if [[ $word == -- ]] && _trireme_runs_program "$command"; then program=$((index + 1)); break; fi
        if [[ $word == -* ]]; then
            if _trireme_takes_value "$command" "$word"; then waiting=$word; fi
        elif _trireme_is_command "$command $word"; then
            command+=" $word"
        elif _trireme_runs_program "$command"; then
            program=$index
            break
        fi
    done
    if [[ $current == = ]]; then current=; fi

    if [[ -z $waiting && -z $program && $current != -* ]] && _trireme_runs_program "$command"; then
        program=$COMP_CWORD
    fi
    if [[ -n $program ]]; then
        if ((program == COMP_CWORD)); then
            mapfile -t COMPREPLY < <(compgen -c -- "$current"; compgen -f -- "$current")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
        fi
        compopt -o filenames 2>/dev/null
        return
    fi
    if [[ -z $waiting ]]; then
        _trireme_words "$command"
        if [[ $current == -* || -n $REPLY ]]; then
            if [[ $current == -* ]]; then _trireme_options "$command"; fi
            mapfile -t COMPREPLY < <(compgen -W "$REPLY" -- "$current")
            return
        fi
        waiting=words
    fi
    _trireme_values "$command" "$waiting"
    if [[ $REPLY == '<number>' ]]; then return; fi
    if [[ $REPLY == '<file>' ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        compopt -o filenames 2>/dev/null
    else
        mapfile -t COMPREPLY < <(compgen -W "$REPLY" -- "$current")
    fi
}

complete -F _trireme trireme
)";

std::string kind_of(const Argument& argument) {
  if (!argument.choices.empty()) return list_text(argument.choices, " ");
  return argument.is_number ? "<number>" : "<file>";
}

// `"a -n" | "a --nproc"`
std::string patterns(const Command& command, const Argument& option) {
  std::string text;
  for (const std::string& name : option.names) {
    text += (text.empty() ? "\"" : " | \"") + command.path + " " + name + "\"";
  }
  return text;
}

std::string test_function(const std::string& name, const std::string& argument,
                          const std::string& cases) {
  const std::string body = cases.empty() ? "" : "        " + cases + ") return 0 ;;\n";
  return name + "() {\n    case \"" + argument + "\" in\n" + body + "    esac\n    return 1\n}\n\n";
}

void add_case(std::string& cases, const std::string& pattern) {
  cases += (cases.empty() ? "" : " | ") + pattern;
}

std::string line(const std::string& pattern, const std::string& reply) {
  return "        " + pattern + ") REPLY='" + reply + "' ;;\n";
}

}  // namespace

std::string bash_completion(const Command& program) {
  std::string names;
  std::string runs_program;
  std::string takes_value;
  std::string words;
  std::string options;
  std::string values;
  for_each_command(program, [&](const Command& command) {
    const std::string quoted = "\"" + command.path + "\"";
    if (&command != &program) add_case(names, quoted);
    if (command.runs_program) add_case(runs_program, quoted);
    std::vector<std::string> below;
    for (const Command& each : command.commands) below.push_back(each.name);
    std::vector<std::string> of_options;
    for (const Argument& option : command.options) {
      of_options.insert(of_options.end(), option.names.begin(), option.names.end());
      if (option.is_flag()) continue;
      add_case(takes_value, patterns(command, option));
      values += line(patterns(command, option), kind_of(option));
    }
    for (const Argument& argument : command.positionals) {
      below.insert(below.end(), argument.choices.begin(), argument.choices.end());
    }
    if (!below.empty()) words += line(quoted, list_text(below, " "));
    options += line(quoted, list_text(of_options, " "));
  });
  const std::string begin = " {\n    REPLY=\n    case \"$1\" in\n";
  const std::string end = "    esac\n}\n\n";
  return "# Completion of trireme for bash, made from the options of the program.\n\n" +
         test_function("_trireme_is_command", "$1", names) +
         test_function("_trireme_runs_program", "$1", runs_program) +
         test_function("_trireme_takes_value", "$1 $2", takes_value) + "_trireme_words()" + begin +
         words + end + "_trireme_options()" + begin + options + end +
         "_trireme_values() {\n    REPLY='<file>'\n    case \"$1 $2\" in\n" + values + end + kWalk;
}

}  // namespace trireme::apps
