"""The files of a job: makes its inputs from live files, `add` actions from its outputs, and reads
the rows that it matched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta import dv
from tandem.delta.actions import BASE_ROW_ID, ROW_COMMIT_VERSION, AddFile
from tandem.delta.clustering import CUBE_ID, PROVIDER
from tandem.delta.datafiles.copyable import DELETED_SHARE, Unfit, counted_reasons, is_small
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.protocol import feeds_changes
from tandem.errors import ManifestInvalid
from tandem.jobs.formats import InputFile, RewriteJob
from tandem.jobs.results import JobResult, OutputFile
from tandem.operations import attempt_files as files
from tandem.operations.kinds.commit_history import SnapshotView
from tandem.operations.kinds.time_column import time_column
from tandem.operations.model import CommitContent, OutputFileChange, Table, Work
from tandem.planning.adjacency import Adjacency, beside
from tandem.reconcile.feed import ChangedRows, not_derived
from tandem.reconcile.outcomes import FileDeletes
from tandem.rowmap.run_table import span
from tandem.spark.jobs.edits import WantedEdit
from tandem.storage import paths
from tandem.text import counted
from tandem.timeline.lineage import Root
from tandem.timeline.names import SegmentNumbers
from tandem.timeline.segment_files import SegmentFile, SegmentFiles
from tandem.timeline.segments import read_live_tags, segments

# Names, numbers and order of the new segments of a commit. Pure.


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A fresh segment: its name, its place in the order, and the numbers taken."""

    name: str
    sequence: int
    numbers: SegmentNumbers


def new_segment(snapshot: Snapshot, now_ms: int) -> NewSegment:
    """The segment that an ingest or an update creates if it commits right after `snapshot`."""
    tags = snapshot.derived(read_live_tags)
    numbers = SegmentNumbers.at(snapshot.txns, tags.mentioned)
    return NewSegment(str(numbers.take()), tags.next_sequence(now_ms), numbers)


def numbers_at(snapshot: Snapshot) -> SegmentNumbers:
    """The unchanged high-water mark, for commits that create no segment."""
    return SegmentNumbers.at(snapshot.txns)


# Which loads the outputs of a compaction were made from: their root tags.


_NO_CELL = (-1, None)


def root_tags(
    work: Work,
    removed: Collection[str],
    cut: Collection[str],
    outputs: Sequence[OutputFile],
    files: Mapping[str, int],
    sources: Mapping[str, Sequence[str]],
    heirs: Mapping[str, str],
    new: Mapping[int, int],
    numbers: SegmentNumbers,
) -> dict[str, dict[str, str]]:
    """The root tags of each output, by path, if it is committed right after the latest version.

    Where the inputs in a time chunk and partition are adjacent loads, their range. Else a number of
    its own, as for a load: that of its segment if it is new, or the next one. So has an output with
    rows of an input that was cut: the others of its rows are still those of their load.

    Args:
        removed: the inputs that the commit removes.
        cut: the inputs that live on without the rows that were taken.
        files: for each output, how many files it becomes.
        sources: for each output, inputs and heirs that it has rows of.
        heirs: an input for each heir, which goes in its place.
        new: the numbers that this commit gave to runs for their names, by run.
    """
    cells = _cells(work, removed, heirs)
    home = {
        output.path: _NO_CELL
        if any(path in cut for path in sources[output.path])
        else next((cells[path] for path in sources[output.path] if path in cells), _NO_CELL)
        for output in outputs
    }
    sizes = Counter[tuple[int, int]]()
    for output in outputs:
        sizes[output.run, home[output.path][0]] += files[output.path]
    own = dict(new)
    found = {}
    for output in outputs:
        cell, root = home[output.path]
        if root is None:
            if output.run not in own:
                own[output.run] = numbers.take()
            root = Root(own[output.run], own[output.run])
        found[output.path] = root.tags(sizes[output.run, cell])
    return found


def _cells(
    work: Work, removed: Collection[str], heirs: Mapping[str, str]
) -> dict[str, tuple[int, Root | None]]:
    """For each removed input the number of its cell within its run, and the root of what is made
    of that."""
    _, job = work.frozen
    assert isinstance(job.job, RewriteJob)
    inputs = job.job.inputs
    runs = {inputs[at].logged_path: each.run for each in job.job.bins for at in each.inputs}
    runs |= {heir: runs[source] for heir, source in heirs.items()}
    time = time_column(work.table.spec, work.snapshot)
    live = segments(beside(work.snapshot.files, removed), time)
    files, adjacency = live.columns.files, Adjacency(live)
    of_files = np.array([runs[p] if p in removed else -1 for p in files.paths], np.int64)
    taken = SegmentFiles(files, np.flatnonzero(of_files >= 0))
    cells: dict[str, tuple[int, Root | None]] = {}
    number = 0
    for _, of_run in taken.grouped(of_files[taken.places]):
        for members, root in adjacency.roots(of_run):
            cells |= dict.fromkeys(members.paths, (number, root))
            number += 1
    return cells


# What of a compaction's inputs is copied, by what the log says of them; the job asks the footers.
# No I/O.


def described(
    files: Sequence[SegmentFile],
    *,
    keeps_deleted: bool,
    group_rows: int | None = None,
    rows: Mapping[str, int] | None = None,
) -> str | None:
    """Which row groups are copied, and why others are not; None if none are.

    Args:
        keeps_deleted: the table writes deletion vectors, so that deleted rows can be copied.
        group_rows: `minRowGroupRows`; None for the default.
        rows: of files by logged path, where they are known beside the log. A file whose rows
            neither knows counts as one of none.
    """
    known = rows or {}
    reasons = [
        _not_copied(
            file,
            file.rows if file.rows is not None else known.get(file.path, 0),
            keeps_deleted=keeps_deleted,
            group_rows=group_rows,
        )
        for file in files
    ]
    copied = [file.size for file, why in zip(files, reasons, strict=True) if why is None]
    if not copied:
        return None
    size = f"{sum(copied) / (1 << 20):,.0f} MiB"
    what = f"the row groups of {counted(len(copied), 'file')} ({size}), where they fit"
    others = counted_reasons(Counter(why for why in reasons if why is not None))
    return f"{what}; encodes {', '.join(others)}" if others else what


def _not_copied(
    file: SegmentFile, rows: int, *, keeps_deleted: bool, group_rows: int | None
) -> Unfit | None:
    if is_small(rows, file.size, group_rows):
        return Unfit.SMALL
    most = DELETED_SHARE * rows if keeps_deleted else 0
    return Unfit.DELETED if file.deleted > most else None


def require_inside(table: Table, adds: Iterable[AddFile]) -> None:
    """Check that the logged paths of these files lie in the table or below an allowed prefix, so
    that no job is started that could not read them.

    Raises: LocationNotAllowed.
    """
    allowed = tuple(
        paths.canonical_prefix(prefix, field="allowedPrefixes")
        for prefix in table.readable_prefixes
    )
    for add in adds:
        paths.resolve(add.path, table.location, allowed)


def input_file(view: SnapshotView, path: str, wanted: BitMap64 | None) -> InputFile:
    """An input of which only the rows `wanted` are evaluated; None: all live rows."""
    add, state = view.add(path), view.get(path)
    assert add is not None
    assert state is not None
    skipped = state.dead if wanted is None else span(0, state.rows) - wanted
    return InputFile(
        logged_path=path,
        size=add.size,
        rows=state.rows,
        dv=dv.to_base64(skipped) if skipped else "",
        partition_values=dict(add.partition_values),
        base_row_id=add.extra.get(BASE_ROW_ID),
        row_commit_version=add.extra.get(ROW_COMMIT_VERSION),
    )


OTHER_IDS: Final = "files have other row ids than those that were read"


def have_other_ids(view: SnapshotView, inputs: Iterable[InputFile]) -> bool:
    """Whether live files of inputs have other row ids than those that a job was given."""
    for each in inputs:
        add = view.add(each.logged_path)
        ids = each.base_row_id, each.row_commit_version
        if add and (add.extra.get(BASE_ROW_ID), add.extra.get(ROW_COMMIT_VERSION)) != ids:
            return True
    return False


def matches_of(work: Work, result: JobResult) -> pa.Table:
    """The matches of a round, as `JobResult` describes them. Raises: ManifestInvalid."""
    if result.matches is None:
        raise ManifestInvalid(
            "the result of a round has no matches",
            resource=files.rounds(result.operation_id, result.attempt),
            field="matches",
        )
    with pa.ipc.open_file(pa.BufferReader(work.read(result.matches))) as reader:
        return reader.read_all()


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Files that a commit removes, and those that it gives another deletion vector."""

    removes: tuple[AddFile, ...]
    marked: tuple[OutputFileChange, ...]


def changes_of(view: SnapshotView, deletes: Mapping[str, FileDeletes]) -> FileChanges:
    """The changes that deletes make to live files: one without a live row is removed (Z11)."""
    view.prefetch(deletes)
    removes, marked = [], []
    for path, found in deletes.items():
        add = view.add(path)
        assert add is not None
        if found.is_whole:
            removes.append(add)
        else:
            marked.append(OutputFileChange(add, found.rows, found.dead))
    return FileChanges(tuple(removes), tuple(marked))


def with_change_files(
    work: Work,
    change: CommitContent,
    view: SnapshotView,
    written: Mapping[str, OutputFile],
    changes: Iterable[ChangedRows],
) -> CommitContent:
    """A commit with the change files that it needs for the table's change data feed.

    Args:
        view: of the version that it follows.
        written: the files that a job wrote, by path.
        changes: all rows that it changes.
    """
    if not feeds_changes(work.snapshot.protocol, work.snapshot.metadata):
        return change
    edited = work.by_edits and bool(change.marked)
    needed = not_derived(changes, edited=edited)
    return replace(change, changes=tuple(_change_file(view, written, each) for each in needed))


def _change_file(
    view: SnapshotView, written: Mapping[str, OutputFile], changed: ChangedRows
) -> WantedEdit:
    file: OutputFile | AddFile | None = written.get(changed.path)
    rows = 0 if file is None else written[changed.path].rows
    if file is None:
        file, state = view.add(changed.path), view.get(changed.path)
        assert file is not None
        assert state is not None
        rows = state.rows
    source = InputFile(
        logged_path=changed.path,
        size=file.size,
        rows=rows,
        partition_values=dict(file.partition_values),
    )
    return WantedEdit(source, span(0, rows) - changed.rows, change=changed.change)


def output_add(output: OutputFile, tags: Mapping[str, str]) -> AddFile:
    """The `add` of an output, whose path is as it is logged. Its `data_change` is set with the
    commit's (`CommitContent`)."""
    return AddFile(
        logged_path=output.path,
        partition_values=dict(output.partition_values),
        size=output.size,
        modified_ms=output.modified_ms,
        data_change=True,
        stats=output.stats,
        tags=dict(tags),
        extra={"clusteringProvider": PROVIDER} if CUBE_ID in tags else {},
    )
