# SPDX-License-Identifier: Apache-2.0
"""A training step of ResNet-18 on 28x28 images, 32 to a rank, two ranks of one thread, shared memory against Gloo.

Each program prints the median of its steps after warming up, so that one run is one sample. Data are random and made
before; forward, loss, backward, average of the gradients and SGD with momentum are timed.
"""
from . import BIN, ROOT, Case, Program, torchrun, trireme_run

# Tensors have malloc's memory, as in PyTorch; ours would take a pool by itself.
EQUAL_TERMS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
               "TRIREME_TENSOR_MEMORY": "libtorch"}
SMOKE = ("--steps", "1", "--warm-up", "1")


def milliseconds(record, _):
    return 1e3 * record["step_time"]


def milliseconds_per_sample(record, _):
    return 1e3 * record["step_time"] / record["samples"]


def ours(figure, *arguments, num_ranks=2):
    return Program(trireme_run(num_ranks, BIN / "bench_step", *arguments), figure, EQUAL_TERMS)


CASES = [
    Case(
        case="resnet18 28x28, 2 ranks x 32",
        metric="step_time",
        unit="ms",
        ours=ours(milliseconds),
        peer=Program(torchrun(2, ROOT / "bench/peers/ddp_step.py"), milliseconds, EQUAL_TERMS),
        peer_name="ddp",
        smoke=SMOKE,
    ),
    Case(
        case="resnet18 28x28, 2 ranks x 32, with and without communication",
        metric="communication_time",
        unit="ms",
        ours=ours(milliseconds),
        peer=ours(milliseconds, "--no-communication"),
        peer_name="no_communication",
        smoke=SMOKE,
    ),
    # The same work in one process with one thread, in both of its forms: all 64 at once, and the same two batches of 32.
    *(
        Case(
            case=f"resnet18 28x28, 2 ranks x 32 against 1 process x {form}, per sample",
            metric="sample_time",
            unit="ms",
            ours=ours(milliseconds_per_sample),
            peer=Program((BIN / "bench_step", *arguments), milliseconds_per_sample, EQUAL_TERMS),
            peer_name="one_process",
            smoke=SMOKE,
        )
        for form, arguments in (("64", ("--batch", "64")), ("2 x 32", ("--batches", "2")))
    ),
]
