"""Small rounds: the port for rounds that the engine evaluates itself, without a job.

Against a writer that commits many times a second, every round of a job comes too late: Spark takes
a second for a hundred rows, ten on a busy machine. `small_rounds` evaluates them in milliseconds,
where the result is proven to be the same (docs/decisions/0099-small-rounds.md). Tests use their own
implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from tandem.jobs.formats import InputFile
    from tandem.jobs.results import OutputFile
    from tandem.operations.model import Work
    from tandem.reconcile.matches import Sources


@dataclass(frozen=True, slots=True)
class SmallRoundResult:
    """The result of a round in the form of `JobResult`: `matches` by number of the input, and the
    files that were written, the `fresh` ones last."""

    matches: pa.Table
    outputs: tuple[OutputFile, ...] = ()


class SmallRounds(Protocol):
    """Evaluates rounds of the frozen job of `work`. Returns None if only the job can: the rows are
    too many, or the meaning of the statement on them is not proven. Files are written to the data
    folder of the attempt.

    Attributes:
        time_bytes: the most bytes of times that a replace reads in the engine in one round, as
            `tandem.operations.kinds.replace` estimates them.
    """

    time_bytes: int

    def can_evaluate(self, work: Work) -> bool:
        """Whether the statement can be evaluated here at all."""
        ...

    def rows(self, work: Work, inputs: Sequence[InputFile]) -> SmallRoundResult | None:
        """The result of the statement on the live rows of these files, a part of the table's.
        Raises: DataFileMissing, StorageError."""
        ...

    def inserts(self, work: Work, matched: Sources) -> SmallRoundResult | None:
        """The rows that a merge inserts for its source rows, except for those `matched`."""
        ...


class NoSmallRounds:
    """Leaves every round to the job."""

    time_bytes = 0

    def can_evaluate(self, work: Work) -> bool:  # noqa: ARG002
        return False

    def rows(self, work: Work, inputs: Sequence[InputFile]) -> SmallRoundResult | None:  # noqa: ARG002
        return None

    def inserts(self, work: Work, matched: Sources) -> SmallRoundResult | None:  # noqa: ARG002
        return None
