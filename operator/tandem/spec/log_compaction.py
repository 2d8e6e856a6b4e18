"""`LogCompaction`, which stitches the blocks of a merge-on-read table's log; and `mergeOnRead` of a
LakeTable."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tandem.spec.common import Mode, Operation, OperationSpec
from tandem.spec.fields import (
    Bytes,
    Milliseconds,
    Model,
    StrictInt,
    Text,
    misfit,
)

DEFAULT_MIN_BLOCKS = 5
DEFAULT_MAX_BLOCK_BYTES = 256 * 2**20


class Strategy(StrEnum):
    SMALL_RUNS = "SmallRuns"
    ALL_BLOCKS = "AllBlocks"


class LogCompactionSpec(OperationSpec):
    strategy: Strategy = Strategy.SMALL_RUNS
    """`SmallRuns` stitches runs of consecutive small blocks of about the same size; `AllBlocks`
    all blocks of each group."""
    min_blocks: Annotated[StrictInt, Field(ge=2, le=100_000)] = DEFAULT_MIN_BLOCKS
    """Minimum number of blocks in a run of `SmallRuns`."""
    max_block_bytes: Bytes = DEFAULT_MAX_BLOCK_BYTES
    """Blocks of at least this size are not small, and a stitched block is split at this size."""


class LogCompaction(Operation):
    """Stitch blocks of a log, while writers append."""

    kind_name: ClassVar[str] = "LogCompaction"
    short_name: ClassVar[str] = "lcomp"
    mode: ClassVar[Mode] = Mode.REWRITE
    default_priority: ClassVar[int] = 25
    columns: ClassVar[Mapping[str, str]] = {"Strategy": ".spec.strategy"}
    reports: ClassVar[frozenset[str]] = frozenset(
        {"plan.instants", "result.blocksIn", "result.blocksOut", "result.instants"}
    )
    result_columns: ClassVar[Mapping[str, str]] = {
        "Blocks-In": ".status.result.blocksIn",
        "Blocks-Out": ".status.result.blocksOut",
    }
    on_log: ClassVar[bool] = True

    kind: Literal["LogCompaction"]
    spec: LogCompactionSpec

    @classmethod
    def plan_lines(cls, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
        """What it stitches."""
        strategy = spec.get("strategy", Strategy.SMALL_RUNS)
        if strategy != Strategy.SMALL_RUNS:
            return [("blocks", "all of each group")]
        least = spec.get("minBlocks", DEFAULT_MIN_BLOCKS)
        return [("blocks", f"runs of at least {least} small ones")]


class AutomaticLogCompaction(Model):
    min_blocks: Annotated[StrictInt, Field(ge=2, le=500)] = DEFAULT_MIN_BLOCKS
    """Minimum number of instants since the last merge and since the last log compaction, and of
    consecutive small blocks of about the same size."""
    max_block_bytes: Bytes = DEFAULT_MAX_BLOCK_BYTES
    """Blocks of at least this size are not small, and a stitched block is split at this size."""
    min_interval: Milliseconds = 60_000
    """Minimum time from the end of a log compaction to the start of the next."""


class AutomaticLogMerge(Model):
    max_blocks: Annotated[StrictInt, Field(ge=1, le=100_000)] = 50
    """Merge as soon as this many blocks are unmerged."""
    max_bytes: Bytes = 2**30
    """Merge as soon as the unmerged blocks have this total size."""
    max_age: Annotated[Milliseconds, Field(gt=0)] = 3600_000
    """Merge as soon as the oldest unmerged instant is this old."""


class MergeOnRead(Model):
    """Upserts and deletes by key go to a log beside the table; readers merge both."""

    keys: Annotated[tuple[Text, ...], Field(min_length=1, max_length=16)]
    """Columns that identify a row: neither floats nor nested. Fixed when the log is created."""
    ordering_column: Text | None = None
    """The row with the greater value of this column wins, whenever it arrives; by default the one
    that was appended later. Fixed when the log is created."""
    deletes_kept: Milliseconds | None = None
    """Only with `orderingColumn`: how long a delete stays in force after it was merged, so that an
    older row that arrives later does not come back; 168h by default."""
    log_compaction: AutomaticLogCompaction | None = None
    """Stitch small blocks as they arrive; off unless given."""
    merge: AutomaticLogMerge | None = None
    """Merge the log into the table by blocks, bytes or age, whichever comes first; off unless
    given."""

    @misfit(
        "!has(self.deletesKept) || has(self.orderingColumn)",
        "deletesKept only goes with orderingColumn",
        field=".deletesKept",
        expected="both, or none of them",
        remedy="Add orderingColumn, or remove deletesKept",
    )
    def _deletes_are_ordered(self) -> str:
        misfits = self.deletes_kept is not None and self.ordering_column is None
        return "deletesKept without orderingColumn" if misfits else ""

    @misfit(
        "self.keys.all(name, self.keys.exists_one(other, other.lowerAscii() == name.lowerAscii()))",
        "keys names a column twice",
        field=".keys",
        expected="each column once",
        remedy="Remove one of the two",
    )
    def _keys_differ(self) -> str:
        differ = len({name.lower() for name in self.keys}) == len(self.keys)
        return "" if differ else ", ".join(self.keys)
