# SPDX-License-Identifier: Apache-2.0
"""What distributed tensors cost: added time per operator and whole models, beside plain tensors and PyTorch's DTensor.

Two ranks of one thread, [8, 64] on each of a tensor cut along its rows; none of these operators communicates. Added times
are those on distributed tensors less those on plain ones, by turns in the same program. Redistributions are compared with
their collective by itself, into a new tensor too. The layer of a GPT is that of models/gpt.h, [4, 128, 256], 8 heads.
"""
from . import BIN, ROOT, Comparison, Program, Sweep, torchrun, trireme_run

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
TWO_THREADS = {**ONE_THREAD, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
OPERATORS = ("add", "mm", "sum", "softmax", "layer_norm", "view", "in-place multiply", "cat", "detach",
             "foreach add of 100", "foreach add in place of 100")
WHOLE = ("MLP", "Adam over 100", "foreach add of 100", "foreach add in place of 100")
MOVES = tuple(f"{move}, {size}" for size in ("1 KiB", "64 KiB", "4 MiB")
              for move in ("Shard(0) to Replicate", "Shard(1) to Replicate", "Partial to Replicate",
                           "Partial to Shard(0)"))


def microseconds(record, _):
    return {name: 1e6 * seconds for name, seconds in record.items()}


def milliseconds(record, _):
    return {name: 1e3 * seconds for name, seconds in record.items()}


def added(name):
    return Comparison(case=f"{name}, 2 ranks", metric="added_time", ours="ours", peer="dtensor", peer_name="dtensor",
                      ours_key=f"{name}, distributed", peer_key=f"{name}, distributed",
                      ours_less=("ours", f"{name}, plain"), peer_less=("dtensor", f"{name}, plain"))


def against_plain(name):
    return Comparison(case=f"{name}, 2 ranks", ours="ours", peer="ours", peer_name="plain",
                      ours_key=f"{name}, distributed", peer_key=f"{name}, plain")


def against_dtensor(name):
    return Comparison(case=f"{name}, 2 ranks", ours="ours", peer="dtensor", peer_name="dtensor",
                      ours_key=f"{name}, distributed", peer_key=f"{name}, distributed")


def layer(peer, case="GPT layer, 2 ranks"):
    return Comparison(case=case, ours="ours", peer=peer, peer_name=peer, ours_key="GPT layer", peer_key="GPT layer",
                      unit="ms")


def attention(ours, peer, peer_key, case):
    return Comparison(case=f"attention of 8192 tokens, 2 ranks, {case}", ours="ours", peer=peer, peer_name=peer_key,
                      ours_key=ours, peer_key=peer_key, unit="ms")


SWEEPS = [
    Sweep(
        name="operators on distributed tensors",
        programs={
            "ours": Program(trireme_run(2, BIN / "bench_tensor"), microseconds, ONE_THREAD),
            "dtensor": Program(torchrun(2, ROOT / "bench/peers/dtensor.py"), microseconds, ONE_THREAD),
        },
        comparisons=(
            *(added(name) for name in (*OPERATORS, "all-gather")),
            *(against_plain(name) for name in (*WHOLE, *MOVES)),
            *(against_dtensor(name) for name in ("MLP", "Adam over 100")),
            Comparison(case="kernels and rules, 2 ranks", metric="start_time", ours="ours", peer="dtensor",
                       peer_name="dtensor", ours_key="start", peer_key="start"),
        ),
        smoke=("--calls", "20", "--samples", "3"),
    ),
    Sweep(
        name="a layer of a GPT, forward and backward",
        programs={
            "ours": Program(trireme_run(2, BIN / "bench_tensor_layer"), milliseconds, ONE_THREAD),
            "dtensor": Program(torchrun(2, ROOT / "bench/peers/dtensor_layer.py"), milliseconds, ONE_THREAD),
            "plain": Program((BIN / "bench_tensor_layer", "--threads", 1), milliseconds, ONE_THREAD),
            "one_process": Program((BIN / "bench_tensor_layer", "--threads", 2), milliseconds, TWO_THREADS),
        },
        comparisons=(layer("dtensor"), layer("plain", "GPT layer, 2 ranks, against 1 thread"),
                     layer("one_process", "GPT layer, 2 ranks, against 2 threads")),
        smoke=("--calls", "1", "--samples", "3"),
    ),
    Sweep(
        name="causal attention of a sequence cut over ranks, forward and backward",
        programs={
            "ours": Program(trireme_run(2, BIN / "bench_sequence_attention"), milliseconds, ONE_THREAD),
            "one_thread": Program((BIN / "bench_sequence_attention", "--threads", 1), milliseconds, ONE_THREAD),
            "two_threads": Program((BIN / "bench_sequence_attention", "--threads", 2), milliseconds, TWO_THREADS),
        },
        comparisons=(attention("ring", "ours", "gather", "ring"), attention("heads", "ours", "gather", "heads"),
                     attention("ring", "one_thread", "plain", "ring, against 1 thread"),
                     attention("heads", "one_thread", "plain", "heads, against 1 thread"),
                     attention("heads", "two_threads", "plain", "heads, against 2 threads")),
        smoke=("--tokens", "256", "--samples", "2"),
    ),
]
