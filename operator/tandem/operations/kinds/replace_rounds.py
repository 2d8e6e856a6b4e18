"""Where a replace finds out which rows of files are in its scope: in this process, or by its job.

Statistics and partition values leave some files open, and the times of these have to be read. The
engine reads few of them (`SmallRounds.time_bytes`), the job all others: in its first run those that
are known at the plan, in a later round those that came since. An answer is about all rows of a
file, live or not, and a file never changes: the job reads it once, and the answer does not depend
on the version at which it was requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyroaring import BitMap64

from tandem.delta.actions import AddFile
from tandem.delta.stats import num_records_of
from tandem.jobs.formats import InputFile, ReplaceJob, RoundRequest
from tandem.operations.kinds.table.job_files import input_file, matches_of
from tandem.operations.kinds.table.snapshot_view import SnapshotView
from tandem.operations.machine.events import Verdict
from tandem.operations.model import Decision, Work
from tandem.reconcile.matches import check_part, round_result
from tandem.rowmap.positions import span, to_bitmap
from tandem.text import counted

_BYTES_OF_A_TIME = 8
_BYTES_OF_A_FILE = 256 << 10
"""What a store sends in the time that it takes to answer: a file costs no less."""


def need_job(work: Work, adds: Iterable[AddFile]) -> bool:
    """Whether the times of these files are too many to be read in this process. Estimated without
    opening a file: eight bytes a row, but no more than the file has."""
    total = 0
    for add in adds:
        rows = num_records_of(add.stats)
        times = add.size if rows is None else min(add.size, rows * _BYTES_OF_A_TIME)
        total += max(times, _BYTES_OF_A_FILE)
    return total > work.small_rounds.time_bytes


def inputs_of(view: SnapshotView, paths: Sequence[str]) -> tuple[InputFile, ...]:
    """These files, with all their rows, as inputs of a job. Raises: DataFileMissing."""
    view.prefetch(paths)
    found = []
    for path in sorted(paths):
        state = view.get(path)
        assert state is not None
        found.append(input_file(view, path, span(0, state.rows)))
    return tuple(found)


def by_job(work: Work, view: SnapshotView, paths: Sequence[str]) -> Decision:
    """The decision to let the job read these files: in its next round, or by a plan with a job."""
    plan, spec = work.frozen
    files = counted(len(paths), "file")
    if not spec.job.needs_spark:
        return Decision(Verdict.REPLAN, f"a job has to read the times of {files}")
    request = RoundRequest(
        operation_id=plan.operation_id,
        attempt=plan.attempt,
        round=max(work.results) + 1,
        table_version=view.snapshot.version,
        inputs=inputs_of(view, paths),
    )
    return Decision(Verdict.EVALUATE, f"the times of {files} are unknown", evaluate=request)


def rows_of_round(work: Work, round_: int) -> Mapping[str, BitMap64]:
    """By path the rows in scope of the files that a round has read. Raises: ManifestInvalid,
    CountMismatch."""
    job = work.frozen[1].job
    assert isinstance(job, ReplaceJob)
    inputs = job.inputs if round_ == 0 else work.requests[round_].inputs
    if not inputs:
        return {}
    paths = [file.logged_path for file in inputs]
    result = round_result(matches_of(work.table, work.results[round_]), paths, ())
    check_part(result, {file.logged_path: span(0, file.rows) for file in inputs})
    found = {path: to_bitmap(matches.positions) for path, matches in result.matches.items()}
    return {path: found.get(path, BitMap64()) for path in paths}
