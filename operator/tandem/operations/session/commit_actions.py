"""Makes a commit from a change set: deletion vectors, tags, statistics, `txn`s.

Also the reverse: finds the commit of a success, and the result that it carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError
from pyroaring import BitMap64

from tandem.delta import dv
from tandem.delta.actions import Action, AddFile, Commit, DeletionVector, Txn
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot, commit_info, remove_of
from tandem.delta.row_tracking import with_row_ids
from tandem.delta.stats import mark_bounds_wide
from tandem.operations import attempt_files
from tandem.operations.explain import total
from tandem.operations.model import CommitContent, OutputFileChange, Vectors, Work
from tandem.operations.session.carry_out import change_files
from tandem.spec.status import OperationResult, RowsAffected
from tandem.storage.store import Store


def write_vectors(store: Store, folder: str, change: CommitContent, known: Vectors) -> Vectors:
    """The deletion vectors of a change set by logged path, the fresh ones in one file below
    `folder`. Of `known`, written in an earlier round, those that are still valid are kept.

    None is stored inline, however small: Spark's vacuum fails on a table with one
    (docs/decisions/0087)."""
    vectors: dict[str, tuple[BitMap64, DeletionVector]] = {}
    fresh: list[tuple[str, BitMap64]] = []
    for file in (*change.outputs, *change.marked):
        path, rows = file.add.logged_path, file.dead
        if not rows:
            continue
        there = known.get(path)
        if there is not None and there[0] == rows:
            vectors[path] = there
        else:
            fresh.append((path, rows))
    written = dv.write_file(store, folder, [rows for _, rows in fresh])
    for (path, rows), vector in zip(fresh, written, strict=True):
        vectors[path] = (rows, vector)
    return vectors


def adds_of(change: CommitContent, vectors: Vectors) -> Mapping[str, AddFile]:
    """The adds of a change set, with their deletion vectors, by logged path."""
    found = {}
    for file in (*change.outputs, *change.marked):
        _, vector = vectors.get(file.add.logged_path, (None, None))
        found[file.add.logged_path] = _with_vector(file, vector)
    return found


def _with_vector(file: OutputFileChange, vector: DeletionVector | None) -> AddFile:
    add = file.add
    return replace(
        add,
        tags=add.tags if file.tags is None else file.tags,
        deletion_vector=vector,
        # Demanded by the protocol of every add with a vector; bounds are wide from now on.
        stats=add.stats if vector is None else mark_bounds_wide(add.stats, file.rows),
    )


def actions(work: Work, attempt: int, fencing: int) -> list[Action]:
    """The commit of `work.change` on top of `work.snapshot`, `commitInfo` first. Raises:
    CorruptLog if no row ids can be assigned."""
    change = work.change
    assert change is not None
    plan, _ = work.frozen
    version = work.snapshot.version + 1
    of_all = {"total": result_of(work, version).manifest()} if change.earlier else {}
    tandem = {
        **origin(work),
        "attempt": attempt,
        "readVersion": plan.read_version,
        "result": _own_result(work, version).manifest(),
        **of_all,
        **({"fencing": fencing} if fencing else {}),
        **change.details,
    }
    info = commit_info(
        change.operation,
        change.parameters,
        now_ms=work.now_ms,
        previous=work.snapshot,
        blind_append=change.blind_append,
        isolation=change.isolation,
        metrics=operation_metrics(change),
        tandem=tandem,
    )
    found: list[Action] = [info, Txn(attempt_files.success_app(work.identity.operation_id), attempt,
                                     work.now_ms)]  # fmt: skip
    if change.numbers is not None and change.numbers.highest >= 0:
        found.append(change.numbers.txn(work.now_ms))
    found += change.txns
    found += change.further
    gone = [*change.removes, *(file.add for file in change.marked)]
    found += (
        remove_of(add, deletion_ms=work.now_ms, data_change=change.data_change) for add in gone
    )
    found += (replace(a, data_change=change.data_change) for a in work.adds.values())
    found += change_files(work, change)
    rows = {file.add.logged_path: file.rows for file in (*change.outputs, *change.marked)}
    return with_row_ids(work.snapshot, found, rows)


def origin(work: Work) -> dict[str, str]:
    """What each commit of an operation says of it."""
    identity = work.identity
    return {
        "operation": identity.operation_id,
        "kind": identity.kind,
        "resource": f"{identity.namespace}/{identity.display}",
    }


def operation_metrics(change: CommitContent) -> dict[str, str]:
    """The `operationMetrics` of a commit, named and counted as Spark + Delta 4.4 does
    (`DeltaOperationMetrics`). Those that we do not know are left out: times, the rows of a merge's
    source.

    There is one difference: Spark counts a file that an overwrite with a predicate gives a deletion
    vector as written, and its rows as copied.
    """
    sizes = sorted(file.add.size for file in change.outputs)
    gone = [add.size for add in change.removes]
    rows = change.rows or RowsAffected()
    written = sum(file.rows - len(file.dead or ()) for file in change.outputs)
    copied = written - rows.updated - rows.inserted
    replaced = _with_vectors(file.add for file in change.marked)
    vectors = {
        "DeletionVectorsAdded": sum(bool(f.dead) for f in (*change.outputs, *change.marked)),
        "DeletionVectorsRemoved": replaced + _with_vectors(change.removes),
        "DeletionVectorsUpdated": replaced,
    }
    counts: dict[str, int] = {}
    match change.operation:
        case "OPTIMIZE":
            counts = {
                **_percentiles(sizes),
                "numAddedFiles": len(sizes),
                "numAddedBytes": sum(sizes),
                "numRemovedFiles": len(gone),
                "numRemovedBytes": sum(gone),
                "numDeletionVectorsRemoved": vectors["DeletionVectorsRemoved"],
            }
        case "WRITE":
            counts = {
                "numFiles": len(sizes),
                "numOutputBytes": sum(sizes),
                "numOutputRows": written,
            }
            if "predicate" in change.parameters:
                counts |= {
                    "numRemovedFiles": len(gone),
                    "numRemovedBytes": sum(gone),
                    "numDeletedRows": rows.deleted,
                    "numCopiedRows": copied,
                    "numAddedChangeFiles": len(change.changes),
                }
        case "UPDATE" | "DELETE":
            updates = change.operation == "UPDATE"
            counts = {
                "numUpdatedRows" if updates else "numDeletedRows": rows.updated or rows.deleted,
                "numCopiedRows": copied,
                "numAddedFiles": len(sizes),
                "numAddedBytes": sum(sizes),
                # Of an update Spark counts the files, too, that only get a vector.
                "numRemovedFiles": len(gone) + (len(change.marked) if updates else 0),
                "numRemovedBytes": sum(gone),
                "numAddedChangeFiles": len(change.changes),
                **{f"num{name}": count for name, count in vectors.items()},
            }
        case "MERGE":
            counts = {
                "numTargetRowsInserted": rows.inserted,
                "numTargetRowsUpdated": rows.updated,
                "numTargetRowsDeleted": rows.deleted,
                **_by_clause(change.parameters, rows),
                "numTargetRowsCopied": copied,
                "numOutputRows": written,
                "numTargetFilesAdded": len(sizes),
                "numTargetBytesAdded": sum(sizes),
                "numTargetFilesRemoved": len(gone),
                "numTargetBytesRemoved": sum(gone),
                "numTargetChangeFilesAdded": len(change.changes),
                **{f"numTarget{name}": count for name, count in vectors.items()},
            }
    return {name: str(count) for name, count in counts.items()}


def _with_vectors(adds: Iterable[AddFile]) -> int:
    return sum(add.deletion_vector is not None for add in adds)


def _percentiles(sizes: Sequence[int]) -> dict[str, int]:
    """As `FileSizeStatsWithHistogram` picks them; of nothing there are none."""
    if not sizes:
        return {}
    quarters = {f"p{25 * n}FileSize": sizes[len(sizes) * n // 4] for n in (1, 2, 3)}
    return {"minFileSize": sizes[0], **quarters, "maxFileSize": sizes[-1]}


def _by_clause(parameters: Mapping[str, str], rows: RowsAffected) -> dict[str, int]:
    """The rows that clauses WHEN MATCHED changed, and those of the others; nothing if a merge has
    both, which are not counted apart."""
    by_source = parameters.get("notMatchedBySourcePredicates", "[]") != "[]"
    if by_source and parameters["matchedPredicates"] != "[]":
        return {}
    counts = rows.updated, rows.deleted
    matched, missed = ((0, 0), counts) if by_source else (counts, (0, 0))
    return {
        "numTargetRowsMatchedUpdated": matched[0],
        "numTargetRowsMatchedDeleted": matched[1],
        "numTargetRowsNotMatchedBySourceUpdated": missed[0],
        "numTargetRowsNotMatchedBySourceDeleted": missed[1],
    }


def abandonment(work: Work, attempt: int, *, closes: bool) -> list[Action]:
    """A commit without data that declares all attempts up to `attempt` dead; if it `closes` the
    operation, later attempts, too."""
    info = commit_info(
        "ABANDON",
        {"attempt": str(attempt)},
        now_ms=work.now_ms,
        previous=work.snapshot,
        blind_append=True,
        tandem={**origin(work), "abandoned": attempt},
    )
    operation_id = work.identity.operation_id
    found: list[Action] = [
        info,
        Txn(attempt_files.abandoned_app(operation_id), attempt, work.now_ms),
    ]
    if closes:
        found.append(Txn(attempt_files.closed_app(operation_id), attempt, work.now_ms))
    return found


def result_of(work: Work, version: int) -> OperationResult:
    """The result for the status if the change set is committed as `version`: of all batches, if
    this is the last one."""
    result = _own_result(work, version)
    change = work.change
    assert change is not None
    return total((*change.earlier, result)) if change.earlier else result


def _own_result(work: Work, version: int) -> OperationResult:
    change = work.change
    assert change is not None
    result = OperationResult(
        version=version,
        files_added=len(change.outputs),
        files_removed=len(change.removes),
        files_marked=len(change.marked) or None,
        bytes_added=sum(f.add.size for f in change.outputs),
        bytes_removed=sum(add.size for add in change.removes),
        rows_affected=change.rows,
        segments=change.segments or None,
        blocks_out=change.blocks,
        instants=None if change.blocks is None else (str(version),),
        replaced=change.replaced,
        reconciled=change.reconciled,
        summary=change.summary or None,
    )
    if not change.instants:
        return result
    blocks = {
        "blocks_in": result.files_removed,
        "blocks_out": result.files_added,
        "instants": change.instants,
    }
    return result.model_copy(update=blocks)


@dataclass(frozen=True, slots=True)
class TxnMarkers:
    """What a version shows that keeps attempts of an operation from committing after it: the
    attempt that succeeded and the highest abandoned one (0 for none), and whether the operation is
    closed."""

    succeeded: int = 0
    abandoned: int = 0
    closed: bool = False

    def forbid(self, attempt: int) -> bool:
        """Whether the attempt may not commit after this version."""
        return self.succeeded > 0 or self.closed or self.abandoned >= attempt

    def dead(self, up_to: int) -> tuple[int, ...]:
        """The attempts up to this one that have not committed and never can: no version refers to
        their files."""
        return tuple(n for n in range(1, up_to + 1) if n != self.succeeded and self.forbid(n))


def txn_markers(snapshot: Snapshot, operation_id: str) -> TxnMarkers:
    """The markers that a version shows."""
    succeeded = snapshot.txns.get(attempt_files.success_app(operation_id))
    abandoned = snapshot.txns.get(attempt_files.abandoned_app(operation_id))
    return TxnMarkers(
        succeeded.version if succeeded else 0,
        abandoned.version if abandoned else 0,
        attempt_files.closed_app(operation_id) in snapshot.txns,
    )


def find_success(log: DeltaLog, operation_id: str, latest: int) -> Commit | None:
    """The commit of a success that the log shows, searched backwards from `latest`; None if log
    clean-up has deleted it."""
    app = attempt_files.success_app(operation_id)
    for version in range(latest, -1, -1):
        commit = log.commit(version)
        if commit is None:
            return None
        if any(isinstance(a, Txn) and a.app_id == app for a in commit.actions):
            return commit
    return None


def result_in(commit: Commit | None) -> OperationResult:
    """The result that a commit of ours carries, with the version that it actually has: of all
    batches, if it is that of the last one."""
    if commit is None:
        return OperationResult()
    body = commit.info.body.get("tandem") if commit.info else None
    try:
        found = (body or {}).get("total") or (body or {}).get("result") or {}
        result = OperationResult.model_validate(found)
    except (ValidationError, AttributeError):
        result = OperationResult()
    return result.model_copy(update={"version": commit.version})
