"""`LakeTable.spec.compaction.chunks`: when a time chunk is laid out as one, and in which order."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from tandem.spec.compaction import DEFAULT_TARGET_FILE_SIZE, Layout
from tandem.spec.fields import Bytes, IncompatibleFields, Model, StrictInt
from tandem.spec.rules import cel

_MIB, _GIB = 2**20, 2**30


class ChunkOrder(StrEnum):
    NEWEST_FIRST = "NewestFirst"
    MOST_FRAGMENTED_FIRST = "MostFragmentedFirst"
    OLDEST_FIRST = "OldestFirst"


class MinUncompacted(Model):
    """Any of them is enough."""

    segments: Annotated[StrictInt, Field(ge=1, le=1_000_000)] | None = None
    """So many segments are not compacted."""
    bytes: Bytes | None = None
    """So many bytes are not compacted."""
    percent: Annotated[StrictInt, Field(ge=1, le=100)] | None = None
    """So much of the chunk's bytes is not compacted."""

    @model_validator(mode="after")
    @cel(
        "has(self.segments) || has(self.bytes) || has(self.percent)",
        "must have segments, bytes or percent",
    )
    def _has_one(self) -> MinUncompacted:
        if self.segments is None and self.bytes is None and self.percent is None:
            raise IncompatibleFields(
                "must have segments, bytes or percent",
                found="none of them",
                expected="one of them, at least",
                remedy="Add one, or remove minUncompacted for the defaults",
            )
        return self


_LEAST = MinUncompacted(segments=4, bytes=64 * _MIB, percent=5)


class AutomaticChunks(Model):
    layout: Layout = Layout()
    """In which order the rows of a chunk are written."""
    target_file_size: Bytes = DEFAULT_TARGET_FILE_SIZE
    """Target size of output files."""
    order: ChunkOrder = ChunkOrder.NEWEST_FIRST
    """Which chunks go first: the newest, the oldest, or those with the most uncompacted
    segments."""
    min_uncompacted: MinUncompacted | None = None
    """How much of a chunk must be uncompacted before it is due; any one of those given is enough.
    By default 4 segments, 64Mi or 5 percent. Of a chunk that was laid out before, that is what came
    later, or has many deleted rows."""
    max_bytes: Bytes = 64 * _GIB
    """How much one compaction reads: several chunks together, or a single larger one."""
    parallel: Annotated[StrictInt, Field(ge=1, le=100)] = 1
    """How many of these compactions run at once, on different chunks."""

    @property
    def least(self) -> MinUncompacted:
        """`minUncompacted`, or its default."""
        return self.min_uncompacted or _LEAST
