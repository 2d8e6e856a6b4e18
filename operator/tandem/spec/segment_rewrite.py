"""`SegmentRewrite`: rewrite single segments and leave the others alone."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from tandem.spec.common import Mode, Operation, RewritingSpec, lock_mode_lines
from tandem.spec.fields import (
    IncompatibleFields,
    Model,
    StrictBool,
    StrictInt,
    Text,
    UniqueSegmentsOrChunks,
    cel,
    misfit,
)
from tandem.spec.index import BloomFilters


class Codec(StrEnum):
    """Parquet codecs that our writer writes and that our reader, `deltalake` and Spark read as
    they are installed. Brotli is left out: Spark reads it only with a further library."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    GZIP = "gzip"
    LZ4 = "lz4"
    UNCOMPRESSED = "uncompressed"


HIGHEST_LEVEL: Final = {Codec.ZSTD: 22, Codec.GZIP: 9, Codec.LZ4: 12}
"""The highest level of those codecs that have levels; the lowest is 1."""


class Recompress(Model):
    codec: Codec
    """A Parquet codec. `lz4` is Parquet's `LZ4_RAW`."""
    level: Annotated[StrictInt, Field(ge=1, le=22)] | None = None
    """Higher is smaller and slower: 1 to 22 for `zstd`, 1 to 9 for `gzip`, 1 to 12 for `lz4`; the
    codec's own default otherwise."""

    @model_validator(mode="after")
    @cel(
        "!has(self.level) || !(self.codec in ['snappy', 'uncompressed'])",
        "level only goes with zstd, gzip and lz4",
        field=".level",
    )
    @cel(
        "!has(self.level) || self.codec != 'gzip' || self.level <= 9",
        "the levels of gzip are 1 to 9",
        field=".level",
    )
    @cel(
        "!has(self.level) || self.codec != 'lz4' || self.level <= 12",
        "the levels of lz4 are 1 to 12",
        field=".level",
    )
    def _level_fits_codec(self) -> Recompress:
        if self.level is None:
            return self
        if self.codec not in HIGHEST_LEVEL:
            raise IncompatibleFields(
                "level only goes with zstd, gzip and lz4",
                found=f"level {self.level} with codec {self.codec}",
                expected="no level, or another codec",
                remedy="Remove level",
            )
        if self.level > HIGHEST_LEVEL[self.codec]:
            highest = HIGHEST_LEVEL[self.codec]
            raise IncompatibleFields(
                f"the levels of {self.codec} are 1 to {highest}",
                found=f"level {self.level}",
                expected=f"1 to {highest}",
                remedy="Lower it, or remove it for the codec's own default",
            )
        return self


class Rewrite(Model):
    purge_deleted: StrictBool = False
    """Leave out the rows that are marked as deleted. By itself it touches only the files that
    have such rows; together with another change all files are rewritten, also without these
    rows."""
    recompress: Recompress | None = None
    """Write the files with another codec."""
    sort_by: Annotated[tuple[Text, ...], Field(max_length=32)] = ()
    """Columns to sort the rows of each file by, ascending, nulls last; none by default."""
    add_bloom_filters: BloomFilters | None = None
    """Write the files with bloom filters of these columns, beside those that the LakeTable's
    `index.bloomFilters` names."""

    @misfit(
        "self.purgeDeleted || has(self.recompress) || (has(self.sortBy) && size(self.sortBy) > 0) "
        "|| has(self.addBloomFilters)",
        "must set at least one of purgeDeleted, recompress, sortBy, addBloomFilters",
        expected="one of them, at least",
        remedy="Add purgeDeleted: true, for example",
    )
    def _asks_for_something(self) -> str:
        others = self.recompress is not None or self.add_bloom_filters is not None
        return "" if self.purge_deleted or others or self.sort_by else "none of them"


class SegmentRewriteSpec(RewritingSpec):
    segments: UniqueSegmentsOrChunks
    """Names of the segments, as `tandem table segments` shows them, in quotes: `"0.1"`."""
    rewrite: Rewrite
    """What to change."""


class SegmentRewrite(Operation):
    """Rewrite single segments, each under its own name, while the table is being written."""

    kind_name: ClassVar[str] = "SegmentRewrite"
    short_name: ClassVar[str] = "segrw"
    mode: ClassVar[Mode] = Mode.REWRITE
    default_priority: ClassVar[int] = 25
    reports: ClassVar[frozenset[str]] = frozenset({"yields"})
    kind: Literal["SegmentRewrite"]
    spec: SegmentRewriteSpec

    @classmethod
    def plan_lines(cls, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
        """What it does to files, and how it locks."""
        rewrite = spec.get("rewrite") or {}
        found = []
        if rewrite.get("purgeDeleted"):
            found.append("purge deleted rows")
        if recompress := rewrite.get("recompress"):
            level = recompress.get("level")
            at = f", level {level}" if level is not None else ""
            found.append(f"recompress with {recompress.get('codec')}{at}")
        if rewrite.get("sortBy"):
            found.append(f"sort by {', '.join(map(str, rewrite['sortBy']))}")
        if filters := rewrite.get("addBloomFilters"):
            found.append(f"add bloom filters of {', '.join(map(str, filters.get('columns', ())))}")
        return [("rewrite", "; ".join(found)), *lock_mode_lines(spec)]
