# SPDX-License-Identifier: Apache-2.0
"""Public headers as Doxygen reads them. Lines keep their numbers.

- The comment at the top of a header describes the file.
- A docstring also describes declarations that follow without a blank line, such as `all_reduce_async` after `all_reduce`.
- Destructors, deleted and defaulted functions have nothing to say, and are left out.
"""
import re

DECLARED_ONLY = re.compile(r"^\s*(?:(?:explicit|virtual|constexpr|friend|inline|\[\[nodiscard\]\]) )*"
                           r"(?:.*= (?:delete|default);|~\w+\(\)(?: override| noexcept)*;|virtual ~\w+\(\)[^;]*;)\s*(?://.*)?$")
NO_DECLARATION = re.compile(r"^\s*(#|\}|public:|private:|protected:|TRIREME_|$)")
CODE_SPAN = re.compile(r"`([^`]*)`")


def comment_text(text):
    """Doxygen ends the first sentence at a dot that no letter follows, also inside of `code`, and takes # for a link."""
    def span(match):
        code = match.group(1)
        if not re.search(r"\.(?![A-Za-z0-9_:)])", code):
            return match.group(0)
        return "<tt>" + re.sub(r"[&<>.*]", lambda letter: f"&#{ord(letter.group(0))};", code) + "</tt>"

    return re.sub(r"(^|[ (])#(?=[a-z])", r"\1\\#", CODE_SPAN.sub(span, text))


class Converter:
    def __init__(self):
        self.comment = []  # docstring of the declaration that comes next
        self.shared = ""  # docstring of the declaration above, where no blank line follows it
        self.open = 0  # parentheses of a declaration that goes on
        self.is_inside = False  # in the middle of a declaration

    def line(self, line):
        stripped = line.strip()
        if stripped.startswith("///"):
            line = line[:len(line) - len(line.lstrip())] + "///" + comment_text(line.lstrip()[3:])
            self.comment.append(line.strip()[3:].strip())
            self.shared = ""
            return line
        if self.is_inside:
            return self.end(line)
        if stripped.startswith("//") or NO_DECLARATION.match(line):
            self.comment, self.shared = [], ""
            return line
        if DECLARED_ONLY.match(line) and not self.comment:
            return ""
        if self.comment:
            self.shared, self.comment = self.docstring(), []
        elif self.shared and "///<" not in line:
            indent = line[:len(line) - len(line.lstrip())]
            line = f"{indent}/** {self.shared} */ {line.lstrip()}"
        return self.end(line)

    def end(self, line):
        """Follows a declaration to its end."""
        code = re.sub(r"/\*\*.*?\*/", "", line)
        code = re.sub(r"//.*", "", code).rstrip()
        self.open += code.count("(") - code.count(")")
        self.is_inside = bool(code) and not (self.open <= 0 and code.endswith((";", "}", "{", ":")))
        if not self.is_inside:
            self.open = 0
        if code.endswith("{"):
            self.shared = ""  # what follows is inside of it
        return line

    def docstring(self):
        """Without parameters: another declaration has others."""
        return re.sub(r"\s*[@\\](param|return|tparam)\b.*", "", " ".join(self.comment))


def converted(text):
    lines = text.split("\n")
    result = []
    for index, line in enumerate(lines):
        if not line.startswith("//"):
            break
        result.append("/// @file" if index == 0 else "///" + comment_text(line[2:]))
    converter = Converter()
    result += [converter.line(line) for line in lines[len(result):]]
    return "\n".join(result)
