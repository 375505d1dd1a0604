# SPDX-License-Identifier: Apache-2.0
"""An ordinary DDP script under launchers: it runs with the import, and its losses have the bits that Gloo gives."""
from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "train_ddp.py"
HOROVOD_SCRIPT = SCRIPT.with_name("horovod_digits.py")
PROGRAM = Path(os.environ.get("TRIREME_BIN", "/nonexistent")) / "trireme"
RANKS = "2"


def run(command: list[str], imports: bool) -> dict[str, list[str]]:
    """Returns the lines of rank 0, by their first word."""
    done = subprocess.run([*command, str(SCRIPT)], text=True, capture_output=True, timeout=120,
                          env={**os.environ, "TEST_IMPORTS": str(int(imports)), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    lines = {}
    for line in done.stdout.splitlines():
        for word in ("losses", "engine"):
            if word in line:  # launchers may put the rank before it
                lines[word] = line[line.index(word):].split()[1:]
    return lines


class Launchers(unittest.TestCase):
    TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS]
    expected: list[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.expected = run(cls.TORCHRUN, False)["losses"]

    def check(self, command: list[str]) -> None:
        ours = run(command, True)
        self.assertEqual(ours["engine"], ["shm"])
        self.assertEqual(len(ours["losses"]), 6)
        self.assertEqual(ours["losses"], self.expected)

    def test_torchrun(self) -> None:
        self.check(self.TORCHRUN)

    @unittest.skipUnless(PROGRAM.exists(), "the program trireme is not built")
    def test_trireme_run(self) -> None:
        self.check([str(PROGRAM), "run", "-n", RANKS, "--", sys.executable])

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_mpirun_with_the_variables_of_torch(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        variables = f"export RANK=${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} WORLD_SIZE={RANKS} MASTER_ADDR=127.0.0.1 MASTER_PORT={port}"
        root = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in subprocess.run(
            ["mpirun", "--version"], text=True, capture_output=True).stdout else []
        self.check(["mpirun", *root, "-n", RANKS, "sh", "-c", f'{variables}; exec "{sys.executable}" "$0"'])


class Horovod(unittest.TestCase):
    """A script of Horovod, which finds its rank without the variables of torch."""

    def check(self, command: list[str]) -> None:
        done = subprocess.run([*command, sys.executable, str(HOROVOD_SCRIPT)], text=True, capture_output=True, timeout=120,
                              env={**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        losses = [line.split()[-1] for line in done.stdout.splitlines() if "loss " in line]
        self.assertEqual(len(losses), 3, done.stdout)  # of rank 0 alone, and not of each as a world of one

    @unittest.skipUnless(PROGRAM.exists(), "the program trireme is not built")
    def test_trireme_run(self) -> None:
        self.check([str(PROGRAM), "run", "-np", RANKS, "--output", "all", "--"])

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_mpirun(self) -> None:
        is_open_mpi = "Open MPI" in subprocess.run(["mpirun", "--version"], text=True, capture_output=True).stdout
        self.check(["mpirun", *(["--allow-run-as-root", "--oversubscribe"] if is_open_mpi else []), "-np", RANKS])


class Hosts(unittest.TestCase):
    """Network namespaces stand for two hosts."""

    NAMES = [f"trireme{os.getpid()}a", f"trireme{os.getpid()}b"]

    def setUp(self) -> None:
        self.addCleanup(lambda: [subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL) for name in self.NAMES])
        links = [f"tr{os.getpid() % 100000}{letter}" for letter in "ab"]
        commands = [["netns", "add", name] for name in self.NAMES] + [["link", "add", links[0], "type", "veth", "peer", "name", links[1]]]
        for host, (name, link) in enumerate(zip(self.NAMES, links), 1):
            commands += [["link", "set", link, "netns", name, "name", "eth0"], ["-n", name, "link", "set", "lo", "up"],
                         ["-n", name, "address", "add", f"10.231.7.{host}/30", "dev", "eth0"], ["-n", name, "link", "set", "eth0", "up"]]
        for command in commands:
            if shutil.which("ip") is None or subprocess.run(["ip", *command], capture_output=True).returncode != 0:
                self.skipTest("network namespaces cannot be made here")

    def test_two_hosts_share_memory_inside_and_use_gloo_between(self) -> None:
        ranks = []
        for rank in range(3):
            variables = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "10.231.7.1", "MASTER_PORT": "29500", "TEST_IMPORTS": "1",
                         "TRIREME_INTERFACE": "eth0", "TRIREME_TIMEOUT": "60", "PYTHONWARNINGS": "ignore"}
            ranks.append(subprocess.Popen(["ip", "netns", "exec", self.NAMES[rank // 2], sys.executable, str(SCRIPT)], text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **variables}))
        outputs = [rank.communicate(timeout=120) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0] * 3, outputs)
        self.assertIn("engine shm+gloo", outputs[0][0])


if __name__ == "__main__":
    unittest.main()
