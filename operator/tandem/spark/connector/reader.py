"""The merged view as tasks of Spark.

The versions of base table and log are fixed once, as the table is loaded: all tasks, retries and
actions of a DataFrame see the same view. A task gets numbers of files and blocks, not their
contents, and opens the view by its versions; a worker keeps it, with the winners of the log, for
its next task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.reader import TableFormat, arrow_schema
from tandem.delta.scan import check_rows, named_columns
from tandem.errors import TableReplaced
from tandem.mergelog.rows.winners import WinnerPasses
from tandem.mergelog.view import FilePart, MergedView, Share, open_log
from tandem.pruning.selection import Selection
from tandem.spark.connector.filters import all_of, conditions, on_columns
from tandem.spark.runtime.input_splits import InputSplit, TaskSplits, task_splits
from tandem.statements.tree import Expr

if TYPE_CHECKING:
    from tandem.spark.connector.options import ReadOptions

TASK_BYTES: Final = 64 << 20
"""The approximate size that one task reads: small files together, large ones in row groups."""


@dataclass(frozen=True, slots=True)
class ViewVersion:
    """Which view is read. Hashable and small: each task has it.

    Attributes:
        version: of the base table.
        instant: the version of the log, -1 to leave it out.
        table_id: the id of the base table.
        log_id: the id of the log. A recreated log has other records under the same number.
        schema_string: the columns of the base table.
        memory: bytes that the index of the log may take.
    """

    location: str
    storage: tuple[tuple[str, str], ...]
    version: int
    instant: int
    table_id: str
    log_id: str
    schema_string: str
    memory: int

    @classmethod
    def of(cls, view: MergedView, options: ReadOptions) -> ViewVersion:
        return cls(
            options.location,
            options.storage,
            view.base.version,
            view.instant,
            view.base.metadata.id,
            view.log_id if view.instant >= 0 else "",
            view.base.metadata.schema_string,
            options.memory,
        )

    def open(self) -> MergedView:
        """Raises: VersionNotFound, TableReplaced."""
        log = open_log(self.location, dict(self.storage))
        view = MergedView.at(log, self.version, self.instant)
        for what, found, expected in (
            ("table at this location", view.base.metadata.id, self.table_id),
            ("log of the table", view.log_id, self.log_id),
        ):
            if found != expected:
                raise TableReplaced(
                    f"the {what} was replaced since the table was loaded",
                    resource=self.location,
                    field="metaData.id",
                    found=found,
                    expected=expected,
                    remedy="Load the table again",
                )
        # In the same order in each process, whatever checkpoints were written meanwhile.
        files = view.base.files.sort_by("path")
        return replace(view, base=replace(view.base, files=files))


@dataclass(frozen=True)
class OpenedView:
    """A view, reduced by the conditions that Spark pushed."""

    view: MergedView
    where: tuple[Expr, ...]
    memory: int

    @cached_property
    def files(self) -> Sequence[int]:
        """Indexes of the files of the base table whose rows are read."""
        selected = Selection(all_of(self.where), self.view.base).mask(self.view.base.files)
        found: list[int] = np.flatnonzero(selected).tolist()
        return found

    @cached_property
    def blocks(self) -> Sequence[str]:
        return sorted(self.view.state.live)

    @cached_property
    def passes(self) -> WinnerPasses:
        return self.view.passes(self.memory)

    def tasks(self) -> list[TaskSplits]:
        """What each task reads: files by their places in `files`, then blocks."""
        sizes = self.view.base.files["size"].take(pa.array(self.files, pa.int64())).to_pylist()
        count = len(sizes)
        sizes += [self.view.state.live[path].size for path in self.blocks]
        return task_splits(sizes, TASK_BYTES, range(count, len(sizes)))

    def share(self, splits: Iterable[InputSplit]) -> Share:
        files: list[FilePart] = []
        blocks: set[str] = set()
        for split in splits:
            if split.input < len(self.files):
                files.append(FilePart(self.files[split.input], split.part, split.parts))
            else:
                blocks.add(self.blocks[split.input - len(self.files)])
        return Share(tuple(files), frozenset(blocks))


@lru_cache(maxsize=1)
def opened(version: ViewVersion, where: tuple[Expr, ...]) -> OpenedView:
    """The view for the next task of this worker, too."""
    view = version.open()
    check_rows(view.base)
    on_keys = all_of(on_columns(where, view.settings.keys))
    return OpenedView(view if on_keys is None else view.narrowed(on_keys), where, version.memory)


class ViewReader(DataSourceReader):
    """Reads columns of a view. Spark filters the rows."""

    def __init__(self, version: ViewVersion, columns: Sequence[str]) -> None:
        self._version = version
        self._columns = tuple(columns)
        self._where: tuple[Expr, ...] = ()

    @property
    def pushFilters(self) -> Callable[[list[Filter]], list[Filter]]:  # noqa: N802
        return _Push(self)

    def push(self, filters: Sequence[Filter]) -> None:
        self._where = conditions(filters, self._version.schema_string)

    def partitions(self) -> Sequence[InputPartition]:
        return opened(self._version, self._where).tasks() or [TaskSplits(0, ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskSplits)
        found = opened(self._version, self._where)
        base = found.view.base
        wanted = named_columns(base, self._columns)
        # As the schema declared to Spark.
        schema = arrow_schema(TableFormat(all_nullable(base.schema)), wanted)
        for batch in found.view.read(found.share(partition.splits), wanted, found.passes):
            yield batch if batch.schema.equals(schema) else batch.cast(schema)


class _Push:
    """`pushFilters` of a reader.

    Spark refuses a reader that overrides the method while the setting
    `spark.sql.python.filterPushdown.enabled` is off, as it is by default, and recognizes an
    override by `__func__`. This reader works with both settings.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: ViewReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._reader.push(filters)
        return filters
