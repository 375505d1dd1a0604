# SPDX-License-Identifier: Apache-2.0
"""What the documentation points to exists: links, headings, files and folders in `code marks`, make targets."""
import os
import re

from .tree import Result, line_of

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# Files of other projects, of the reader, and ones that programs write.
FOREIGN = re.compile(r"(torch|ATen|c10|gloo|gtest|mpi|build|your|my|path)(/|_)|mpi\.h$|/dev/|/sys/|/usr/|/proc/|/etc/")
SOURCE = re.compile(r"[\w./*-]+\.(h|cpp|py|md|cmake)")

# What `make bench-<name>` and `make example-<name>` are about.
FILE_OF_TARGET = {"bench": "bench/cases/{}.py", "example": "examples/{}/main.cpp"}


def anchor_of(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def links(tree):
    documents = tree.having(".md")
    findings = []
    for document in documents:
        prose = FENCE.sub(lambda match: "\n" * match.group(0).count("\n"), tree.text(document))
        for pattern, verdict in ((LINK, link_verdict), (CODE, code_verdict)):
            for match in pattern.finditer(prose):
                complaint = verdict(tree, document, match.group(1))
                if complaint:
                    findings.append(f"{document}:{line_of(prose, match.start())}: {complaint}")
    return Result(f"{len(documents)} documents", findings)


def link_verdict(tree, document, target):
    if re.match(r"[a-z]+:", target):
        return None
    file, _, anchor = target.partition("#")
    path = os.path.normpath(os.path.join(os.path.dirname(document), file)) if file else document
    if not tree.exists(path):
        return f"the link to {target} leads nowhere"
    if anchor and path.endswith(".md"):
        headings = re.findall(r"^#+ (.*)$", FENCE.sub("", tree.text(path)), re.MULTILINE)
        if anchor not in [anchor_of(heading) for heading in headings]:
            return f"{path} has no heading #{anchor}"
    return None


def code_verdict(tree, document, text):
    target = re.fullmatch(r"make ([a-z][a-z-]*[a-z])( .*)?", text)
    if target:
        name = target.group(1)
        kind, _, which = name.partition("-")
        known = re.search(rf"^{name}:", tree.text("Makefile"), re.MULTILINE)
        if which and kind in FILE_OF_TARGET and not known:  # bench-%, example-%
            known = FILE_OF_TARGET[kind].format(which.replace("-", "_")) in tree.known
        return None if known else f"`{text}`: the Makefile has no such target"
    if FOREIGN.match(text) or not (SOURCE.fullmatch(text) or is_folder_of_ours(text)):
        return None
    folders = [os.path.dirname(document), "", "trireme"]
    if any(tree.exists(os.path.join(folder, text)) for folder in folders):
        return None
    if "/" not in text and any(path.endswith("/" + text) for path in tree.files):
        return None
    return f"`{text}` does not exist"


def old_names(tree):
    """Names that the CHANGELOG's table says were replaced are used nowhere else."""
    if "CHANGELOG.md" not in tree.known:
        return Result("no CHANGELOG", [])
    table = re.findall(r"^\| (`[^|]*) \|", tree.text("CHANGELOG.md"), re.MULTILINE)
    names = set()
    for span in CODE.findall(" ".join(table)):
        name = re.split(r"[ (]", span)[0].rsplit("::", 1)[-1]
        # A single word, such as Pipeline, may be used for something else now.
        if re.fullmatch(r"\w+", name) and ("_" in name or len(re.findall("[A-Z]", name)) > 1):
            names.add(name)
    if not names:
        return Result("no old names", [])
    # Keys of configuration files for which users are told the new name.
    sources = tree.having(".cpp", under="trireme/")
    still_read = {name for path in sources for name in re.findall(r'renamed\("(\w+)"', tree.text(path))}
    pattern = re.compile(r"(?<!\w)(" + "|".join(sorted(names)) + r")(?!\w)")
    findings = []
    for path in tree.having(".h", ".cpp", ".md", ".py", ".txt", ".cmake", ".toml"):
        text = tree.text(path)
        if path == "CHANGELOG.md" or path.startswith("docs/decisions/"):  # accepted decisions keep their words
            continue
        for match in pattern.finditer(text):
            if match.group(1) in still_read and not path.endswith(".md"):
                continue
            findings.append(f"{path}:{line_of(text, match.start())}: {match.group(1)} has another name now; see the table in CHANGELOG.md")
    return Result(f"{len(names)} old names", findings)


def pictures(tree):
    """SVG files name colours by value: some programs that show them know no variables of CSS, and draw them black."""
    files = tree.having(".svg")
    findings = []
    for path in files:
        text = tree.text(path)
        found = re.search(r"\bvar\s*\(", text)
        if found:
            findings.append(f"{path}:{line_of(text, found.start())}: a variable of CSS; draw the picture anew, with colours by value")
    return Result(f"{len(files)} pictures", findings)


def is_folder_of_ours(text):
    return re.fullmatch(r"(trireme|models|apps|tests|bench|examples|docs|tools|cmake|\.ci)(/[\w.*-]+)+/?|"
                        r"(trireme|models|apps|tests|bench|examples|docs|tools|cmake|\.ci)/", text) is not None
