# SPDX-License-Identifier: Apache-2.0
"""What happens when ranks fail, disagree or are interrupted: every rank gets an error that says what to do, before its deadline."""
from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from commands import PROGRAM, needs_program
from ranks import HOST, Failed, init, main, run_ranks, slow, thorough


def connected(rank: int, size: int, port: int) -> None:
    import trireme.torch  # noqa: F401

    init(rank, size, port)


def error_of(call: object) -> tuple[str, dict[str, object]]:
    """Returns the message and the attributes of the CommError that a call raises."""
    import trireme

    try:
        call()
    except trireme.CommError as error:
        return str(error), {name: getattr(error, name) for name in ("rank", "peer", "operation", "sequence_number", "elapsed")}
    return "no error", {}


def call_differently(rank: int, size: int, port: int) -> object:
    connected(rank, size, port)
    dist.barrier()
    return error_of(lambda: dist.all_reduce(torch.ones(3 + rank)))


def call_other_collectives(rank: int, size: int, port: int) -> object:
    connected(rank, size, port)
    tensor, outputs = torch.ones(4), [torch.empty(4) for _ in range(size)]
    return error_of(lambda: dist.all_gather(outputs, tensor) if rank == 0 else dist.all_reduce(tensor))


def die_early(rank: int, size: int, port: int) -> object:
    connected(rank, size, port)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(lambda: dist.all_reduce(torch.ones(3)))


def raise_early(rank: int, size: int, port: int) -> object:
    connected(rank, size, port)
    if rank == 1:
        raise RuntimeError("no data")
    return error_of(lambda: dist.all_reduce(torch.ones(3)))


def die_in_training(rank: int, size: int, port: int) -> object:
    connected(rank, size, port)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
    except RuntimeError as error:  # autograd keeps the message alone
        return str(error)
    return "no error"


def be_interrupted(rank: int, size: int, port: int) -> object:
    connected(rank, size, port)
    store = distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["interrupted"])
        return error_of(lambda: dist.all_reduce(torch.ones(3)))[0]
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        dist.all_reduce(torch.ones(3))
    except KeyboardInterrupt:
        store.set("interrupted", "1")
        return "interrupted"
    return "no interruption"


def be_interrupted_while_connecting(rank: int, size: int, port: int) -> object:
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        connected(rank, size + 1, port)  # one rank does not come
    except KeyboardInterrupt:
        return "interrupted"
    return "no interruption"


def go_on_after_a_signal(rank: int, size: int, port: int) -> object:
    connected(rank, size, port)
    store = distributed_c10d._get_default_store()
    seen = []
    if rank == 0:
        signal.signal(signal.SIGUSR1, lambda number, frame: (seen.append(number), store.set("seen", "1")))
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    else:
        store.wait(["seen"])
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return len(seen), int(tensor)


def import_on_one_rank(rank: int, size: int, port: int) -> object:
    imports = int(os.environ["TEST_IMPORTS"])
    if rank == imports:
        import trireme.torch  # noqa: F401
    store = dist.TCPStore(HOST, port, is_master=False)
    if rank != imports:  # stands for the launcher, which ends the other ranks
        launcher = dist.TCPStore(HOST, port, is_master=False)
        threading.Thread(target=lambda: (launcher.wait(["done"]), os._exit(7)), daemon=True).start()
        dist.init_process_group("gloo", store=dist.PrefixStore("run", store), rank=rank, world_size=size)
    try:
        dist.init_process_group("gloo", store=dist.PrefixStore("run", store), rank=rank, world_size=size)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        store.set("done", "1")
    return "no error"


def come_late(rank: int, size: int, port: int) -> object:
    import datetime

    import trireme.torch  # noqa: F401

    if rank == 1:
        return ""
    try:
        init(rank, size, port, timeout=datetime.timedelta(seconds=1))
    except trireme.CommError as error:
        return str(error)
    return "no error"


def fork_children(rank: int, size: int, port: int) -> object:
    connected(rank, size, port)
    refused = 0
    for ends_at_once in (True, False):
        child = os.fork()
        if child == 0:
            status = 0
            if not ends_at_once:
                try:
                    dist.all_reduce(torch.ones(1))
                except ValueError as error:
                    status = 42 if "forked" in str(error) else 1
            os._exit(status)
        refused += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=2, num_workers=2)
    total = sum(float(batch.sum()) for batch in loader)
    tensor = torch.tensor([total])
    dist.all_reduce(tensor)
    return refused, float(tensor)


def give_input_on_another_device(rank: int, size: int, port: int) -> object:
    import trireme

    connected(rank, size, port)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    messages = []
    for inputs in (torch.ones(2, 4, device="meta"), torch.ones(2, 5)):
        try:
            model(inputs)
        except RuntimeError as error:
            messages.append((isinstance(error, trireme.UsageError), str(error)))
    return messages


class Failures(unittest.TestCase):
    def test_calls_with_other_arguments_are_both_named(self) -> None:
        for rank, (message, attributes) in enumerate(run_ranks(call_differently)):
            self.assertIn("rank 0 all-reduce (sum) of 3 float32", message)
            self.assertIn("rank 1 all-reduce (sum) of 4 float32", message)
            self.assertEqual((attributes["rank"], attributes["peer"], attributes["operation"]), (rank, 1 - rank, "all-reduce"))
            self.assertGreater(attributes["sequence_number"], 1)
            self.assertGreaterEqual(attributes["elapsed"], 0)

    def test_different_collectives_are_both_named(self) -> None:
        for message, _ in run_ranks(call_other_collectives):
            self.assertIn("rank 0 all-gather", message)
            self.assertIn("rank 1 all-reduce", message)

    @needs_program
    def test_the_program_compares_the_last_operations_of_all_ranks(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(call_other_collectives, environment={"TRIREME_DUMP": folder})
            done = subprocess.run([str(PROGRAM), "doctor", "--dump", folder], capture_output=True, text=True)
        for part in ("group 'world' of 2 ranks", "all-gather", "all-reduce"):
            self.assertIn(part, done.stdout, done.stderr)

    def test_a_rank_that_dies_is_named_by_the_others(self) -> None:
        results = run_ranks(die_early, 3)
        self.assertEqual(results[1], -signal.SIGKILL)
        for message, attributes in (results[0], results[2]):
            self.assertIn("rank 1 ended while", message)
            self.assertIn("hint:", message)
        self.assertIn(1, (results[0][1]["peer"], results[2][1]["peer"]))

    def test_a_rank_that_raises_is_named_by_the_others(self) -> None:
        results = run_ranks(raise_early)
        self.assertIsInstance(results[1], Failed)
        self.assertRegex(results[0][0], "rank 1 (ended|left the group) while rank 0 waited for it")

    def test_a_rank_that_dies_in_training_is_named_by_the_others(self) -> None:
        self.assertIn("rank 1 ended while", run_ranks(die_in_training)[0])

    def test_ranks_that_do_not_import_are_named(self) -> None:
        for imports in (0, 1):
            result = run_ranks(import_on_one_rank, environment={"TEST_IMPORTS": str(imports)})[imports]
            self.assertIn(f"ConfigError: rank {1 - imports} connects by PyTorch's Gloo, rank {imports} by Trireme", result)
            self.assertIn("import trireme.torch in every rank", result)

    def test_a_model_and_an_input_on_different_devices_are_named(self) -> None:
        for (is_explained, message), (is_other_explained, _) in run_ranks(give_input_on_another_device):
            self.assertIn("the model is on cpu, and its input on meta", message)
            self.assertIn("hint: call inputs.to('cpu')", message)
            self.assertEqual((is_explained, is_other_explained), (True, False))

    @thorough
    def test_ranks_that_do_not_come_are_named(self) -> None:
        self.assertRegex(run_ranks(come_late)[0], "waited 1 s for all 2 ranks; came: 0; missing: 1")


class Interruptions(unittest.TestCase):
    def test_ctrl_c_ends_a_waiting_rank_and_the_others(self) -> None:
        results = run_ranks(be_interrupted)
        self.assertEqual(results[0], "interrupted")
        self.assertIn("rank 0 was interrupted while it waited: KeyboardInterrupt", results[1])

    @thorough
    def test_ctrl_c_ends_a_rank_that_connects(self) -> None:
        self.assertEqual(run_ranks(be_interrupted_while_connecting, 1), ["interrupted"])

    def test_a_handler_that_returns_lets_a_rank_wait_on(self) -> None:
        self.assertEqual(run_ranks(go_on_after_a_signal), [(1, 2), (0, 2)])


class Processes(unittest.TestCase):
    @thorough
    def test_a_forked_child_harms_nobody(self) -> None:
        self.assertEqual(run_ranks(fork_children), [(1, 56.0)] * 2)

    def run_python(self, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", text], text=True, capture_output=True, timeout=120,
                              env={**os.environ, **environment})

    def check_port_in_use(self, call: str) -> None:
        with socket.socket() as other:
            other.bind((HOST, 0))
            other.listen()
            port = other.getsockname()[1]
            done = self.run_python(call, RANK="0", WORLD_SIZE="2", MASTER_ADDR=HOST, MASTER_PORT=str(port))
            self.assertIn(f"PortInUseError: port {port}, on which rank 0 was to serve the store, is in use by process {os.getpid()} (", done.stderr)
            self.assertRegex(done.stderr, r"another port, such as \d+, which is free")

    @thorough
    def test_a_port_in_use_is_named_with_its_owner_and_a_free_one(self) -> None:
        self.check_port_in_use("import trireme.torch, torch; torch.distributed.init_process_group('gloo')")

    @slow
    def test_a_port_in_use_is_named_to_callers_of_horovod(self) -> None:
        self.check_port_in_use("import trireme.horovod.torch as hvd; hvd.init()")

    @slow
    def test_another_version_of_torch_is_refused(self) -> None:
        done = self.run_python("import torch; torch.__version__ = '2.99.0'; import trireme.torch")
        self.assertRegex(done.stderr, r"ImportError: trireme .* was built for torch 2\..*, but torch 2\.99\.0 is installed")
        self.assertIn("hint: install torch==", done.stderr)

    @slow
    def test_the_import_may_come_first_or_last(self) -> None:
        for order in ("import trireme.torch, torch", "import torch, trireme.torch"):
            done = self.run_python(f"{order}; assert 'trireme' in torch.distributed.Backend.backend_list")
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    @slow
    def test_an_import_after_init_process_group_warns(self) -> None:
        done = self.run_python("import torch.distributed as dist, warnings\n"
                               "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
                               "import trireme.torch\n")
        self.assertIn("Import it before init_process_group", done.stderr)
        self.assertEqual(done.returncode, 0)

    @thorough
    def test_a_program_that_destroys_nothing_ends(self) -> None:
        started = time.monotonic()
        done = self.run_python("import trireme.torch, torch, torch.distributed as dist\n"
                               "dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)\n"
                               "work = dist.all_reduce(torch.ones(3), async_op=True)\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertLess(time.monotonic() - started, 60)

    def test_files_of_the_package_are_typed(self) -> None:
        import trireme

        self.assertTrue((Path(trireme.__file__).parent / "py.typed").is_file())


if __name__ == "__main__":
    main()
