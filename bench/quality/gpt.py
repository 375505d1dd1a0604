# SPDX-License-Identifier: Apache-2.0
"""Trains a GPT of 6 layers on the characters of a real text, in Trireme and in PyTorch, with three seeds each.

The text is that of Debian's package `fortunes`. Both sides have the same sizes, batches, AdamW and schedule on two ranks; weights and
the order of samples come from generators of their own. One run of Trireme is killed in the middle and resumed, another one is resumed
on four ranks under another plan. Writes docs/results/gpt.json and prints a table.

usage: gpt.py [--epochs N]
"""
import argparse
import hashlib
import json
import pathlib
import shutil
import statistics
import tempfile

import runs

TEXT = pathlib.Path("/usr/share/games/fortunes")
SIZES = {"sequence": 128, "hidden": 128, "layers": 6, "heads": 4, "batch": 16}
LEARNING_RATE = 1e-3
SAVE_EVERY = 200  # steps
SEEDS = (1, 2, 3)
OTHER_PLAN = ("--plan-set", "mesh=data=2,tensor=2", "zero_level=1")
# A change of plan sums in another order. A seed changes the loss by about 0.005.
TOLERANCE_OF_ANOTHER_PLAN = 0.003
MOST_DEVIATIONS = 3  # between the means of both sides


def options(files, epochs, seed):
    sizes = [word for name, value in SIZES.items() for word in (f"--{name}", value)]
    return ["--text", *files, *sizes, "--epochs", epochs, "--learning-rate", LEARNING_RATE, "--seed", seed]


def char_gpt(ranks, files, epochs, seed, folder, *plan):
    return [runs.BIN / "trireme", "run", "-n", ranks, "--", runs.BIN / "char_gpt", *options(files, epochs, seed), "--dropout", 0,
            "--write", 1, "--run", folder, "--save-every", SAVE_EVERY, *plan]


def ours(name, command, seed, folder):
    output = runs.output_of(command)
    return runs.Training(name, seed, runs.validation_loss(output), runs.mean_losses(folder))


def pytorch(files, epochs, seed):
    record = json.loads(runs.output_of(runs.torchrun(2, runs.ROOT / "bench/quality/gpt_torch.py", *options(files, epochs, seed)))
                        .splitlines()[-1])
    return runs.Training("PyTorch, DDP", seed, record["validation_loss"], record["losses"])


def check(trainings):
    """Returns what is not as it should be."""
    by_name = {}
    for each in trainings:
        by_name.setdefault(each.name, {})[each.seed] = each
    first = by_name["Trireme"][SEEDS[0]]
    problems = []
    if by_name["Trireme, killed and resumed"][SEEDS[0]].losses != first.losses:
        problems.append("a run that was killed and resumed has other losses")
    other = by_name["Trireme, resumed under another plan"][SEEDS[0]]
    if not abs(other.validation_loss - first.validation_loss) <= TOLERANCE_OF_ANOTHER_PLAN:
        problems.append("a run that was resumed under another plan has another loss")
    sides = [[each.validation_loss for each in by_name[name].values()] for name in ("Trireme", "PyTorch, DDP")]
    deviation = max(statistics.stdev(side) for side in sides)
    if not abs(statistics.fmean(sides[0]) - statistics.fmean(sides[1])) <= MOST_DEVIATIONS * deviation:
        problems.append("the losses of Trireme and PyTorch differ by more than the noise of seeds")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    epochs = parser.parse_args().epochs
    files = sorted(path for path in TEXT.glob("*") if path.suffix == "" and path.is_file() and not path.is_symlink())
    if not files:
        raise SystemExit(f"{TEXT} has no texts; install Debian's package fortunes")
    trainings = []
    with tempfile.TemporaryDirectory() as scratch:
        def note(training):
            trainings.append(training)
            print(f"{training.name}, seed {training.seed}: {training.validation_loss:.5f}", flush=True)

        for seed in SEEDS:
            folder = pathlib.Path(scratch) / f"seed{seed}"
            note(ours("Trireme", char_gpt(2, files, epochs, seed, folder), seed, folder))
            note(pytorch(files, epochs, seed))
        steps = len(trainings[0].losses)
        for name, ranks, plan in (("Trireme, killed and resumed", 2, ()), ("Trireme, resumed under another plan", 4, OTHER_PLAN)):
            folder = pathlib.Path(scratch) / "killed"
            shutil.rmtree(folder, ignore_errors=True)
            runs.kill_in_the_middle(char_gpt(2, files, epochs, SEEDS[0], folder), folder, steps * 5 // 8)
            note(ours(name, char_gpt(ranks, files, epochs, SEEDS[0], folder, *plan), SEEDS[0], folder))
    print(runs.table(trainings))
    if problems := check(trainings):
        raise SystemExit("\n".join(problems))
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    settings = SIZES | {"learning_rate": LEARNING_RATE, "epochs": epochs, "texts": [path.name for path in files],
                        "characters": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    runs.write_results("gpt", settings, trainings, SIZES["batch"] * SIZES["sequence"])


if __name__ == "__main__":
    main()
