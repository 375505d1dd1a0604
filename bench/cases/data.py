# SPDX-License-Identifier: Apache-2.0
"""Pipelines of images against PyTorch's DataLoader in Python and in C++ and MindSpore's dataset, and a training that waits for none.

`cifar10` is shuffled, random crop to 32 with 4 of padding, random horizontal flip, resize to 224, rescale, normalize,
batch 32; `fashion_mnist` is shuffled, normalize, batch 64. All read the same uint8 images from memory and hand out float32
[N, C, H, W]; the consumer does nothing with them. One worker or two prepare up to four batches ahead, one thread each; the
peers' calls of LibTorch use one thread.

`a core` is the time that all threads and processes of a program, the consumer's included, use cores for one sample: its
inverse is samples per second and core. The other record is time by the clock. The peers take single images as torchvision
does; `batches by hand` is the fastest we could write with their libraries, a whole batch in each operation wherever nothing is random.

`a step of ResNet-50` trains on batches of the first pipeline, with two threads: the longest time that next() takes once
the first batch is there, against the time of a step.

`cd bench && ../build/python/bin/python -m cases.data` compares the values that all of them give without what is random.
"""
import gzip
import json
import subprocess
import sys

from . import BIN, PYTHON, ROOT, Comparison, Program, Sweep

DATA = ROOT / "build" / "bench-data"
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
FOLDERS = {"cifar10": str(DATA / "cifar10"), "fashion_mnist": FASHION_MNIST}
MINDSPORE = ROOT / "build" / "mindspore" / "bin" / "python"
EQUAL_TERMS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
WORKERS = (1, 2)
SECONDS = 1.5
TRAIN_STEPS = 2
SMOKE = ("--seconds", "0.2")


def prepare():
    """Writes the images in the form of CIFAR-10, and Fashion-MNIST unpacked for MindSpore, once."""
    cifar10, unpacked = DATA / "cifar10", DATA / "fashion_mnist"
    if not (cifar10 / "test_batch.bin").exists():
        subprocess.run([BIN / "trireme", "data", "fashion-mnist-to-cifar10", "--from", FASHION_MNIST, "--to", cifar10],
                       check=True, stdout=subprocess.DEVNULL)
    unpacked.mkdir(parents=True, exist_ok=True)
    for kind in ("images-idx3", "labels-idx1"):
        file = unpacked / f"train-{kind}-ubyte"
        if not file.exists():
            with gzip.open(f"{FASHION_MNIST}/train-{kind}-ubyte.gz") as packed:
                file.write_bytes(packed.read())


def figures(record, _):
    """Microseconds a sample."""
    return {"core": 1e6 * record["core_seconds"] / record["samples"], "clock": 1e6 * record["seconds"] / record["samples"]}


def commands(pipeline):
    """How to run each program on a pipeline."""
    form = ("--form", "batches")
    torch_peer = (PYTHON, ROOT / "bench/peers/data_torch.py")
    all_of_them = {
        "ours": (BIN / "bench_data",),
        "torch_dataloader": torch_peer,
        "torch_dataloader by hand": (*torch_peer, *form),
        "libtorch_dataloader": (BIN / "bench_data_libtorch",),
        "libtorch_dataloader by hand": (BIN / "bench_data_libtorch", *form),
    }
    if MINDSPORE.exists():
        all_of_them["mindspore"] = (MINDSPORE, ROOT / "bench/peers/data_mindspore.py")
    folders = {"mindspore": str(DATA / "fashion_mnist")} if pipeline == "fashion_mnist" else {}
    return {name: (*command, "--pipeline", pipeline, "--data", folders.get(name, FOLDERS[pipeline]))
            for name, command in all_of_them.items()}


def sweep(pipeline, workers):
    programs = {name: Program((*command, "--workers", workers, "--seconds", SECONDS), figures, EQUAL_TERMS)
                for name, command in commands(pipeline).items()}
    comparisons = []
    for name in list(programs)[1:]:
        peer, _, manual = name.partition(" ")
        case = f"{pipeline}, {workers} worker{'s' if workers > 1 else ''}" + (f", batches {manual}" if manual else "")
        comparisons += [Comparison(f"{case}, a core", "ours", name, peer, "core", "core", metric="sample_time"),
                        Comparison(case, "ours", name, peer, "clock", "clock", metric="sample_time")]
    return Sweep(f"{pipeline}, {workers}", programs, tuple(comparisons), SMOKE)


def training():
    """The times of a step in milliseconds."""
    program = Program((*commands("cifar10")["ours"], "--train", TRAIN_STEPS),
                      lambda record, _: {name: 1e3 * record[name] for name in ("wait", "step")},
                      {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"})
    return Sweep("a step of ResNet-50", {"training": program}, (
        Comparison("a step of ResNet-50 waits for data", "training", "training", "plain", "wait", "step",
                   metric="stall_time", unit="ms"),), None)


def versions():
    """Of the peers, for the description of the machine."""
    if not MINDSPORE.exists():
        return {}
    run = subprocess.run([MINDSPORE, "-c", "import importlib.metadata as m; print(m.version('mindspore'))"],
                         capture_output=True, text=True, check=False)
    return {"mindspore": run.stdout.strip()}


def check():
    """Compares the mean of ten batches of every program with ours; returns how many differ."""
    failures = 0
    for pipeline, elements in (("cifar10", 32 * 3 * 224 * 224), ("fashion_mnist", 64 * 784)):
        found = {}
        for name, command in commands(pipeline).items():
            run = subprocess.run([*map(str, command), "--check"], check=True, capture_output=True, text=True)
            found[name] = json.loads([line for line in run.stdout.splitlines() if line.startswith("{")][-1])
        for name, record in found.items():
            # Values are within one unit of a pixel, 0.02, and rounded by each library in its own way when resized.
            apart = max(abs(a - b) / elements for a, b in zip(record["sums"], found["ours"]["sums"], strict=True))
            differs = apart > (2e-3 if pipeline == "cifar10" else 1e-5) or record["labels"] != found["ours"]["labels"]
            failures += differs
            print(f"{pipeline}, {name}: means differ by {apart:.1e}" + (": TOO MUCH, or other labels" if differs else ""))
    return failures


prepare()
if not MINDSPORE.exists():
    print("data: no MindSpore (tools/setup says why in build/mindspore.log): left out", file=sys.stderr)
SWEEPS = [*(sweep(pipeline, workers) for pipeline in FOLDERS for workers in WORKERS), training()]
if __name__ == "__main__":
    sys.exit(1 if check() else 0)
