# SPDX-License-Identifier: Apache-2.0
"""Fails where a page has C++ that the list of pages in CMakeLists.txt does not know: check_pages.py <root> <list>."""

import pathlib
import re
import sys

root, listed = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")
problems = []
for page in [root / "README.md", *sorted((root / "docs/guide").glob("*.md"))]:
    name = page.relative_to(root).as_posix()
    blocks = re.findall(r"^```cpp\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    programs = [number for number, block in enumerate(blocks) if re.search(r"^int main\(", block, re.MULTILINE)]
    entry = re.search(rf"trireme_page\({re.escape(name)}(.*?)\)", listed)
    words = entry.group(1).split() if entry else []
    known = [int(word) for word in words if word.isdigit()]
    if programs != known:
        problems.append(f"{name}: blocks {programs} are programs, but CMakeLists.txt lists {known}")
    if len(blocks) > len(programs) and "PRELUDE" not in words:
        problems.append(f"{name}: has fragments of C++, but CMakeLists.txt gives it no PRELUDE")
for prelude in sorted((root / "tests/documents").glob("*.h")):
    if re.search(r"^using ", prelude.read_text(encoding="utf-8"), re.MULTILINE):
        problems.append(f"{prelude.name}: a prelude has no using directives; the page says what it uses")
print("\n".join(problems) or "every block of C++ in README and docs/guide is compiled")
sys.exit(bool(problems))
