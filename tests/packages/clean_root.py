# SPDX-License-Identifier: Apache-2.0
"""A copy of this system to try packages in: an overlay over /, in a mount namespace of its own, thrown away at the end.

In the copy the folder of the sources, with all builds, is empty. install_package() also removes every development package
that building Trireme needs, and what only they needed, so that a dependency which a package does not name is missing.
Needs root, unshare(1) and overlayfs.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

INSIDE = "TRIREME_TEST_IN_NAMESPACE"
# Packages of APT_BUILD that somebody who uses Trireme needs too.
KEPT = {"build-essential", "cmake", "ninja-build", "pkg-config", "python3"}


class NotPossible(Exception):
    """This machine does not allow such a copy; the text says why."""


def run(*command, **options):
    """Returns what a program prints; raises, with all that it printed, where it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def enter_namespace():
    """Starts this program again where its mounts are its own."""
    if os.environ.get(INSIDE):
        return
    if os.geteuid() != 0 or not shutil.which("unshare"):
        raise NotPossible("a copy of the system needs root and the program unshare")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        raise NotPossible("this machine allows no mount namespace")
    os.execvpe("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv],
               {**os.environ, INSIDE: "1"})


class CleanRoot:
    def __init__(self, source):
        enter_namespace()
        self.source = source
        self.folder = Path(tempfile.mkdtemp())
        self.root = self.folder / "root"

    def __enter__(self):
        libtorch = self.folder / "libtorch"
        run(self.source / "tools/libtorch", libtorch)
        layers = self.folder / "layers"
        layers.mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=8g", "tmpfs", layers)
        for name in ("upper", "work"):
            (layers / name).mkdir()
        self.root.mkdir()
        mounted = subprocess.run(["mount", "-t", "overlay", "-o", f"lowerdir=/,upperdir={layers}/upper,workdir={layers}/work",
                                  "overlay", self.root], capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            raise NotPossible(f"overlayfs: {mounted.stderr.strip()}")
        for name in ("dev", "proc", "sys"):
            run("mount", "--rbind", f"/{name}", self.root / name)
        run("mount", "-t", "tmpfs", "tmpfs", self.root / "tmp")
        run("mount", "-t", "tmpfs", "tmpfs", str(self.root) + str(self.source))
        return self

    def __exit__(self, *exception):
        # Mounts go with the namespace; what is below them are empty folders.
        run("umount", "--recursive", self.root)
        run("umount", self.folder / "layers")
        shutil.rmtree(self.folder)

    def run(self, *command, environment=None):
        return run(*self.entered(command, environment))

    def fails(self, *command):
        """Returns the errors that a command prints, which has to fail."""
        done = subprocess.run(self.entered(command, None), capture_output=True, text=True, check=False)
        assert done.returncode != 0, f"{command} succeeds: {done.stdout}"
        return done.stderr

    def entered(self, command, environment):
        variables = {"HOME": "/root", "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8",
                     "DEBIAN_FRONTEND": "noninteractive", "OMP_NUM_THREADS": "1", **(environment or {})}
        return ["env", "-i", *[f"{name}={value}" for name, value in variables.items()], "chroot", self.root, *command]

    def copy(self, path, place):
        target = str(self.root) + place
        if path.is_dir():
            shutil.copytree(path, target)
        else:
            shutil.copy(path, target)

    def add_libtorch(self, place):
        """Puts LibTorch there, without the Python that it came with."""
        target = str(self.root) + place
        os.makedirs(target)
        run("mount", "--bind", self.folder / "libtorch", target)

    def install_package(self, file):
        versions = (self.source / "tools/versions.env").read_text()
        built_with = set(re.search(r'^APT_BUILD="([^"]+)"', versions, re.MULTILINE).group(1).split()) - KEPT
        installed = set(self.run("dpkg-query", "-W", "-f", "${Package} ").split())
        self.run("apt-mark", "manual", *sorted((KEPT | {"man-db", "g++"}) & installed))
        self.run("dpkg", "--install", file)
        self.run("apt-get", "purge", "--yes", *sorted(built_with & installed))
        self.run("apt-get", "autoremove", "--yes", "--purge")
        assert "install ok installed" in self.run("dpkg-query", "-W", "-f", "${Status}", "trireme")
