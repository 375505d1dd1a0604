# SPDX-License-Identifier: Apache-2.0
"""The files of the repository, what they include, and a cache of what was found right."""
import concurrent.futures
import dataclasses
import fnmatch
import functools
import hashlib
import os
import pathlib
import re
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "check-cache"
# Top to bottom: a component may include those before it and none after.
COMPONENTS = ("base launch schedule report data cluster comm mesh tensor graph optim checkpoint plan parallel predict search "
         "train").split()
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)


@dataclasses.dataclass
class Result:
    """What one check says: findings fail it, notes are only printed."""

    looked_at: str
    findings: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)


class Tree:
    """Paths are strings relative to the root, with slashes. Files that git ignores do not exist here."""

    def __init__(self, jobs=1, everything=False):
        self.jobs = jobs
        self.everything = everything
        listing = self.git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        self.files = sorted({path for path in listing.split("\0") if path and (ROOT / path).is_file()})
        if not self.files:
            raise SystemExit("check: `git ls-files` lists nothing here; tools/check needs a git checkout that git trusts")

    @staticmethod
    def git(*arguments):
        """Output of a git command; empty where it fails (no such revision)."""
        return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False).stdout

    def having(self, *suffixes, under=""):
        return [path for path in self.files if path.startswith(under) and path.endswith(suffixes)]

    @functools.cached_property
    def cpp(self):
        return self.having(".h", ".cpp")

    @functools.lru_cache(maxsize=None)
    def text(self, path):
        return (ROOT / path).read_text(encoding="utf-8", errors="replace")

    @functools.lru_cache(maxsize=None)
    def includes(self, path):
        return tuple(INCLUDE.findall(self.text(path)))

    def resolve(self, path, include):
        """The file of ours that an include names; None for others'."""
        for candidate in (include, os.path.normpath(os.path.join(os.path.dirname(path), include))):
            if candidate in self.known:
                return candidate
        return None

    @functools.cached_property
    def known(self):
        return set(self.files)

    @functools.cached_property
    def known_folders(self):
        parents = (pathlib.PurePosixPath(path).parents for path in self.files)
        return {str(folder) for folders in parents for folder in folders}

    def exists(self, pattern):
        """Whether there is a file or folder of this name, in which * and ? may stand for characters."""
        name = os.path.normpath(pattern)
        return name in self.known or name in self.known_folders or bool(fnmatch.filter(self.files, name))

    @functools.lru_cache(maxsize=None)
    def closure(self, path):
        """The file and every file of ours that it includes, directly or not, sorted."""
        found, open_ends = {path}, [path]
        while open_ends:
            current = open_ends.pop()
            for include in self.includes(current):
                target = self.resolve(current, include)
                if target and target not in found:
                    found.add(target)
                    open_ends.append(target)
        return tuple(sorted(found))

    def needs_libtorch(self, path):
        """Whether a translation unit of this file reads headers of LibTorch: 4 to 20 s with them, 1 to 2 s without."""
        of_libtorch = re.compile(r"(ATen|c10|torch)/")
        return any(of_libtorch.match(include) for file in self.closure(path) for include in self.includes(file))

    def digest(self, path, *more):
        """Hash of a file, all that it includes of ours, and anything else that a result depends on."""
        content = hashlib.sha256()
        for file in self.closure(path):
            content.update(file.encode() + b"\0" + (ROOT / file).read_bytes() + b"\0")
        content.update(repr(more).encode())
        return content.hexdigest()

    def parallel(self, function, items):
        with concurrent.futures.ThreadPoolExecutor(max(1, self.jobs or 1)) as pool:
            return list(pool.map(function, items))


def remembered(key):
    """Whether this key was found right before; renews it."""
    stamp = CACHE / key
    if not stamp.exists():
        return False
    stamp.touch()
    return True


def remember(key):
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / key).touch()


def forget_old(days=30):
    limit = time.time() - days * 24 * 3600
    for stamp in CACHE.glob("*"):
        if stamp.stat().st_mtime < limit:
            stamp.unlink(missing_ok=True)


def line_of(text, position):
    return text.count("\n", 0, position) + 1
