"""`LogCompaction`: stitch the blocks of a merge-on-read table's log."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tandem.spec.common import Mode, Operation, OperationSpec
from tandem.spec.fields import Bytes, StrictInt


DEFAULT_MIN_BLOCKS = 5


class Strategy(StrEnum):
    SMALL_RUNS = "SmallRuns"
    ALL_BLOCKS = "AllBlocks"


class LogCompactionSpec(OperationSpec):
    strategy: Strategy = Strategy.SMALL_RUNS
    """`SmallRuns` stitches runs of consecutive small blocks of about the same size; `AllBlocks`
    all blocks of each group."""
    min_blocks: Annotated[StrictInt, Field(ge=2, le=100_000)] = DEFAULT_MIN_BLOCKS
    """How many blocks a run of `SmallRuns` has at least."""
    max_block_bytes: Bytes = 256 * 2**20
    """Blocks of at least this size are not small, and a stitched block is split at this size."""


class LogCompaction(Operation):
    """Stitch blocks of a log, while writers append."""

    kind_name: ClassVar[str] = "LogCompaction"
    short_name: ClassVar[str] = "lcomp"
    mode: ClassVar[Mode] = Mode.REWRITE
    columns: ClassVar[Mapping[str, str]] = {"Strategy": ".spec.strategy"}
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
