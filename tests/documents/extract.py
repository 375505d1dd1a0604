# SPDX-License-Identifier: Apache-2.0
"""Turns the C++ blocks of a page of documentation into files that compile.

    extract.py <page.md> <prelude.h or "-"> <folder>

A block with `int main(` becomes a program of its own, <folder>/<page>_<number>.cpp. All others become one file,
<folder>/<page>.cpp, which includes the prelude: it declares, in `namespace page_<page>`, the names that fragments use and the
page only speaks of. Each block has a namespace inside that, so that blocks may declare the same names and those of the
prelude anew; its definitions of types and functions come first, and its statements become the body of a function. A `using`
at the left margin holds from its block to the end of the page, as a reader takes it; a prelude has none, so that a page that
leaves a namespace out does not compile. Errors name the line of the page.
"""

import pathlib
import re
import sys

BLOCK = re.compile(r"^```cpp\n(.*?)^```", re.MULTILINE | re.DOTALL)
DEFINITION = re.compile(
    r"^(struct|class|template|enum|inline|namespace|using|TORCH_LIBRARY\w*|TEST)\b"
    r"|^(?!return\b|else\b)[\w:<>,&* ]+[ &*]\w+\([^;]*\)( const)? \{$", re.MULTILINE)
COMMENT = re.compile(r"\s*//.*$", re.MULTILINE)
USING = re.compile(r"^using [^=]*;")
CONTROL = re.compile(r"^(for|if|while|do|switch|try|else)\b")


def chunks(lines):
    """Yields (first line, text) of what stands at the left margin with all that belongs to it."""
    depth, begin, chunk = 0, 0, []
    for number, line in enumerate(lines):
        if not chunk:
            begin = number
        chunk.append(line)
        code = re.sub(r'//.*|"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'', "", line)
        depth += sum(code.count(each) for each in "([{") - sum(code.count(each) for each in ")]}")
        follows = number + 1 < len(lines) and re.match(r"^(\s+\S|\}|else\b|\.)", lines[number + 1])
        if depth == 0 and not follows:
            yield begin, "\n".join(chunk)
            chunk = []
    if chunk:
        yield begin, "\n".join(chunk)


def is_definition(chunk):
    code = COMMENT.sub("", chunk).strip()
    return bool(DEFINITION.match(code)) and not CONTROL.match(code)


def fragment(page, number, line, lines):
    """Returns the include directives of a block, and its using directives followed by its namespace."""
    includes = [each for each in lines if each.startswith("#")]
    rest = ["" if each.startswith("#") else each for each in lines]
    usings, definitions, statements = [], [], []
    for begin, chunk in chunks(rest):
        if chunk.strip():
            target = usings if USING.match(chunk) else definitions if is_definition(chunk) else statements
            target.append(f'#line {line + begin} "{page}"\n{chunk}\n')
    body = "".join(definitions) + "[[maybe_unused]] void run() {\n" + "".join(statements) + "}\n"
    return includes, "".join(usings) + f"namespace block_{number} {{\n{body}}}  // namespace block_{number}\n"


def main():
    page, prelude, folder = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    text = page.read_text(encoding="utf-8")
    name = re.sub(r"\W", "_", page.stem.lower())
    includes, fragments = [], []
    for number, match in enumerate(BLOCK.finditer(text)):
        line = text.count("\n", 0, match.start()) + 2
        block = match.group(1)
        if re.search(r"^int main\(", block, re.MULTILINE):
            (folder / f"{name}_{number}.cpp").write_text(f'#line {line} "{page}"\n{block}', encoding="utf-8")
            fragments += [each + "\n" for each in block.splitlines() if USING.match(each)]
            continue
        more, namespace = fragment(page, number, line, block.splitlines())
        includes += [each for each in more if each not in includes]
        fragments.append(namespace)
    if any("namespace block_" in each for each in fragments):
        space = "page_" + name
        head = ["#include <torch/torch.h>", "#include <trireme/trireme.h>"] + includes
        if prelude != "-":
            head.append(f'#include "{prelude}"')
        (folder / f"{name}.cpp").write_text(
            "\n".join(head) + f"\nnamespace {space} {{\n" + "".join(fragments) + f"}}  // namespace {space}\n",
            encoding="utf-8")


if __name__ == "__main__":
    main()
