# SPDX-License-Identifier: Apache-2.0
"""Rules of the house that can be read off the text: names, sizes, licence, directions of includes, who reads what."""
import os
import re

from .tree import COMPONENTS, Result, line_of

LONG_FILES = {  # path: why it is longer than 600 lines
}
MAXIMUM_LINES = 600
CYCLES = {  # folder: why its files and subfolders include each other in circles
    "trireme/data": "transforms and detail are used by the classes at its root, which they declare",
    "trireme/data/text": "tokenizers at its root share detail/, which has their declarations",
    "trireme/graph": "the recorder and the runner are entered from capture.h and piece.h at its root",
    "trireme/graph/show": "the table at its root shares detail/ with the pictures",
    "trireme/parallel/pipeline": "executor.h at its root is what users call; its folders carry out the program declared beside it",
    "trireme/schedule": "passes at its root are verified, and the verifier reads schedule.h",
    "trireme/tensor": "rules, dispatch and redistribution are one kernel around distributed_tensor.h",
    "trireme/tensor/dispatch": "kernels for the most frequent operators fall back to the general one",
}


def licence(tree):
    sources = tree.cpp + tree.having(".py", ".sh") + [
        path for path in tree.files if "." not in os.path.basename(path) and tree.text(path).startswith("#!")]
    findings = [f"{path}:1: expected 'SPDX-License-Identifier: Apache-2.0' in the first two lines"
                for path in sources
                if "SPDX-License-Identifier: Apache-2.0" not in "".join(tree.text(path).splitlines()[:2])]
    return Result(f"{len(sources)} files", findings)


def names(tree):
    """A file named after nothing collects everything."""
    vague = re.compile(r"(^|[_/.-])(utils?|helpers?|common|misc|manager)([_/.-]|$)")
    findings = [f"{path}: name it after what it holds, not '{vague.search(path).group(2)}'"
                for path in tree.files if vague.search(path)]
    findings += [f"{path}: expected snake_case" for path in tree.cpp
                 if not re.fullmatch(r"[a-z0-9_]+\.(h|cpp)", os.path.basename(path))]
    return Result(f"{len(tree.files)} files", findings)


def size(tree):
    sources = tree.cpp + tree.having(".py", ".cmake")
    lines = sorted(((tree.text(path).count("\n"), path) for path in sources), reverse=True)
    findings = [f"{path}: {count} lines, at most {MAXIMUM_LINES}; split it, or give a reason in tools/checks/structure.py"
                for count, path in lines if count > MAXIMUM_LINES and path not in LONG_FILES]
    findings += [f"tools/checks/structure.py: {path} needs no exception any more" for path in LONG_FILES
                 if dict((path, count) for count, path in lines).get(path, MAXIMUM_LINES + 1) <= MAXIMUM_LINES]
    largest = ", ".join(f"{path} {count}" for count, path in lines[:10])
    return Result(f"{sum(count for count, _ in lines)} lines", findings, [f"largest: {largest}"])


def components(tree):
    """Every component is in the list and says what it is for."""
    found = sorted({path.split("/")[1] for path in tree.having(".h", ".cpp", under="trireme/") if path.count("/") > 1})
    findings = [f"trireme/{component}: not a component; the list is in CONTRIBUTING.md and tools/checks/tree.py"
                for component in found if component not in COMPONENTS]
    for component in found:
        readme = f"trireme/{component}/README.md"
        lines = tree.text(readme).count("\n") if readme in tree.known else 0
        if not 5 <= lines <= 40:
            findings.append(f"{readme}: {lines} lines, expected 10 to 30: purpose, key types, invariants")
    return Result(f"{len(found)} components", findings)


def component_of(path):
    parts = path.split("/")
    return parts[1] if parts[0] == "trireme" and len(parts) > 2 else ""


def is_torch(include):
    return re.match(r"(torch|ATen|c10|caffe2)/", include) is not None


def is_torch_free(path):
    """These build in seconds and run under the thread sanitizer."""
    free = ("trireme/launch/", "trireme/base/", "trireme/schedule/", "trireme/report/", "trireme/comm/engines/shm/", "trireme/data/text/")
    not_free = ("trireme/comm/engines/shm/shm_connection.", "trireme/comm/engines/shm/shm_engine.", "trireme/launch/store/", "trireme/data/text/bert_pairs.",
                "trireme/data/text/detail/bert_pairs_files.", "trireme/data/text/make_bert_pairs.", "trireme/data/text/masking.",
                "trireme/data/text/tokens.")
    return path.startswith(free) and not path.startswith(not_free)


def includes(tree):
    """Includes point up the list of components, never down and never out of the library."""
    findings = []
    for path in tree.cpp:
        component, top = component_of(path), path.split("/")[0]
        for include in tree.includes(path):
            target_component = component_of(include)
            if component in COMPONENTS and target_component in COMPONENTS and COMPONENTS.index(target_component) > COMPONENTS.index(component):
                findings.append(f"{path}: includes {include}, but {target_component} stands below {component}")
            if top == "trireme" and re.match(r"(models|apps|bench|tests|examples)/", include):
                findings.append(f"{path}: includes {include}; the library knows nothing outside trireme/")
            if component and include == "trireme/trireme.h":
                findings.append(f"{path}: includes trireme/trireme.h, which is for programs; include what is used")
            if top == "models" and include.startswith("trireme/") and target_component != "tensor":
                findings.append(f"{path}: includes {include}; models are written as users write them: torch and "
                                "trireme/tensor alone")
            if is_torch_free(path) and is_torch(include):
                findings.append(f"{path}: includes {include}; this folder builds without LibTorch")
    return Result(f"{len(tree.cpp)} files", findings)


def circles(edges):
    """Groups of nodes that reach each other; Tarjan, SIAM J. Comput. 1 (1972)."""
    number, lowest, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in number:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == number[node]:
            group = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(edges):
        if node not in number:
            visit(node)
    return found


def cycles(tree):
    """Inside a folder of a component, its own files and each subfolder form a line of includes, at any depth."""
    sources = tree.having(".h", ".cpp", under="trireme/")
    edges = {}  # by folder: which of its parts includes which, with one file that does
    for path in sources:
        for include in tree.includes(path):
            if not include.startswith("trireme/") or component_of(path) != component_of(include):
                continue
            own, other = path.split("/"), include.split("/")
            for depth in range(2, min(len(own), len(other))):
                if own[:depth] != other[:depth]:
                    break
                a = own[depth] if len(own) > depth + 1 else "."
                b = other[depth] if len(other) > depth + 1 else "."
                if a != b:
                    edges.setdefault("/".join(own[:depth]), {}).setdefault(a, {}).setdefault(b, f"{path} includes {include}")
    findings, notes = [], []
    for folder in sorted(edges):
        for group in circles({a: set(targets) for a, targets in edges[folder].items()}):
            if folder in CYCLES:
                notes.append(f"{folder}: {', '.join(group)} in circles: {CYCLES[folder]}")
                continue
            examples = [edges[folder][a][b] for a in group for b in group if b in edges[folder].get(a, {})]
            findings.append(f"{folder}: {', '.join(group)} include each other in circles: {'; '.join(examples[:3])}")
    if len(sources) > 100:  # not in the small trees of the self-test
        findings += [f"tools/checks/structure.py: {folder} needs no exception any more"
                     for folder in CYCLES if not any(note.startswith(folder + ":") for note in notes)]
    return Result(f"{len(edges)} folders", findings, notes)


def public_interface(tree):
    """What a user's program has to parse: see 'Public headers' in CONTRIBUTING.md."""
    slow = re.compile(r"(torch/(torch|all|nn|optim|data)\b|ATen/ATen\.h|nlohmann/|CLI/|fmt/|spdlog/|mpi\.h|gtest/|gmock/)")
    headers = tree.having(".h", under="trireme/")
    findings = [f"{path}: includes {include}; forward-declare, or move it to the .cpp file"
                for path in headers for include in tree.includes(path) if slow.match(include)]
    findings += [f"{path}: expected '#pragma once'" for path in tree.having(".h") if "#pragma once" not in tree.text(path)]
    return Result(f"{len(headers)} headers", findings)


def matches(tree, paths, pattern, message):
    """One finding for each match outside comments."""
    findings = []
    for path in paths:
        for match in re.finditer(pattern, tree.text(path)):
            start = tree.text(path).rfind("\n", 0, match.start()) + 1
            if not tree.text(path)[start:match.start()].lstrip().startswith(("//", "#")):
                findings.append(f"{path}:{line_of(tree.text(path), match.start())}: {match.group(0).strip()}: {message}")
    return findings


def environment(tree):
    """Environment variables are read in one place, so that `trireme doctor` and the manual know all of them."""
    sources = [path for path in tree.cpp if path.startswith(("trireme/", "apps/", "models/"))
               and path != "trireme/base/environment.cpp"]
    return Result(f"{len(sources)} files", matches(
        tree, sources, r"\b(secure_)?getenv\s*\(|\benviron\b", "take a trireme::Environment (trireme/base/environment.h)"))


def locale(tree):
    """Text that is read back is written and read alike under every locale: trireme/base/text.h."""
    sources = [path for path in tree.cpp if path.startswith(("trireme/", "apps/", "models/"))
               and path not in ("trireme/base/error.h", "trireme/base/text.h")]
    streams = r"\bstd::[io]?stringstream\b"
    numbers = r"\b(?:std::sto(?:i|l|ll|ul|ull|f|d|ld)|strto(?:d|f|ld|l|ll|ul|ull))\s*\("
    letters = r"\b(?:std::)?(?:is(?:alpha|alnum|space|upper|lower|print|blank)|to(?:lower|upper))\s*\("
    return Result(f"{len(sources)} files", matches(
        tree, sources, "|".join((streams, numbers, letters)), "the locale decides; take trireme/base/text.h"))


def portable(tree):
    """Nothing of the machine or the network that it was written on."""
    machine = r"(?<![\w.$}>-])/(?:work|root)/[\w.]|/tmp/bash" + r"_jobs"
    hosts = r"\b(?:pypi\.org|files\.pythonhosted\.org|download\.pytorch\.org|deb\.debian\.org|archive\.ubuntu\.com)\b"
    findings = []
    for path in tree.files:
        if path == "tools/checks/structure.py":
            continue
        for pattern, what in ((machine, "a path of one machine"), (hosts, "a package registry's host name")):
            for match in re.finditer(pattern, tree.text(path)):
                findings.append(f"{path}:{line_of(tree.text(path), match.start())}: {match.group(0)}: {what}")
    return Result(f"{len(tree.files)} files", findings)


def tests(tree):
    """Names sources that no test mirrors or includes. A note, not a finding: processes and programs test many."""
    tested = {include for path in tree.having(".cpp", ".h", under="tests/") for include in tree.includes(path)}
    sources = tree.having(".cpp", under="trireme/")
    untested = [path for path in sources
                if path.removesuffix(".cpp") + ".h" not in tested
                and "tests/unit/" + path.removeprefix("trireme/").removesuffix(".cpp") + "_test.cpp" not in tree.known]
    notes = [f"no test of its own: {', '.join(untested)}"] if untested else []
    return Result(f"{len(sources)} sources, {len(untested)} without a test of their own", [], notes)
