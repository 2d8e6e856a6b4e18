"""How a layout (`Sort`, `ZOrder`, `Clustering`) changes a plan: its bins, and which ones are worth
rewriting.

Rows can only be sorted if they are rewritten together: so all files of a partition and chunk are
one bin, and become files that do not overlap. Files whose tag says that they are in that order
already are left alone: otherwise a schedule would rewrite the same table forever. Nothing here
reads a table; columns are checked against a given schema.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from tandem.delta.actions import DomainMetadata
from tandem.delta.clustering import STABLE_CUBE, clustering_columns
from tandem.delta.schema import COLLATIONS, Field, PrimitiveType, StructType
from tandem.distinct import IntArray
from tandem.errors import InvalidSpec, closest_name
from tandem.planning.plans import (
    DELETED_SHARE,
    Bin,
    CompactionRequest,
    can_change,
    is_in_order,
    is_worth_rewriting,
    one_bin_per_group,
    pack,
)
from tandem.spec.compaction import LayoutStrategy
from tandem.timeline.segment_files import SegmentFiles

FIELD = "spec.layout.columns"
_NO_ORDER = ("void", "variant")


def bins_of(files: SegmentFiles, request: CompactionRequest) -> tuple[Bin, ...]:
    """The bins of a run's files, useful or not."""
    if request.layout is LayoutStrategy.CLUSTERING:
        files = _to_cluster(files, request.layout_columns)
    if request.layout_label:
        return one_bin_per_group(files, request.target_file_size)
    return pack(files, request.target_file_size)


def _to_cluster(files: SegmentFiles, columns: Sequence[str]) -> SegmentFiles:
    """Without those of cubes that are large enough, and those that others cluster by."""
    cubes = files.cubes(columns)
    sizes = np.bincount(cubes + 1, files.sizes, 2)
    kept = sizes >= STABLE_CUBE
    kept[:2] = True, False
    return files.where(~kept[cubes + 1])


def _is_clustered(each: Bin, columns: Sequence[str]) -> bool:
    """Whether a bin is one cube, of which few rows were deleted since."""
    files = each.files
    assert isinstance(files, SegmentFiles)
    cubes = files.cubes(columns)
    one = cubes[0] > 0 and (cubes == cubes[0]).all()
    return bool(one and (files.deleted_shares <= DELETED_SHARE).all())


def rewrite_criterion(request: CompactionRequest) -> Callable[[Bin], bool]:
    """Whether rewriting a bin pays: fewer files, or another order of rows."""
    label = request.layout_label
    if request.layout is LayoutStrategy.CLUSTERING:
        return lambda each: not _is_clustered(each, request.layout_columns)
    if label:
        return lambda each: not is_in_order(each, label)
    return is_worth_rewriting


def useful_bins(files: SegmentFiles, request: CompactionRequest) -> tuple[Bin, ...]:
    """The bins that are worth rewriting."""
    if request.layout_label:
        return tuple(filter(rewrite_criterion(request), bins_of(files, request)))
    return pack(files, request.target_file_size, useful_only=True)


def may_gain(
    files: SegmentFiles, runs: IntArray, request: CompactionRequest
) -> list[tuple[int, SegmentFiles]]:
    """The runs that can have useful bins, and their files, in the order of each run's first file.
    A test for all runs at once: bins of the others need not be made.

    Args:
        runs: for each file the number of its run, or -1.
    """
    gains = runs >= 0
    if not request.layout_label:
        change = can_change(files, runs, request.target_file_size)
        gains &= np.isin(runs, runs[change])
    return files.where(gains).grouped(runs[gains])


def checked_columns(
    columns: Sequence[str],
    schema: StructType,
    partition_columns: Collection[str],
    *,
    resource: str,
    field: str = FIELD,
) -> tuple[str, ...]:
    """The columns as the schema spells them: names are case-insensitive, as in statements.

    Raises: InvalidSpec if a column does not exist, is named twice, is a partition column, or its
    values have no order.
    """

    def wrong(message: str, name: str, expected: str, remedy: str) -> InvalidSpec:
        return InvalidSpec(
            message, resource=resource, field=field, found=name, expected=expected, remedy=remedy
        )

    exact = {column.name: column for column in schema.fields}
    folded = {column.name.lower(): column for column in schema.fields}
    found: list[str] = []
    for name in columns:
        column = exact.get(name) or folded.get(name.lower())
        if column is None:
            raise wrong(*_unknown(name, schema.names))
        if column.name in partition_columns:
            raise wrong(
                f"{column.name} is a partition column of the table",
                name,
                "other columns",
                "Leave it out: each file holds one value of it.",
            )
        if not _has_order(column):
            raise wrong(
                f"The values of column {column.name} have no order",
                name,
                "a column of numbers, texts without a collation, times, bytes or booleans",
                "Choose another column; nested ones cannot be sorted by.",
            )
        if column.name in found:
            raise wrong(
                f"Column {column.name} is named twice",
                name,
                "each column once",
                "Leave the second one out.",
            )
        found.append(column.name)
    return tuple(found)


def clustered_by(
    domains: Mapping[str, DomainMetadata], schema: StructType, *, resource: str
) -> tuple[str, ...]:
    """References of the table's clustering columns. Raises: InvalidSpec if it has none, or values
    of one have no order; CorruptLog."""
    columns = clustering_columns(domains, schema)
    if not columns:
        raise InvalidSpec(
            "layout.strategy: Clustering needs a table with clustering columns",
            resource=resource,
            field="spec.layout.strategy",
            found="none",
            expected="clustering columns",
            remedy="Set them: ALTER TABLE … CLUSTER BY; or use Sort or ZOrder with columns",
        )
    for name, column in columns.items():
        if not _has_order(column):
            raise InvalidSpec(
                f"The values of clustering column {name} have no order",
                resource=resource,
                field="spec.layout.strategy",
                found=name,
                expected="columns of numbers, texts without a collation, times, bytes or booleans",
                remedy="Cluster by other columns: ALTER TABLE … CLUSTER BY",
            )
    return tuple(columns)


def _has_order(column: Field) -> bool:
    """Whether its values are ordered as they are here: a collation orders texts in another way."""
    known = isinstance(column.type, PrimitiveType) and column.type.name not in _NO_ORDER
    return known and COLLATIONS not in column.metadata


def _unknown(name: str, names: Sequence[str]) -> tuple[str, str, str, str]:
    """Message, found, expected and remedy for a name without a column."""
    if name.split(".")[0].lower() in {known.lower() for known in names}:
        return (
            "Rows can be ordered by whole columns only",
            name,
            "a column of the table",
            "Nested fields are not supported; make the field a column.",
        )
    meant = closest_name(name, names)
    return (
        f"The table has no column {name}",
        name,
        f"perhaps {meant}" if meant else "a column of the table",
        "`tandem table show` lists the columns.",
    )
