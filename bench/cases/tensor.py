# SPDX-License-Identifier: Apache-2.0
"""What distributed tensors cost: added time per operator and a small MLP, beside plain tensors and PyTorch's DTensor.

Two ranks of one thread, [8, 64] on each of a tensor cut along its rows; no operator but the redistribution communicates.
Added times are those on distributed tensors less those on plain ones, in the same program.
"""
from . import BIN, ROOT, Comparison, Program, Sweep, torchrun, trireme_run

EQUAL_TERMS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
OPERATORS = ("add", "mm", "sum", "softmax", "layer_norm", "view", "in-place multiply", "cat", "detach",
             "foreach add of 100")
WHOLE = ("MLP", "foreach add of 100")


def microseconds(record, _):
    return {name: 1e6 * seconds for name, seconds in record.items()}


def added(name):
    return Comparison(case=f"{name}, 2 ranks", metric="added_time", ours="ours", peer="dtensor", peer_name="dtensor",
                      ours_key=f"{name}, distributed", peer_key=f"{name}, distributed",
                      ours_less=("ours", f"{name}, plain"), peer_less=("dtensor", f"{name}, plain"))


def against_plain(name):
    return Comparison(case=f"{name}, 2 ranks", ours="ours", peer="ours", peer_name="plain",
                      ours_key=f"{name}, distributed", peer_key=f"{name}, plain")


SWEEPS = [
    Sweep(
        name="operators on distributed tensors",
        programs={
            "ours": Program(trireme_run(2, BIN / "bench_tensor"), microseconds, EQUAL_TERMS),
            "dtensor": Program(torchrun(2, ROOT / "bench/peers/dtensor.py"), microseconds, EQUAL_TERMS),
        },
        comparisons=(
            *(added(name) for name in (*OPERATORS, "all-gather")),
            *(against_plain(name) for name in WHOLE),
            Comparison(case="MLP, 2 ranks", ours="ours", peer="dtensor", peer_name="dtensor",
                       ours_key="MLP, distributed", peer_key="MLP, distributed"),
        ),
        smoke=("--calls", "20", "--samples", "3"),
    ),
]
