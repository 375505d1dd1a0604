# SPDX-License-Identifier: Apache-2.0
"""Collectives between the processes of one host, against LibTorch's Gloo, every MPI that is installed, and oneCCL over Intel MPI.

All programs run the same loop (bench/multi/comm_loop.h): in place where the collective allows it, every buffer written
anew before each operation, results verified, no process bound to a core. Where there are more ranks than cores MPI is
told to give cores away, as ours does; MPICH cannot (its library never calls sched_yield), needs milliseconds for each
operation then, and is left out there. So is oneCCL, which polls as well: with CCL_YIELD=sched_yield it took 10 to 20 ms. Where each
rank has a core, oneCCL does without its threads (CCL_WORKER_OFFLOAD=0), which need more cores: with them 4 B took 0.2 ms or more.
`/raw` is the shared-memory engine without LibTorch, the plain name is Group over
that engine; `/registered` is Group with tensors that the ranks share, against one memcpy of as many bytes, and `/tensors` the same
with ordinary tensors, which the ranks share after some calls. Records of
`added_time` have our raw engine as `plain`: `/recorder` is what recording one operation takes. `waiting` is the time that the
busiest of some ranks uses a core while all wait for one, against the time that they wait.
"""
import os
import re
import subprocess

from . import BIN, ROOT, Comparison, Program, Sweep, trireme_run

RANKS = (2, 4)
# 100 MiB is what other figures in this field are given for.
SIZES = sorted([*(2**power for power in range(2, 29)), 100 << 20])
OTHER_COLLECTIVES = ("broadcast", "all_gather", "reduce_scatter", "all_to_all")
OTHER_SIZES = (4 << 10, 1 << 20, 64 << 20)
# A layer above the engine costs the same for any size: shown where that is most.
LAYER_SIZES = (4, 1 << 10, 64 << 10)
REGISTERED_SIZE = 100 << 20
SMOKE = ("--limit", str(64 << 10), "--seconds", "0.001")
INTEL_MPI = ROOT / "build" / "intelmpi"
ONECCL = ROOT / "build" / "oneccl"


def words(**sizes):
    return tuple(f"{collective}:{','.join(map(str, of_it))}" for collective, of_it in sizes.items())


ALL = words(all_reduce=SIZES, **{collective: OTHER_SIZES for collective in OTHER_COLLECTIVES})


def figures(record, _):
    return record


def group(num_ranks, cases, *options):
    return Program((*trireme_run(num_ranks, BIN / "bench_comm_group", *options), *cases), figures)


def mpi_launchers(num_ranks):
    """For each MPI: its launcher for one host, bound to no core, and the environment that lets ranks share cores."""
    shares = num_ranks > len(os.sched_getaffinity(0))
    open_mpi = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                "--mca", "mpi_yield_when_idle", str(int(shares)), "-n", num_ranks)
    hydra = ("-launcher", "fork", "-n", num_ranks)
    intel_mpi = {"I_MPI_ROOT": str(INTEL_MPI), "I_MPI_FABRICS": "shm", "I_MPI_PIN": "0"}
    launchers = {
        "openmpi": (open_mpi, {}),
        "mpich": (("mpiexec.mpich", *hydra), {}),
        "intelmpi": ((INTEL_MPI / "bin/mpiexec.hydra", *hydra), {**intel_mpi, **({"I_MPI_THREAD_YIELD": "2"} if shares else {})}),
        "oneccl": ((INTEL_MPI / "bin/mpiexec.hydra", *hydra),
                   {**intel_mpi, "CCL_ATL_TRANSPORT": "mpi", "CCL_WORKER_OFFLOAD": "0", "CCL_LOG_LEVEL": "error"}),
    }
    if shares:
        del launchers["mpich"], launchers["oneccl"]
    return launchers


def mpi_programs(num_ranks):
    return {name: Program((*launcher, BIN / f"bench_comm_{name}", *ALL), figures, environment)
            for name, (launcher, environment) in mpi_launchers(num_ranks).items()
            if (BIN / f"bench_comm_{name}").exists()}


def comparisons(num_ranks, programs, mpi_names):
    peers = ("gloo", *mpi_names)
    for collective, sizes in (("all_reduce", SIZES), *((name, OTHER_SIZES) for name in OTHER_COLLECTIVES)):
        for size in sizes:
            key, case = f"{collective}/{size}", f"{collective}/float32/{size}B/{num_ranks}ranks"
            for peer in peers:
                yield Comparison(case + "/raw", "raw", peer, peer, key, key)
                yield Comparison(case, "group", peer, peer, key, key)
    for layer in ("group", "async", "process_group"):
        for size in LAYER_SIZES:
            key = f"all_reduce/{size}"
            yield Comparison(f"all_reduce/float32/{size}B/{num_ranks}ranks/{layer}", layer, "raw", "plain", key, key,
                             metric="added_time")
    yield Comparison(f"all_reduce/float32/{64 << 10}B/{num_ranks}ranks/recorder", "recorder", "raw", "plain", "record",
                     f"all_reduce/{64 << 10}", metric="added_time")
    yield Comparison(f"waiting/{num_ranks}ranks", "waiting", "waiting", "plain", "used", "waited")
    if "memcpy" in programs:
        key = f"all_reduce/{REGISTERED_SIZE}"
        yield Comparison(f"all_reduce/float32/{REGISTERED_SIZE}B/{num_ranks}ranks/registered", "registered", "memcpy",
                         "memcpy", key, f"all_gather/{REGISTERED_SIZE}")
        yield Comparison(f"all_reduce/float32/{REGISTERED_SIZE}B/{num_ranks}ranks/tensors", "tensors", "memcpy",
                         "memcpy", key, f"all_gather/{REGISTERED_SIZE}")


def sweep(num_ranks):
    mpi = mpi_programs(num_ranks)
    layers = words(all_reduce=LAYER_SIZES)
    programs = {
        "raw": Program((BIN / "bench_comm_raw", "--ranks", num_ranks, *ALL), figures),
        "group": group(num_ranks, ALL, "--engine", "shm"),
        "gloo": group(num_ranks, ALL, "--engine", "gloo"),
        **mpi,
        "async": group(num_ranks, layers, "--engine", "shm", "--layer", "async"),
        "process_group": group(num_ranks, layers, "--engine", "shm", "--layer", "process_group"),
    }
    programs["recorder"] = Program((BIN / "bench_comm_raw", "--record"), figures)
    programs["waiting"] = Program((BIN / "bench_comm_raw", "--ranks", num_ranks, "--wait"), figures)
    if num_ranks == 2:
        programs["registered"] = group(num_ranks, words(all_reduce=[REGISTERED_SIZE]), "--engine", "shm", "--registered")
        # The last of these counts, in which the tensor, the same piece of the pool as before, is shared.
        programs["tensors"] = group(num_ranks, words(all_reduce=[REGISTERED_SIZE] * 5), "--engine", "shm", "--tensors")
        programs["memcpy"] = Program((BIN / "bench_comm_raw", "--memcpy", *words(all_gather=[REGISTERED_SIZE])), figures)
    return Sweep(f"{num_ranks} ranks", programs, tuple(comparisons(num_ranks, programs, mpi)), SMOKE)


def versions():
    """Of the peers, for the description of the machine."""
    found = {}
    for name, (launcher, environment) in mpi_launchers(2).items():
        if not (BIN / f"bench_comm_{name}").exists():
            continue
        if name == "oneccl":
            found[name] = (ONECCL / "version").read_text().strip()
        else:
            run = subprocess.run([launcher[0], "--version"], env={**os.environ, **environment}, capture_output=True,
                                 text=True, check=False)
            number = re.search(r"\d+\.\d+\.\d+", run.stdout)
            found[name] = number.group() if number else ""
    return found


SWEEPS = [sweep(num_ranks) for num_ranks in RANKS]
