"""A PATH on which there is almost nothing, for scripts that install what is absent."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path


def bare(folder: Path, programs: Sequence[str]) -> Path:
    """A folder with these programs of this machine alone; the user is root, and there is no
    package manager."""
    folder.mkdir()
    for name in programs:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    program(folder, "id", "echo 0")
    return folder


def program(folder: Path, name: str, body: str = "exit 0") -> None:
    """A shell script under this name."""
    target = folder / name
    target.write_text(f"#!/bin/sh\n{body}\n")
    target.chmod(0o755)
