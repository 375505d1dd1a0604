# SPDX-License-Identifier: Apache-2.0
"""The text of Debian's package `fortunes`."""
import hashlib
import pathlib

FOLDER = pathlib.Path("/usr/share/games/fortunes")


def files():
    found = sorted(path for path in FOLDER.glob("*") if path.suffix == "" and path.is_file() and not path.is_symlink())
    if not found:
        raise SystemExit(f"{FOLDER} has no texts; install Debian's package fortunes")
    return found


def description():
    """Returns what tells whether a text is the one of a result."""
    text = "".join(path.read_text(encoding="utf-8") for path in files())
    return {"texts": [path.name for path in files()], "characters": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
