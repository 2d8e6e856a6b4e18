"""In which order tests run, and which of them share a process.

All files with tests that use Spark run in one process: to start a session and to do everything in
it for the first time takes a minute. The others go to whichever process is free. Files of each
folder are spread over the whole run: tests that wait for a cluster run beside those that compute.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

NAMES_SPARK = re.compile(r"SparkSession|mark\.whole|on_spark")
"""What a file with tests that use Spark contains: who gives out the files knows no more of them."""
SPARK = "spark"


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """`--dist loadscope` by files, in the order of `arrange`, with one process for Spark."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._root = config.rootpath

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SPARK if names_spark(self._root / file) else file


@functools.cache
def names_spark(file: Path) -> bool:
    """Whether a file contains tests that use Spark."""
    return NAMES_SPARK.search(file.read_text()) is not None


def require_named(items: Sequence[pytest.Item]) -> None:
    """Raises: UsageError if a test uses Spark and its file does not say so."""
    for item in items:
        if _uses_spark(item) and not names_spark(item.path):
            raise pytest.UsageError(
                f"{item.nodeid} uses Spark: name the type of the fixture, SparkSession"
            )


def arrange(items: list[pytest.Item]) -> None:
    """Put files with tests that use Spark first, and spread the other files of each folder."""
    places = _places(list(dict.fromkeys(item.path for item in items)))
    items.sort(key=lambda item: (not names_spark(item.path), places[item.path]))


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
