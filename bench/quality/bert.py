# SPDX-License-Identifier: Apache-2.0
"""Pre-trains a BERT of 4 layers on pairs of sentences of a real text, in Trireme and in PyTorch, with three seeds each.

The text is that of Debian's package `fortunes`, each of which is a document. Both sides read the same pairs with the same masked tokens,
and have the same sizes, batches, dropout, AdamW and schedule on two ranks; weights, dropout and the order of pairs come from generators of
their own. One run of Trireme is killed in the middle and resumed, another one is resumed on four ranks under another plan. Writes
docs/results/bert.json and prints a table.

usage: bert.py [--epochs N]
"""
import argparse
import pathlib
import tempfile

import fortunes
import runs

SEQUENCE = 128
VOCABULARY = 4000
SIZES = {"hidden": 128, "layers": 4, "heads": 4, "batch": 16}  # the batch is that of a rank
LEARNING_RATE = 1e-3
SAVE_EVERY = 100  # steps


def make_pairs(folder):
    """Makes the pairs in `folder`. In the files a line with a percent sign ends a text, in prose two empty lines end a document."""
    texts = []
    for file in fortunes.files():
        texts.append(folder / f"{file.name}.txt")
        texts[-1].write_text(file.read_text(encoding="utf-8").replace("\n%\n", "\n\n\n"), encoding="utf-8")
    data = folder / "pairs"
    runs.output_of([runs.BIN / "trireme", "data", "bert", "--prose", "--static", "--sequence", SEQUENCE, "--vocabulary-size", VOCABULARY,
                    "--seed", 1, "--to", data, "--text", *texts])
    return data


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    epochs = parser.parse_args().epochs
    with tempfile.TemporaryDirectory() as scratch:
        data = make_pairs(pathlib.Path(scratch))

        def options(seed):
            sizes = [word for name, value in SIZES.items() for word in (f"--{name}", value)]
            return ["--data", data, *sizes, "--epochs", epochs, "--learning-rate", LEARNING_RATE, "--seed", seed]

        def ours(ranks, seed, folder, *plan):
            return [runs.BIN / "trireme", "run", "-n", ranks, "--", runs.BIN / "bert", *options(seed), "--run", folder,
                    "--save-every", SAVE_EVERY, *plan]

        runs.compare(runs.Workload(
            name="bert",
            settings=SIZES | {"sequence": SEQUENCE, "vocabulary": VOCABULARY, "learning_rate": LEARNING_RATE, "epochs": epochs} |
            fortunes.description(),
            tokens_of_step=2 * SIZES["batch"] * SEQUENCE,
            ours=ours,
            peer=lambda seed: runs.torchrun(2, runs.ROOT / "bench/quality/bert_torch.py", *options(seed)),
            other_plan=("--plan-set", "mesh=data=2,tensor=2", "zero_level=1"),
            tolerance=0.01))


if __name__ == "__main__":
    main()
