# SPDX-License-Identifier: Apache-2.0
"""Checks Dockerfile as far as that goes without a registry of images.

check_dockerfile.py <folder of the sources>

Every instruction is one that Docker has; stages are named once and before they are used; what is copied is in the
repository and not ignored, or is made by a stage; every command that runs is one of the repository's own (a target of the
Makefile, a program of tools/) or apt-get with packages that Debian's lists or the build know.
"""
import fnmatch
import re
import shlex
import sys
from pathlib import Path

ARGUMENTS = {  # instruction: fewest arguments
    "FROM": 1, "ARG": 1, "ENV": 1, "WORKDIR": 1, "COPY": 2, "RUN": 1, "ENTRYPOINT": 1, "CMD": 1, "LABEL": 1, "USER": 1,
}
# What a command makes that later stages copy.
MADE_BY = {
    "make package": ["build/packages"],
    "tools/libtorch": [],  # the folder that it is given
}


def instructions(text):
    """(line, instruction, the rest of it), with continued lines joined and comments left out."""
    number, start, joined = 0, 0, ""
    for line in text.splitlines():
        number += 1
        if line.lstrip().startswith("#") or not (line.strip() or joined):
            continue
        start = start if joined else number
        joined += line.rstrip().removesuffix("\\") + " "
        if not line.rstrip().endswith("\\"):
            name, _, rest = joined.strip().partition(" ")
            yield start, name, rest.strip()
            joined = ""
    if joined:
        yield start, joined.split()[0], ""


class Check:
    def __init__(self, source):
        self.source = source
        self.makefile = (source / "Makefile").read_text()
        self.ignored = [line.strip() for line in (source / ".dockerignore").read_text().splitlines()
                        if line.strip() and not line.startswith("#")]
        self.findings = []
        self.made = {}  # stage: paths that its commands and those of its base make
        self.stage = ""
        self.folder = "/"

    def find(self, line, message):
        self.findings.append(f"Dockerfile:{line}: {message}")

    def check(self, text):
        found = list(instructions(text))
        handlers = {"FROM": self.begin_stage, "WORKDIR": self.enter_folder, "COPY": self.copy, "RUN": self.run}
        if not found or found[0][1] not in ("FROM", "ARG"):
            self.find(1, "begins with no FROM")
        for line, name, rest in found:
            words = [word for word in rest.split() if not word.startswith("--")]
            if name not in ARGUMENTS:
                self.find(line, f"no instruction {name}; expected one of {', '.join(ARGUMENTS)}")
            elif len(words) < ARGUMENTS[name]:
                self.find(line, f"{name} has {len(words)} arguments, expected {ARGUMENTS[name]} or more")
            elif name in handlers:
                handlers[name](line, rest, words)
        return self.findings

    def begin_stage(self, line, _, words):
        base = words[0]
        if base not in self.made and not re.fullmatch(r"[a-z0-9./-]+:[\w.-]+", base):
            self.find(line, f"{base} is no stage above and no image with a tag")
        if len(words) == 3 and words[1].upper() == "AS":
            if words[2] in self.made:
                self.find(line, f"there are two stages {words[2]}")
            self.stage = words[2]
        elif len(words) == 1:
            self.stage = f"stage of line {line}"
        else:
            self.find(line, "expected FROM <image> AS <stage>")
        self.made[self.stage] = list(self.made.get(base, []))

    def enter_folder(self, _, rest, __):
        self.folder = rest

    def copy(self, line, rest, words):
        origin = re.search(r"--from=(\S+)", rest)
        if origin:
            if origin.group(1) not in self.made:
                return self.find(line, f"--from={origin.group(1)}: no such stage above")
            made = self.made[origin.group(1)]
            for path in words[:-1]:
                if not any(fnmatch.fnmatch(path, place + "*") for place in made):
                    self.find(line, f"{path} is made by no command of {origin.group(1)}; those make {made}")
            return None
        for path in words[:-1]:
            if path != "." and not list(self.source.glob(path)):
                self.find(line, f"COPY {path}: there is no such file")
            if any(fnmatch.fnmatch(path.rstrip("/"), pattern) for pattern in self.ignored):
                self.find(line, f"COPY {path}: .dockerignore leaves it out")
        return None

    def run(self, line, rest, _):
        for command in re.split(r"\s*(?:&&|;|\|\|)\s*", rest):
            words = shlex.split(command)
            if words[0] == "apt-get":
                if words[1] not in ("update", "install"):
                    self.find(line, f"{command}: expected apt-get update or apt-get install")
                continue
            if words[0] == "make":
                missing = [target for target in words[1:] if "=" not in target
                           and not re.search(rf"^{re.escape(target)}:", self.makefile, re.MULTILINE)]
                for target in missing:
                    self.find(line, f"{command}: the Makefile has no target {target}")
            elif not (words[0].startswith("tools/") and (self.source / words[0]).is_file()):
                self.find(line, f"{command}: neither a target of the Makefile nor a program of tools/")
            for known, paths in MADE_BY.items():
                if command.startswith(known):
                    paths = paths or [words[1]]
                    self.made[self.stage] += [path if path.startswith("/") else f"{self.folder}/{path}" for path in paths]


FAULTY = """FROM debian
COPY nowhere.txt build /x/
RUN wget something
RUN make nothing
COPY --from=later /y /z
FETCH x
COPY --from=only /opt/torch /opt
"""


def main():
    source = Path(sys.argv[1])
    findings = Check(source).check((source / "Dockerfile").read_text())
    # The check finds what is wrong here.
    planted = "\n".join(Check(source).check(FAULTY.replace("FROM debian", "FROM debian AS only")))
    for expected in ("no image with a tag", "no such file", "leaves it out", "neither a target", "no target nothing",
                     "no such stage", "no instruction FETCH", "made by no command"):
        if expected not in planted:
            findings.append(f"the check itself no longer finds: {expected}")
    print("\n".join(findings) or "Dockerfile: in order")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
