# SPDX-License-Identifier: Apache-2.0
"""Each check finds what is planted for it, and nothing in a tree that is in order: a check that finds nothing any more
would look like a tree without faults."""
from . import documents, duplicates, structure
from .tree import Result, Tree

LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"
README = "# base\n\nWhat every component\nstands on.\nNo other component.\n"
OLD_NAME = "_".join(("end", "for", "all"))  # so that this file does not use it
IN_ORDER = {
    "CHANGELOG.md": f"| was | is |\n| --- | --- |\n| `Parallelized::{OLD_NAME}` | `Parallelized::abort` |\n",
    "Makefile": "test: ## Run\n",
    "README.md": "# Ship\n\nSee [base](trireme/base/README.md#base), `trireme/base/*.h`, `error.h` and `make test`.\n",
    "trireme/base/README.md": README,
    "trireme/base/error.h": LICENCE + "#pragma once\n#include <string>\n",
    "trireme/base/wire/socket.h": LICENCE + "#pragma once\n#include <trireme/base/error.h>\n",
    "trireme/comm/README.md": README,
    "trireme/comm/group.cpp": LICENCE + "#include <trireme/base/error.h>\n",
    "tests/unit/comm/group_test.cpp": LICENCE + "// getenv() in a test is fine\n",
}
# check, file, its content, part of the one finding that is expected
PLANTED = [
    (structure.licence, "trireme/base/new.h", "#pragma once\n", "SPDX-License-Identifier"),
    (structure.names, "trireme/base/string_utils.h", LICENCE, "not 'utils'"),
    (structure.names, "trireme/base/NewName.h", LICENCE, "expected snake_case"),
    (structure.size, "trireme/comm/long.cpp", LICENCE + "\n" * 600, "601 lines"),
    (structure.components, "trireme/comm/README.md", "# comm\n", "1 lines, expected"),
    (structure.components, "trireme/hold/README.md", README, "hold: not a component"),
    (structure.includes, "trireme/base/new.cpp", "#include <trireme/comm/group.h>\n", "comm stands below base"),
    (structure.includes, "trireme/comm/new.cpp", "#include <models/resnet.h>\n", "nothing outside trireme/"),
    (structure.includes, "trireme/comm/new.cpp", "#include <trireme/trireme.h>\n", "which is for programs"),
    (structure.includes, "models/new.h", "#include <trireme/comm/group.h>\n", "models are written as users"),
    (structure.includes, "trireme/launch/new.cpp", "# include <ATen/core/Tensor.h>\n", "builds without LibTorch"),
    (structure.cycles, "trireme/base/new.cpp", "#include <trireme/base/wire/socket.h>\n", "., wire include each other"),
    (structure.public_interface, "trireme/comm/new.h", "#pragma once\n#include <torch/torch.h>\n", "forward-declare"),
    (structure.public_interface, "trireme/comm/new.h", LICENCE, "expected '#pragma once'"),
    (structure.environment, "trireme/comm/new.cpp", 'auto x = std::getenv ("X");\n', "take a trireme::Environment"),
    (structure.locale, "trireme/comm/new.cpp", "std::ostringstream text;\n", "the locale decides"),
    (structure.locale, "trireme/comm/new.cpp", "auto x = std::stod(word);\n", "the locale decides"),
    (structure.locale, "trireme/comm/new.cpp", "x = std::tolower(x);\n", "the locale decides"),
    (structure.portable, "README.md", "see /ro" + "ot/notes.txt\n", "a path of one machine"),
    (structure.portable, "README.md", "from https://py" + "pi.org\n", "a package registry's host name"),
    (documents.links, "README.md", "[gone](docs/gone.md)\n", "leads nowhere"),
    (documents.links, "README.md", "[gone](trireme/base/README.md#gone)\n", "has no heading #gone"),
    (documents.links, "README.md", "`trireme/base/gone.h`\n", "does not exist"),
    (documents.links, "README.md", "`make gone`\n", "no such target"),
    (duplicates.repeated_blocks, "trireme/comm/new.cpp", LICENCE + "".join(f"int f{i}();\n" for i in range(8)) * 2, "8 lines that also stand"),
    (documents.old_names, "README.md", f"`{OLD_NAME}`\n", "has another name now"),
    (documents.pictures, "docs/new.svg", "<svg><style>\n.box { fill: var(--box); }</style></svg>\n", "a variable of CSS"),
]


class TextTree(Tree):
    """A tree that lies in memory."""

    def __init__(self, contents):
        self.contents = contents
        self.files = sorted(contents)

    def text(self, path):
        return self.contents[path]


def check(_):
    findings = []
    for function in dict.fromkeys(function for function, *_ in PLANTED):
        for finding in function(TextTree(IN_ORDER)).findings:
            findings.append(f"{function.__name__} in a tree that is in order: {finding}")
    for function, path, content, expected in PLANTED:
        # A folder that is planted with a README alone also has a source.
        extra = {path.replace("README.md", "new.cpp"): LICENCE} if path == "trireme/hold/README.md" else {}
        found = function(TextTree({**IN_ORDER, **extra, path: content})).findings
        if len(found) != 1 or expected not in found[0]:
            findings.append(f"{function.__name__}: expected one finding with '{expected}' for {path}, got {found}")
    return Result(f"{len(PLANTED)} planted faults", findings)
