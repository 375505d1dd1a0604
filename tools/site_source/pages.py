# SPDX-License-Identifier: Apache-2.0
"""Markdown of docs/ as Doxygen reads it: pages and headings have labels, links lead to labels, and links to files that are
no page lose their link."""
import os
import re

from checks.documents import CODE, FENCE, anchor_of
from checks.tree import ROOT

HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


FIRST = "docs/site/index.md"
# Sections of the list of pages: title and where its pages lie.
SECTIONS = {
    "guides": ("Guides", "docs/guide/*.md"),
    "design": ("Design", "docs/design/*.md"),
    "formats": ("File formats", "docs/formats/*.md"),
    "results": ("Results", "docs/results/*.md"),
    "decisions": ("Decisions", "docs/decisions/*.md"),
    "examples": ("Examples", "examples/*/README.md"),
    "project": ("The project", "C[OH]*.md"),  # CONTRIBUTING, CHANGELOG
}


def pages_of(section):
    """The pages of a section, as paths from the root; those that the first page names come in its order."""
    first = (ROOT / FIRST).read_text()
    paths = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(SECTIONS[section][1]))
    return sorted(paths, key=lambda path: first.find(f"]({os.path.relpath(path, 'docs/site')})") % (len(first) + 1))


def documents():
    """All pages, the first page first."""
    others = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))
    return [FIRST, *others, *(path for section in SECTIONS for path in pages_of(section))]


def contents_of(section):
    """The page that stands above those of a section."""
    lines = [f"- @subpage {label_of(path)}" for path in pages_of(section)]
    return f"# {SECTIONS[section][0]} {{#section_{section}}}\n\n" + "\n".join(lines) + "\n"


def label_of(path, heading=""):
    """The name by which Doxygen links to a page or to a heading of it."""
    name = re.sub(r"\W", "_", path.removeprefix("docs/").removesuffix(".md").removesuffix("/README"))
    return f"{name}__{re.sub(r'[^a-z0-9]', '_', anchor_of(heading))}" if heading else name


def labels_of(path):
    """{anchor as GitHub has it: label} of a page."""
    headings = HEADING.findall(FENCE.sub("", (ROOT / path).read_text()))
    return {anchor_of(title): label_of(path, "" if marks == "#" else title) for marks, title in headings}


class Page:
    def __init__(self, path, pages, headers):
        self.path, self.pages, self.headers = path, pages, headers

    def converted(self):
        """Links and headings may have code in them, so code is put aside and comes back last."""
        self.code = []
        text = FENCE.sub(self.put_aside, (ROOT / self.path).read_text())
        text = CODE.sub(self.put_aside, text)
        text = re.sub(r"<(?=[A-Za-z/])", "&lt;", text).replace("@", "\\@")
        text = HEADING.sub(self.heading, text)
        text = LINK.sub(self.link, text)
        return self.brought_back(text)

    def put_aside(self, match):
        self.code.append(match.group(0))
        return f"\0{len(self.code) - 1}\0"

    def brought_back(self, text):
        """Doxygen ends a span at an apostrophe unless it has two marks, and takes `::name` for a link."""
        def code(match):
            original = self.code[int(match.group(1))]
            if original.startswith("```"):
                return original
            if original.startswith("`::"):
                return "<tt>&#58;&#58;" + original.strip("`").removeprefix("::") + "</tt>"
            marks = "``" if "'" in original else "`"
            return marks + original.strip("`") + marks

        return re.sub("\0(\\d+)\0", code, text)

    def as_typed(self, text):
        return re.sub("\0(\\d+)\0", lambda match: self.code[int(match.group(1))], text)

    def heading(self, match):
        marks, title = match.groups()
        label = label_of(self.path, "" if marks == "#" else self.as_typed(title))
        return f"{marks} {title} {{#{label}}}"

    def link(self, match):
        image, text, target = match.groups()
        if re.match(r"[a-z]+:", target):
            return match.group(0)
        if image:
            return f"![{text}]({os.path.basename(target)})"
        file, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(self.path), file)) if file else self.path
        plain = " ".join(self.as_typed(text).replace("`", "").split())
        if path in self.pages:
            label = labels_of(path).get(anchor) if anchor else label_of(path)
            if label is None:
                raise SystemExit(f"docs: {self.path} links to {target}, but {path} has no such heading")
            return f"[{plain}](@ref {label})"
        if path in self.headers:
            return f"[{plain}](@ref {path})"
        return text
