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


def is_folder_of_ours(text):
    return re.fullmatch(r"(trireme|models|apps|tests|bench|examples|docs|tools|cmake|\.ci)(/[\w.*-]+)+/?|"
                        r"(trireme|models|apps|tests|bench|examples|docs|tools|cmake|\.ci)/", text) is not None
