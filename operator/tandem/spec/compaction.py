"""`TableCompaction`: write many small segments anew as few larger ones."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tandem.spec.common import OperationSpec, Resource
from tandem.spec.fields import Bytes, Milliseconds, Model, StrictInt, Text

Thresholds = Annotated[
    tuple[Annotated[StrictInt, Field(ge=2)], ...], Field(min_length=1, max_length=16)
]

_MIB = 2**20
_GIB = 2**30


class CompactionType(StrEnum):
    MINOR = "Minor"
    SEMI_MAJOR = "SemiMajor"
    MAJOR = "Major"
    CUSTOM = "Custom"


class Minor(Model):
    thresholds: Thresholds = (4, 3)
    """How many consecutive segments of each level make one of the next: by (4, 3) four loads
    become `0.1`, and three such become `0.2`."""
    preserve: Annotated[StrictInt, Field(ge=0)] = 0
    """The newest so many segments are left alone."""
    max_segment_size: Bytes | None = None
    """Segments of at least this size are left alone; no limit by default."""
    segments: Annotated[tuple[Text, ...], Field(min_length=1, max_length=10_000)] | None = None
    """Look among these segments only; among all by default. Automatic compaction says here
    what it chose."""


class SemiMajor(Model):
    chunks: tuple[Text, ...] | None = None
    """Time chunks (`2013-02`) to lay out as one; all by default. Everything in them that was
    committed by the read version."""


class Major(Model):
    target_segment_size: Annotated[Bytes, Field(gt=0)] = _GIB
    """Consecutive segments are merged up to this size."""


class Custom(Model):
    segments: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Names of the segments, as `tandem table segments` shows them."""
    where: Text | None = None
    """A condition that selects whole files by their statistics and partition values."""

    @model_validator(mode="after")
    def _one_selection(self) -> Custom:
        if (self.segments is None) == (self.where is None):
            raise ValueError("must have exactly one of segments, where")
        if self.segments and len(set(self.segments)) != len(self.segments):
            raise ValueError("segments names a segment twice")
        return self


class LayoutStrategy(StrEnum):
    BIN_PACK = "BinPack"
    SORT = "Sort"
    Z_ORDER = "ZOrder"


class Layout(Model):
    strategy: LayoutStrategy = LayoutStrategy.BIN_PACK
    """`BinPack` keeps the order of rows. `Sort` and `ZOrder` are not built yet."""
    columns: tuple[Text, ...] = ()
    """Columns to order by."""

    @model_validator(mode="after")
    def _columns_fit(self) -> Layout:
        if self.strategy is LayoutStrategy.BIN_PACK and self.columns:
            raise ValueError("columns only goes with the strategies Sort and ZOrder")
        if self.strategy is not LayoutStrategy.BIN_PACK and not self.columns:
            raise ValueError(f"strategy {self.strategy} needs columns")
        return self


class CompactionTemplate(Model):
    """What a compaction does; also the template of a schedule."""

    type: CompactionType
    """`Minor`: runs of consecutive segments by level. `SemiMajor`: whole chunks. `Major`: runs up
    to a size. `Custom`: what you name."""
    minor: Minor | None = None
    """Only with type `Minor`."""
    semi_major: SemiMajor | None = None
    """Only with type `SemiMajor`."""
    major: Major | None = None
    """Only with type `Major`."""
    custom: Custom | None = None
    """Required with type `Custom`, not allowed otherwise."""
    layout: Layout = Layout()
    """In which order the rows are written."""
    target_file_size: Annotated[Bytes, Field(gt=0)] = 128 * _MIB
    """Size that output files aim at."""
    skip_offset_from_latest: Milliseconds | None = None
    """Leave chunks alone that end less than this before the newest one ends; without a time
    column, segments that were loaded less than this before the newest. None by default."""

    @model_validator(mode="after")
    def _block_fits_type(self) -> Self:
        blocks: dict[CompactionType, tuple[str, Model | None]] = {
            CompactionType.MINOR: ("minor", self.minor),
            CompactionType.SEMI_MAJOR: ("semiMajor", self.semi_major),
            CompactionType.MAJOR: ("major", self.major),
            CompactionType.CUSTOM: ("custom", self.custom),
        }
        for type_, (name, block) in blocks.items():
            if block is not None and type_ is not self.type:
                raise ValueError(f"{name} only goes with type {type_}, but type is {self.type}")
        if self.type is CompactionType.CUSTOM and self.custom is None:
            raise ValueError("type Custom needs custom.segments or custom.where")
        return self

    @model_validator(mode="after")
    def _named_segments_have_any_age(self) -> Self:
        named = self.custom is not None and self.custom.segments is not None
        if named and self.skip_offset_from_latest is not None:
            raise ValueError("skipOffsetFromLatest does not go with custom.segments")
        return self

    @property
    def minor_options(self) -> Minor:
        """`minor`, or its defaults."""
        return self.minor or Minor()

    @property
    def semi_major_options(self) -> SemiMajor:
        """`semiMajor`, or its defaults."""
        return self.semi_major or SemiMajor()

    @property
    def major_options(self) -> Major:
        """`major`, or its defaults."""
        return self.major or Major()


class TableCompactionSpec(CompactionTemplate, OperationSpec):
    pass


class TableCompaction(Resource):
    """Compact a table once, while it is being written."""

    kind_name: ClassVar[str] = "TableCompaction"
    short_name: ClassVar[str] = "tcomp"
    kind: Literal["TableCompaction"]
    spec: TableCompactionSpec
