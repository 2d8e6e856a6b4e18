"""Small rounds: what the engine evaluates by itself, without a job, as a port.

Beside a writer that commits many times a second a round of a job comes too late each time: Spark
takes a second for what a hundred rows need, ten on a busy machine. `arrow` evaluates such
rests with Arrow in milliseconds, as far as that is proven to mean the same
(docs/decisions/0099-small-rounds.md). Tests put in their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from tandem.jobs.formats import InputFile, OutputFile
from tandem.reconcile.merge_sources import Sources

if TYPE_CHECKING:
    from tandem.operations.model import Work


@dataclass(frozen=True, slots=True)
class SmallAnswer:
    """What a round came to, as `JobResult` says it: `matches` by number of the input, files
    that were written, the `fresh` ones last."""

    matches: pa.Table
    outputs: tuple[OutputFile, ...] = ()


class SmallRounds(Protocol):
    """Evaluates rounds of the frozen job of `work`. None where only the job can: the rest is too
    large, or what the statement says of it is not proven. What is written lies in the data folder
    of the attempt."""

    def understands(self, work: Work) -> bool:
        """Whether it is worth asking at all."""
        ...

    def rows(self, work: Work, inputs: Sequence[InputFile]) -> SmallAnswer | None:
        """What the statement makes of the live rows of these files, not all of the table's.
        Raises: DataFileMissing, StorageError."""
        ...

    def inserts(self, work: Work, matched: Sources) -> SmallAnswer | None:
        """The rows that a merge inserts for its source rows, but for those `matched`."""
        ...


class NoSmallRounds:
    """Leaves everything to the job."""

    def understands(self, work: Work) -> bool:  # noqa: ARG002
        return False

    def rows(self, work: Work, inputs: Sequence[InputFile]) -> SmallAnswer | None:  # noqa: ARG002
        return None

    def inserts(self, work: Work, matched: Sources) -> SmallAnswer | None:  # noqa: ARG002
        return None
