#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Disturbs trainings at random, and demands that each one ends right.

tests/chaos/chaos.py --trireme PROGRAM --training PROGRAM [--faults N] [--seed N]

A training is run by `trireme run --restarts` with a random plan on two to four ranks. Faults come from inside (a rank kills itself, stops
itself, throws or exits before a random step, or damages the state that was kept) and from outside (a random process of the run is killed or
stopped at a random moment: a rank, the launcher's two processes, or the one that serves the store; or the memory for the state is full).

Every run must end with the bits of the undisturbed one, or with an error that names a cause where no restart can help. No process and no file
in /dev/shm may be left. Prints the seed, by which plans and faults from inside repeat (faults from outside hit what runs at that moment), and
each run that was wrong.
"""
import argparse
import collections
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PLANS = {"data": (2, 3, 4), "zero1": (2, 3), "zero2": (2, 4), "zero3": (2, 3), "tensor": (2,), "pipe": (2,), "hybrid": (4,), "loop": (2, 3)}
LAST_STEP = 17  # on four ranks a training has 18 steps
DEADLINE_S = 120  # of one run; only a run that hangs takes so long
# Ends that no restart can help, and what the launcher must say.
ENDS = {
    "kill front": "",
    "kill supervisor": "",
    "kill store": "store",
}


class Process:
    """A process below the launcher, as /proc shows it."""

    def __init__(self, pid):
        self.pid = pid
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        fields = stat[stat.rindex(")") + 2:].split()
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def processes():
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            found.append(Process(int(entry)))
        except (OSError, ValueError):  # it has ended meanwhile
            continue
    return found


def below(pid):
    """The processes below one, and itself."""
    children = collections.defaultdict(list)
    for process in processes():
        children[process.parent].append(process)
    found, open_ends = [], [pid]
    while open_ends:
        for process in children[open_ends.pop()]:
            found.append(process)
            open_ends.append(process.pid)
    return found


def targets(front, training):
    """The processes of a run by what they are."""
    by_kind = collections.defaultdict(list)
    by_kind["front"] = [front]
    for process in below(front):
        if process.words[0].decode().endswith(training.name):
            by_kind["rank"].append(process.pid)
        elif process.parent == front:
            by_kind["supervisor"].append(process.pid)
        else:
            by_kind["store"].append(process.pid)
    return by_kind


class Chaos:
    def __init__(self, options):
        self.options = options
        self.random = random.Random()
        self.runs = 0
        self.expected = {}
        self.counts = collections.Counter()
        self.wrong = []
        self.files_before = set(os.listdir("/dev/shm"))

    def command(self, plan, ranks, restarts, faults=(), folder=None):
        words = [self.options.trireme, "run", "-n", str(ranks), "--output", "all"]
        if restarts:
            words += ["--restarts", str(restarts), "--recovery-seconds", "0", "--timeout", "20", "--grace", "1"]
        if folder:
            words += ["--recovery-dir", folder]
        return [str(word) for word in (*words, "--", self.options.training, plan, *faults)]

    def expected_of(self, plan, ranks):
        """The last line of an undisturbed run."""
        if (plan, ranks) not in self.expected:
            run = subprocess.run(self.command(plan, ranks, 0), capture_output=True, text=True, check=True,
                                 timeout=DEADLINE_S)
            self.expected[plan, ranks] = result_of(run.stdout)
        return self.expected[plan, ranks]

    def inner_faults(self, ranks):
        faults = []
        for attempt in range(self.random.randint(1, 3)):
            what = self.random.choices(("kill", "throw", "exit", "stop", "damage"), (6, 3, 3, 1, 1))[0]
            faults.append((f"{attempt}:{self.random.randint(1, LAST_STEP)}:{self.random.randrange(ranks)}:{what}", what))
        return faults

    def disturb(self, run):
        """Kills or stops a process of the run from outside; returns what it did."""
        kind, sign = self.random.choices(
            (("rank", signal.SIGKILL), ("rank", signal.SIGSTOP), ("rank", signal.SIGSEGV), ("front", signal.SIGKILL),
             ("supervisor", signal.SIGKILL), ("store", signal.SIGKILL)), (8, 2, 3, 1, 1, 1))[0]
        time.sleep(self.random.uniform(0, 0.5))
        candidates = targets(run.pid, self.options.training)[kind]
        if not candidates:
            return None
        try:
            os.kill(self.random.choice(candidates), sign)
        except ProcessLookupError:
            return None
        return f"{'stop' if sign == signal.SIGSTOP else 'kill'} {kind}"

    def run_once(self):
        self.runs += 1
        self.random.seed(f"{self.options.seed}, run {self.runs}")
        plan = self.random.choice(list(PLANS))
        ranks = self.random.choice(PLANS[plan])
        expected = self.expected_of(plan, ranks)
        inner = self.inner_faults(ranks) if self.random.random() < 0.6 else []
        is_full = not inner and self.random.random() < 0.1
        small = tempfile.mkdtemp(prefix="trireme-chaos-") if is_full else None
        command = self.command(plan, ranks, 20, [text for text, _ in inner], small)
        done = [what for _, what in inner]
        with tempfile.TemporaryFile("w+") as output:
            if is_full:  # a folder that holds 16 KiB, in a mount namespace of the run
                done.append("full memory")
                command = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=16k none {small} && exec "$@"', "sh", *command]
            run = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            if not inner and not is_full:
                done = [what for what in (self.disturb(run) for _ in range(self.random.randint(1, 3))) if what]
            try:
                code = run.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                code = "hung"
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
            output.seek(0)
            text = output.read()
        if small:
            shutil.rmtree(small, ignore_errors=True)
        self.counts.update(done)
        reason = self.find_wrong(code, text, expected, done)
        left = self.find_left(run.pid)
        if reason or left:
            self.wrong.append(f"{plan} on {ranks} ranks, {', '.join(done)}: {reason or left}\n  {' '.join(command)}\n{text[-5000:]}")
        return len(done)

    def find_wrong(self, code, text, expected, done):
        """What is wrong with the end of a run; None if nothing is."""
        if code == "hung":
            return f"did not end within {DEADLINE_S} s"
        ends = [what for what in done if what in ENDS]
        if code == 0:
            if result_of(text) == expected:
                return None
            return f"ended with '{result_of(text)}', expected '{expected}'"
        if not ends:
            return f"ended with code {code}"
        if any(ENDS[end] and ENDS[end] not in text for end in ends) and "failed first" not in text:
            return f"ended with code {code} without a cause"
        return None

    def find_left(self, pid):
        """What a run has left; a process that was killed may take a moment to end."""
        for _ in range(100):
            processes_left = [process.pid for process in processes() if process.session == pid]
            files_left = sorted(set(os.listdir("/dev/shm")) - self.files_before)
            if not processes_left and not files_left:
                return None
            time.sleep(0.1)
        return f"left {processes_left} {files_left}"


def result_of(text):
    found = re.search(r"result ([0-9a-f]{16})", text)
    return found.group(1) if found else "nothing"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--trireme", type=pathlib.Path, required=True, help="the program trireme")
    parser.add_argument("--training", type=pathlib.Path, required=True, help="restarted_training_program of the tests")
    parser.add_argument("--faults", type=int, default=1000, help="how many in all (default: 1000)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="default: a new one")
    options = parser.parse_args()
    options.trireme = options.trireme.resolve()
    options.training = options.training.resolve()
    print(f"seed {options.seed}", flush=True)
    chaos = Chaos(options)
    faults = 0
    while faults < options.faults and not chaos.wrong:
        faults += chaos.run_once()
    for wrong in chaos.wrong:
        print(f"WRONG: {wrong}")
    kinds = ", ".join(f"{count} {what}" for what, count in sorted(chaos.counts.items()))
    print(f"{faults} faults in {chaos.runs} runs ({kinds}): {len(chaos.wrong)} wrong")
    return 1 if chaos.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
