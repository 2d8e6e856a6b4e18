"""In which order tests run, and which of them share a process.

All tests that use Spark run in one process: to start a session and to do everything in it for
the first time takes a minute. The others go by file, to whichever process is free. Files of each
folder are spread over the whole run: tests that wait for a cluster run beside those that compute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadGroupScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

SPARK = pytest.mark.xdist_group("spark")


class ByFile(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """`--dist loadgroup`, where tests without a group are in that of their file."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if scope == nodeid else scope


def arrange(items: list[pytest.Item]) -> None:
    """Put tests that use Spark first and mark them as a group; spread the files of each folder."""
    for item in items:
        if _uses_spark(item):
            item.add_marker(SPARK)
    places = _places(list(dict.fromkeys(item.path for item in items)))
    items.sort(key=lambda item: (not _uses_spark(item), places[item.path]))


def _places(files: Sequence[Path]) -> dict[Path, tuple[float, Path]]:
    """The place of each file in its folder, between 0 and 1."""
    folders: dict[Path, list[Path]] = defaultdict(list)
    for file in files:
        folders[file.parent].append(file)
    return {
        file: ((number + 0.5) / len(folder), file)
        for folder in folders.values()
        for number, file in enumerate(folder)
    }


def _uses_spark(item: pytest.Item) -> bool:
    marked = item.get_closest_marker("whole") is not None
    return marked or "spark" in getattr(item, "fixturenames", ())
