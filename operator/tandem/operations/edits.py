"""Edits that one attempt has made (docs/decisions/0191).

An edit is kept until the attempt ends, since a later decision may want it again: it may be
published only where a decision wants just these rows (R-4). An edit that no decision wants any more
is a lost round of its file; lost puts cost nothing and do not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tandem.jobs.results import OutputFile
from tandem.spark.jobs.edits import EditMaker, WantedEdit
from tandem.spark.runtime.control import output_file


@dataclass(slots=True)
class _Made:
    wanted: WantedEdit
    file: OutputFile


@dataclass(slots=True)
class Edits:
    """The edits of one attempt. Not thread-safe.

    Attributes:
        rounds: those in which edits were made; `files`, `bytes_copied`, `bytes_encoded` and
            `seconds` are theirs.
    """

    maker: EditMaker
    rounds: int = 0
    files: int = 0
    bytes_copied: int = 0
    bytes_encoded: int = 0
    seconds: float = 0.0
    _of: dict[tuple[str, tuple[int, int] | None], list[_Made]] = field(default_factory=dict)

    def find(self, wanted: WantedEdit) -> OutputFile | None:
        """The edit, if it has been made."""
        for each in self._of.get((wanted.source.logged_path, wanted.part), ()):
            if each.wanted.equals(wanted):
                return each.file
        return None

    def lost(self, wanted: WantedEdit) -> int:
        """How many edits of the file, or of this part of it, no decision wants any more, if this
        one is wanted now."""
        made = self._of.get((wanted.source.logged_path, wanted.part), ())
        return sum(1 for each in made if not each.wanted.equals(wanted))

    def missing(self, wanted: Iterable[WantedEdit]) -> list[WantedEdit]:
        """Those that have not been made."""
        return [each for each in wanted if self.find(each) is None]

    def make(self, wanted: Sequence[WantedEdit]) -> None:
        """Make these edits here. Raises: DataFileMissing, CountMismatch, StorageError."""
        begun = time.monotonic()
        files = self.maker.make(wanted)
        self.add(
            wanted,
            [output_file(each.file) for each in files],
            copied=sum(each.bytes_copied for each in files),
            encoded=sum(each.bytes_encoded for each in files),
            seconds=time.monotonic() - begun,
        )

    def add(
        self,
        wanted: Sequence[WantedEdit],
        files: Sequence[OutputFile],
        *,
        copied: int,
        encoded: int,
        seconds: float,
    ) -> None:
        """Record a round of edits; each file is that of the edit at its place."""
        for each, found in zip(wanted, files, strict=True):
            key = (each.source.logged_path, each.part)
            self._of.setdefault(key, []).append(_Made(each, found))
        self.bytes_copied += copied
        self.bytes_encoded += encoded
        self.rounds += 1
        self.files += len(files)
        self.seconds += seconds
