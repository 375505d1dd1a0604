# SPDX-License-Identifier: Apache-2.0
"""What training runs to known quality share: programs that are started, killed and resumed, their curves, and the results."""
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "release" / "bin"
RESULTS = ROOT / "docs" / "results"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
POINTS = 60  # of a curve
SEEDS = (1, 2, 3)
MOST_DEVIATIONS = 3  # between the means of both sides


class RunFailed(Exception):
    """A training run ended with an error, or printed no result."""


@dataclasses.dataclass
class Training:
    """What a training run reached, and the mean loss of each step over all ranks."""

    name: str
    seed: int
    validation_loss: float
    losses: list

    def curve(self, tokens_of_step):
        """Returns [tokens, mean loss of the steps since the last point]."""
        width = -(-len(self.losses) // POINTS)
        return [[min(begin + width, len(self.losses)) * tokens_of_step, round(statistics.fmean(self.losses[begin:begin + width]), 5)]
                for begin in range(0, len(self.losses), width)]


@dataclasses.dataclass
class Workload:
    """A network that Trireme and PyTorch train on the same data."""

    name: str  # of the file in docs/results
    settings: dict  # that the figures depend on
    tokens_of_step: int
    ours: Callable  # (ranks, seed, folder, *plan) -> command that writes records and checkpoints into the folder
    peer: Callable  # (seed) -> command that prints JSON with `losses` and `validation_loss` in its last line
    other_plan: tuple  # options of a run on four ranks
    tolerance: float  # of the loss under that plan, which sums in another order


def output_of(command):
    """Runs a command and returns what it prints. Raises RunFailed with the end of its messages."""
    finished = subprocess.run([str(word) for word in command], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RunFailed(f"{' '.join(map(str, command))} ended with {finished.returncode}:\n{finished.stderr[-2000:]}")
    return finished.stdout


def kill_in_the_middle(command, folder, steps):
    """Starts a command that writes checkpoints and records of steps into `folder`, and kills it after so many steps.

    Returns once all of its processes have ended. Raises RunFailed if it has written no checkpoint before.
    """
    with open(os.devnull, "w") as nowhere:
        process = subprocess.Popen([str(word) for word in command], env=ENVIRONMENT, stdout=nowhere, stderr=nowhere,
                                   start_new_session=True)
    try:
        while len(step_losses(folder, 0)) < steps:
            if process.poll() is not None:
                raise RunFailed(f"{' '.join(map(str, command))} ended with {process.returncode} before it could be killed")
            time.sleep(0.2)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    while any_process_names(folder):  # the launcher's other processes end when they notice
        time.sleep(0.2)
    if not any(path.is_dir() for path in pathlib.Path(folder).iterdir()):
        raise RunFailed(f"{folder} has no checkpoint after {steps} steps")


def any_process_names(folder):
    """Returns whether the command line of any process has the folder as a word."""
    for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(folder) in file.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue  # it has ended
    return False


def step_losses(folder, rank):
    """Returns the losses that a rank recorded, by the number of the step: steps that were repeated after a restart count once."""
    file = pathlib.Path(folder) / f"events-rank{rank}.jsonl"
    losses = {}
    if file.exists():
        for line in file.read_text().splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue  # it is being written, or the process was killed meanwhile
            if record["kind"] == "step":
                losses[record["global_step"]] = record["loss"]
    return losses


def mean_losses(folder):
    """Returns the mean over all ranks of the losses of every step."""
    ranks = [losses for rank in range(64) if (losses := step_losses(folder, rank))]
    return [statistics.fmean(losses[step] for losses in ranks if step in losses) for step in sorted(ranks[0])]


def validation_loss(output):
    found = re.search(r"validation loss ([-+.\de]+)", output)
    if not found:
        raise RunFailed(f"no validation loss in the output:\n{output[-2000:]}")
    return float(found.group(1))


def torchrun(ranks, *command):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, *command]


def train_ours(workload, name, ranks, seed, folder, *plan):
    output = output_of(workload.ours(ranks, seed, folder, *plan))
    return Training(name, seed, validation_loss(output), mean_losses(folder))


def train_peer(workload, seed):
    record = json.loads(output_of(workload.peer(seed)).splitlines()[-1])
    return Training("PyTorch, DDP", seed, record["validation_loss"], record["losses"])


def problems_of(trainings, tolerance):
    """Returns what is not as it should be."""
    by_name = {}
    for each in trainings:
        by_name.setdefault(each.name, {})[each.seed] = each
    first = by_name["Trireme"][SEEDS[0]]
    problems = []
    if by_name["Trireme, killed and resumed"][SEEDS[0]].losses != first.losses:
        problems.append("a run that was killed and resumed has other losses")
    other = by_name["Trireme, resumed under another plan"][SEEDS[0]]
    if not abs(other.validation_loss - first.validation_loss) <= tolerance:
        problems.append("a run that was resumed under another plan has another loss")
    sides = [[each.validation_loss for each in by_name[name].values()] for name in ("Trireme", "PyTorch, DDP")]
    deviation = max(statistics.stdev(side) for side in sides)
    if not abs(statistics.fmean(sides[0]) - statistics.fmean(sides[1])) <= MOST_DEVIATIONS * deviation:
        problems.append("the losses of Trireme and PyTorch differ by more than the noise of seeds")
    return problems


def compare(workload):
    """Trains with three seeds on both sides; then a run is killed and resumed, and another one resumed on four ranks under another plan.

    Prints a table and writes the results. Raises SystemExit if a loss is not as it should be.
    """
    trainings = []
    with tempfile.TemporaryDirectory() as scratch:
        def note(training):
            trainings.append(training)
            print(f"{training.name}, seed {training.seed}: {training.validation_loss:.5f}", flush=True)

        for seed in SEEDS:
            note(train_ours(workload, "Trireme", 2, seed, pathlib.Path(scratch) / f"seed{seed}"))
            note(train_peer(workload, seed))
        steps = len(trainings[0].losses)
        for name, ranks, plan in (("Trireme, killed and resumed", 2, ()),
                                  ("Trireme, resumed under another plan", 4, workload.other_plan)):
            folder = pathlib.Path(scratch) / "killed"
            shutil.rmtree(folder, ignore_errors=True)
            kill_in_the_middle(workload.ours(2, SEEDS[0], folder), folder, steps * 5 // 8)
            note(train_ours(workload, name, ranks, SEEDS[0], folder, *plan))
    print(table(trainings))
    if problems := problems_of(trainings, workload.tolerance):
        raise SystemExit("\n".join(problems))
    write_results(workload, trainings)


def write_results(workload, trainings):
    """Writes docs/results/<name>.json, with what the figures depend on."""
    sys.path.insert(0, str(ROOT / "bench"))
    import run  # bench/run.py

    settings = workload.settings | {"machine": run.machine()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    runs = [{"name": each.name, "seed": each.seed, "validation_loss": round(each.validation_loss, 6),
             "curve": each.curve(workload.tokens_of_step)} for each in trainings]
    lines = ",\n".join("    " + json.dumps(run) for run in runs)
    (RESULTS / f"{workload.name}.json").write_text(
        f'{{\n  "settings": {json.dumps(settings)},\n  "runs": [\n{lines}\n  ]\n}}\n')


def table(trainings):
    """Returns rows of Markdown: the validation loss of every training run, by seed, with mean and deviation where there are several."""
    seeds = sorted({each.seed for each in trainings})
    lines = ["| training run | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean | deviation |",
             "|---|" + "---|" * (len(seeds) + 2)]
    for name in dict.fromkeys(each.name for each in trainings):
        by_seed = {each.seed: each.validation_loss for each in trainings if each.name == name}
        cells = [f"{by_seed[seed]:.4f}" if seed in by_seed else "" for seed in seeds]
        if len(by_seed) > 1:
            cells += [f"{statistics.fmean(by_seed.values()):.4f}", f"{statistics.stdev(by_seed.values()):.4f}"]
        else:
            cells += ["", ""]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
