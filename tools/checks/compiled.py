# SPDX-License-Identifier: Apache-2.0
"""Checks that need a compiler: headers that compile alone, and clang-tidy.

Flags come from build/release/compile_commands.json without the precompiled header: it would hide a missing include, and
Clang cannot read GCC's.
"""
import json
import os
import re
import shlex
import subprocess
import sysconfig
from pathlib import Path

from .tree import ROOT, Result, forget_old, remember, remembered

DATABASE = ROOT / "build" / "release" / "compile_commands.json"
CLANG_TIDY = ROOT / "build" / "python" / "bin" / "clang-tidy"
# The flags are GCC's. Clang also warns of fields that a designated initialiser leaves to their defaults, and of what the
# standard library uses of itself.
CLANG_FLAGS = ("-Wno-unknown-warning-option", "-Wno-missing-designated-field-initializers", "-Wno-deprecated-declarations")


class Flags:
    """Compiler and flags for any file of ours, listed in the compilation database or not."""

    def __init__(self):
        if not DATABASE.exists():
            raise SystemExit("check: build/release is not configured; type: tools/build release")
        self.commands = {}
        self.joined = {}
        for entry in json.loads(DATABASE.read_text()):
            command = shlex.split(entry["command"])
            for path in self.sources(entry["file"]):
                self.commands[os.path.relpath(path, ROOT)] = command
                self.joined[os.path.relpath(path, ROOT)] = os.path.relpath(entry["file"], ROOT)
        self.commands = {path: command for path, command in self.commands.items() if not path.startswith("build/")}

    @staticmethod
    def sources(path):
        """The file itself, or those of ours that CMake joined into it (TRIREME_UNITY)."""
        if "/Unity/unity_" not in path:
            return [path]
        return re.findall(r'^#include "(.+)"$', Path(path).read_text(), re.MULTILINE)

    def of(self, path):
        """Compiler and flags of the file itself, else of the listed file nearest to it in the tree, most flags first."""
        def closeness(other):
            return len(os.path.commonprefix([path.split("/"), other.split("/")])), len(self.commands[other])

        listed = path if path in self.commands else max(sorted(self.commands), key=closeness)
        compiler, flags = self.compiler(listed), self.kept(self.commands[listed])
        if path.startswith("python/") and listed != path:  # the Python package may not be configured
            flags += ["-isystem", sysconfig.get_paths()["include"]]
        return compiler, flags

    def compiler(self, path):
        """The first word that is neither `cmake -E env NAME=VALUE…` nor ccache."""
        for word in self.commands[path]:
            if re.search(r"(g\+\+|clang\+\+|c\+\+)[-\d.]*$", word):
                return word
        raise SystemExit(f"check: no compiler in the command for {path}")

    @staticmethod
    def kept(words):
        """Those that matter without the precompiled header, which Clang takes by options behind `-Xclang`."""
        words = [word for word in words if word not in ("-Xclang", "-fno-pch-timestamp")]
        flags, skip = [], False
        for word, following in zip(words, [*words[1:], ""]):
            if skip:
                skip = False
            elif word in ("-isystem", "-include", "-I"):
                skip = True
                if "cmake_pch" not in following:
                    flags += [word, following]
            elif re.match(r"-(I|D|U|std=|W|f|m|O|pthread)", word) and word != "-Winvalid-pch":
                flags.append(word)
        return flags


def version_of(program):
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout


def headers(tree):
    """Every header compiles when it is the only include. Unchanged ones that need LibTorch are left to --all."""
    flags = Flags()
    paths, skipped = without_unchanged(tree, tree.having(".h"))
    versions = {}

    def compile_alone(path):
        compiler, options = flags.of(path)
        key = "header-" + tree.digest(path, compiler, options, versions.setdefault(compiler, version_of(compiler)))
        if remembered(key):
            return None
        run = subprocess.run([compiler, *options, f"-I{ROOT}", "-fsyntax-only", "-x", "c++", "-"], cwd=ROOT,
                             input=f"#include <{path}>\n", capture_output=True, text=True, check=False)
        if run.returncode == 0:
            remember(key)
            return None
        errors = [line for line in run.stderr.splitlines() if "error" in line]
        return f"{path}: does not compile alone: {(errors or [run.stderr])[0]}".replace(f"{ROOT}/", "")

    findings = [finding for finding in tree.parallel(compile_alone, paths) if finding]
    forget_old()
    return Result(looked_at(paths, "headers", skipped), findings)


def changed_files(tree):
    """Files that differ from the commit before: where HEAD left the main branch, or its parent on the main branch."""
    head = tree.git("rev-parse", "HEAD").strip()
    base = tree.git("merge-base", "HEAD", "origin/main").strip()
    if not base or base == head:
        base = tree.git("rev-parse", "--verify", "--quiet", "HEAD~1").strip()
    if not base:
        return set(tree.files)  # the first commit, or a clone without history
    changed = tree.git("diff", "--name-only", "-z", base) + tree.git("ls-files", "-z", "--others", "--exclude-standard")
    return set(changed.split("\0")) - {""}


def without_unchanged(tree, paths):
    """Those that do not need LibTorch or changed, themselves or in what they include, since the commit before; and how
    many others there are."""
    if tree.everything:
        return paths, 0
    changed = changed_files(tree)
    chosen = [path for path in paths if not tree.needs_libtorch(path) or changed & {*tree.closure(path), ".clang-tidy"}]
    return chosen, len(paths) - len(chosen)


def looked_at(chosen, things, skipped):
    left = f"; {skipped} unchanged ones that need LibTorch are left to make check-all" if skipped else ""
    return f"{len(chosen)} {things}{left}"


def tidy(tree):
    """clang-tidy with .clang-tidy. A file that needs LibTorch costs 5 to 20 s, the others 1 to 2: those are looked at
    when they or what they include changed, and all with --all. Without --all, files that the build joins
    (TRIREME_UNITY) are looked at joined too, since most of the time goes into headers; a few checks see less then, such as that
    of unused using-declarations."""
    flags = Flags()
    sources = [path for path in tree.having(".cpp") if path.startswith(("trireme/", "apps/", "models/", "tests/",
                                                                        "examples/", "bench/"))]
    # Sources that must not compile are errors on purpose.
    sources = [path for path in sources if not path.startswith("tests/compile_fail/")]
    # Where the twin that stands in for it is built, what it needs is not here.
    sources = [path for path in sources if re.sub(r"(\w+\.cpp)$", r"no_\1", path) not in flags.commands]
    # A peer whose library is not installed is not built.
    sources = [path for path in sources if not path.startswith("bench/peers/") or path in flags.commands]
    chosen, skipped = without_unchanged(tree, sources)
    version, configuration = version_of(CLANG_TIDY), tree.text(".clang-tidy")

    units = {}
    for path in chosen:
        units.setdefault(path if tree.everything else flags.joined.get(path, path), []).append(path)

    def look_at(unit):
        file, paths = unit
        _, options = flags.of(paths[0])
        options = [option for option in options if not option.startswith(("-fsanitize", "-fprofile"))]
        digests = [tree.digest(path) for path in paths]
        key = "tidy-" + tree.digest(paths[0], digests, options, CLANG_FLAGS, version, configuration)
        if remembered(key):
            return []
        path = file if len(paths) > 1 else paths[0]
        run = subprocess.run([CLANG_TIDY, "--quiet", path, "--", *options, f"-I{ROOT}", *CLANG_FLAGS], cwd=ROOT,
                             capture_output=True, text=True, check=False)
        if run.returncode == 0:
            remember(key)
            return []
        found = re.findall(r"^(\S+:\d+):\d+: (?:error|warning): (.*)$", run.stdout, re.MULTILINE)
        return [f"{place.removeprefix(f'{ROOT}/')}: {message}"
                for place, message in found] or [f"{path}: {run.stdout}{run.stderr}".strip()]

    # The slowest first, so that no core waits for one of them at the end.
    slowest_first = sorted(units.items(), key=lambda unit: (not tree.needs_libtorch(unit[1][0]), -len(unit[1])))
    findings = sorted({finding for group in tree.parallel(look_at, slowest_first) for finding in group})
    forget_old()
    return Result(looked_at(chosen, "files", skipped), findings)
