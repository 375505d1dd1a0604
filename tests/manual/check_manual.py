# SPDX-License-Identifier: Apache-2.0
"""Compares man pages and completions of shells with what the program's own --help lists.

check_manual.py man|bash|zsh|fish <the program trireme>

Every command and option that --help shows has to be in the man pages, and has to be offered by the shell itself, which
runs here. Ends with 77 (skipped) where the shell is not installed.
"""
import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

SKIPPED = 77
# Line before the cursor, what is offered among others, what is not.
CASES = [
    ("trireme ", ["run", "checkpoint", "doctor", "completion"], ["man-pages", "--version", "verify"]),
    ("trireme ch", ["checkpoint"], ["run"]),
    ("trireme checkpoint ", ["inspect", "verify", "prune"], ["run", "comm"]),
    ("trireme checkpoint prune --keep", ["--keep-last", "--keep-best", "--keep-every"], ["--dry-run"]),
    ("trireme run --bind ", ["core", "none"], ["first", "all"]),
    ("trireme run -n 2 --output ", ["first", "all", "none"], ["core"]),
    ("trireme run --output=", ["first", "all", "none"], ["core"]),
    ("trireme run --bind core --out", ["--output"], ["--bind"]),
    ("trireme bench comm --dtype ", ["float32", "bfloat16"], ["all_reduce"]),
    ("trireme schedule ", ["1f1b", "zb-v", "all"], ["run"]),
    ("trireme completion ", ["bash", "fish", "zsh"], ["run"]),
    ("trireme run -n ", [], ["afile.txt", "core", "run"]),
    ("trireme report --output ", ["afile.txt"], ["run"]),
    ("trireme run -n 2 ./apro", ["aprogram"], ["--bind"]),
    ("trireme run -n 2 -- ./aprogram afi", ["afile.txt"], ["run"]),
    ("trireme run ./aprogram --bi", [], ["--bind"]),
]


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def commands_and_options(program, words=()):
    """(words of a command, its options, names of the commands below it), for it and all below, off --help."""
    text = run(program, *words, "--help")
    options, below, section = [], [], ""
    for line in text.splitlines():
        if re.match(r"\S.*:$", line):
            section = line
        elif section == "Options:" and re.match(r"  -", line):
            options += line.split()[0].split(",")
        elif section == "Subcommands:" and re.match(r"  \w", line):
            below.append(line.split()[0])
    yield list(words), options, below
    for name in below:
        yield from commands_and_options(program, [*words, name])


def check_man(program, commands, folder):
    run(program, "man-pages", folder / "man")
    pages = {path.name: path for path in (folder / "man").iterdir()}
    expected = {"-".join(["trireme", *words]) + ".1" for words, _, _ in commands if len(words) < 2}
    findings = [f"pages are {sorted(pages)}, expected {sorted(expected)}"] if set(pages) != expected else []
    for words, options, below in commands:
        page = pages["-".join(["trireme", *words[:1]]) + ".1"]
        text = page.read_text().replace("\\-", "-")
        findings += [f"{page.name}: no option {name}" for name in options if f"\\fB{name}\\fR" not in text]
        findings += [f"{page.name}: no command {name}" for name in below
                     if f"trireme-{name} (1)" not in text and f".SS trireme {words[0]} {name}" not in text]
    for page in pages.values():
        shown = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True, check=False,
                               env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"})
        if shown.returncode or shown.stderr or "SYNOPSIS" not in shown.stdout:
            findings.append(f"man --warnings -l {page.name}: {shown.stderr or 'shows no page'}")
        if shutil.which("mandoc"):
            lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True, check=False)
            # The version stands for a date.
            findings += [line for line in lint.stdout.splitlines() if "missing date" not in line]
    return findings


def check_shell(complete, commands):
    """`complete` takes what is typed, and returns the text of what the shell offers."""
    findings = []
    cases = list(CASES)
    for words, options, below in commands:
        line = " ".join(["trireme", *words])
        cases.append((line + " -", options, []))
        cases.append((line + " ", below, []))
    for line, expected, unexpected in cases:
        offered = complete(line)

        def is_offered(word):
            return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", offered) is not None

        findings += [f"'{line}' does not offer {word}; it offers: {offered}" for word in expected if not is_offered(word)]
        findings += [f"'{line}' offers {word}; it offers: {offered}" for word in unexpected if is_offered(word)]
    return findings


BASH = """
source "$1"
complete -p trireme >/dev/null || exit 1
while IFS= read -r line; do
    IFS=' ' read -r -a COMP_WORDS <<<"${line//=/ = }"
    if [[ $line == *[\\ =] ]]; then COMP_WORDS+=(""); fi
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$line COMP_POINT=${#line}
    _trireme
    printf '%s ' "${COMPREPLY[@]}"; printf '\\n'
done
"""


def bash(program, folder):
    script = folder / "trireme.bash"
    script.write_text(run(program, "completion", "bash"))

    def complete(line):
        return run("bash", "-c", BASH, "bash", script, input=line + "\n", cwd=folder)

    return complete


def fish(program, folder):
    script = folder / "trireme.fish"
    script.write_text(run(program, "completion", "fish"))
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}

    def complete(line):
        offered = run("fish", "--no-config", "-c", f"source {script}; complete -C '{line}'", cwd=folder, env=environment)
        # Words alone: descriptions speak of other options. A value behind `=` is offered with the option.
        return " ".join(word.split("\t")[0].replace("=", " ") for word in offered.splitlines())

    return complete


class Terminal:
    """An interactive zsh, which is typed to and read. It ends with its terminal."""

    def __init__(self, folder):
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "HOME": str(folder), "TERM": "xterm", "PS1": "", "LC_ALL": "C.UTF-8"})
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", 200, 300, 0, 0))
        self.count = 0
        self.answer(f"PS1='prompt'\\>; unsetopt prompt_cr prompt_sp; LISTMAX=1000; fpath=({folder} $fpath); autoload -Uz compinit; "
                    f"compinit -u -d {folder}/dump; zstyle ':completion:*' verbose no; bindkey '^X' kill-buffer\n")

    def answer(self, typed):
        """Types, and returns all that is shown until a command behind it has run. The shell has to show its prompt before
        it is typed to again: until then the terminal itself takes Control-D."""
        self.count += 1
        os.write(self.file, f"{typed}\x18print end-$(({self.count} + 1000))\n".encode())
        text, deadline = "", time.monotonic() + 60
        while "prompt>" not in text.partition(f"end-{self.count + 1000}")[2]:
            if not select.select([self.file], [], [], max(0, deadline - time.monotonic()))[0]:
                raise SystemExit(f"zsh did not answer to {typed!r}; it showed: {text}")
            text += os.read(self.file, 65536).decode(errors="replace")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r|\x07", " ", text.split("print end-")[0])


def zsh(program, folder):
    (folder / "_trireme").write_text(run(program, "completion", "zsh"))
    terminal = Terminal(folder)

    def complete(line):
        # Control-D lists without completing. What was typed is shown too.
        return terminal.answer(line + "\x04").replace(line.strip(), "")

    return complete


def main():
    what, program = sys.argv[1], Path(sys.argv[2]).resolve()
    if not shutil.which(what):
        print(f"{what} is not installed: skipped")
        return SKIPPED
    commands = list(commands_and_options(program))
    assert len(commands) > 10, commands  # else --help was not understood
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "afile.txt").touch()
        (folder / "aprogram").touch(mode=0o755)
        if what == "man":
            findings = check_man(program, commands, folder)
        else:
            findings = check_shell({"bash": bash, "fish": fish, "zsh": zsh}[what](program, folder), commands)
    print("\n".join(findings) or f"{what}: {len(commands)} commands are in order")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
