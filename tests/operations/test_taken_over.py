"""Operations on real files that others overtake, take over or clean up behind."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake, just_before, make
from support.lake.faults import Fault, ProcessDied, StrikeOnce, strike
from support.lake.lake import DELETION_VECTORS, Lake, Process, batch, loads
from support.lake.rewritten import RECOMPRESS, rewrite
from support.lake.rows import Rows, k_is, plus, without
from tandem.delta.actions import Action
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.listing import commit_path
from tandem.delta.protocol import FORGETFUL
from tandem.errors import Reason
from tandem.locks.rules import WHOLE_TABLE, Granted, LockRequest, Mode
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.ports import LocalClaims, ProcessId
from tandem.operations.session.options import Interceptor
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus, Phase
from tandem.storage import open_store

# A commit of Tandem whose answer was lost, and which the log no longer holds: neither put again
# nor cleaned away.


NOW = {FORGETFUL: "interval 0 seconds"}
MADE: list[Callable[[QuickLake], Operation]] = [
    QuickLake.compaction,
    lambda lake: lake.ingest(batch(4)),
]


def _forget(lake: QuickLake) -> None:
    lake.foreign().alter.set_table_properties(NOW)
    lake.foreign().create_checkpoint()
    assert lake.log.snapshot().txns == {}, "or this test shows nothing"


def _remember(lake: QuickLake) -> None:
    lake.log_raw({"metaData": _metadata_without_the_property(lake)})


def _metadata_without_the_property(lake: QuickLake) -> dict[str, object]:
    metadata = lake.log.snapshot().metadata
    kept = {k: v for k, v in metadata.configuration.items() if k != FORGETFUL}
    return {
        "id": metadata.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": metadata.schema_string,
        "partitionColumns": list(metadata.partition_columns),
        "configuration": kept,
    }


def _loses_answer(then: Callable[[], object]) -> Interceptor:
    """The commit is put, something happens, and the answer never comes."""
    done: list[Point] = []

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is not Point.PUT_COMMIT or done:
            return call()
        done.append(effect.point)

        def put() -> Event:
            event = call()
            then()
            return event

        return strike(Fault.LOSE_ANSWER, effect, put)

    return interceptor


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("remembers", [True, False])
def test_a_commit_that_left_the_log_is_found_by_its_file(
    tmp_path: Path,
    made: Callable[[QuickLake], Operation],
    remembers: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = make(tmp_path, 4)
    rows = loads(range(4)) if made is QuickLake.compaction else loads(range(5))

    def clean_log_before_it() -> None:
        ours = lake.version
        _forget(lake)
        if remembers:
            _remember(lake)
        for version in range(ours):
            (lake.path / commit_path(version)).unlink()
        lake.foreign().create_checkpoint()

    put_commit = DeltaLog.put_commit

    def slow(log: DeltaLog, version: int, actions: Sequence[Action], *, token: str) -> None:
        put_commit(log, version, actions, token=token)
        clean_log_before_it()

    operation = made(lake)
    monkeypatch.setattr(DeltaLog, "put_commit", slow)
    status = lake.do(operation)
    assert status.result is not None
    assert status.result.version == 5
    lake.assert_rows(rows)


@pytest.mark.parametrize("made", MADE)
def test_a_commit_that_cannot_be_found_is_neither_repeated_nor_cleaned(
    tmp_path: Path, made: Callable[[QuickLake], Operation]
) -> None:
    lake = make(tmp_path, 4)
    rows = loads(range(4)) if made is QuickLake.compaction else loads(range(5))

    def clean_log() -> None:
        _forget(lake)
        for version in range(lake.version):
            (lake.path / commit_path(version)).unlink()

    status = lake.run(made(lake), interceptor=_loses_answer(clean_log))
    assert status.phase is Phase.FAILED, status
    assert FORGETFUL in status.conditions[0].message
    lake.assert_rows(rows)


def test_files_that_are_live_are_never_those_of_a_failure(tmp_path: Path) -> None:
    lake = make(tmp_path, 4)

    def forget_all() -> None:
        _forget(lake)
        _remember(lake)
        lake.foreign().create_checkpoint()
        for version in range(lake.version):
            (lake.path / commit_path(version)).unlink()

    status = lake.run(lake.compaction(), interceptor=_loses_answer(forget_all))
    assert status.phase in (Phase.FAILED, Phase.SUPERSEDED), status
    lake.assert_rows(loads(range(4)))


@pytest.mark.parametrize("made", [MADE[1], lambda lake: lake.delete("k = 2")])
def test_what_a_late_attempt_committed_is_neither_repeated_nor_deleted_by_its_successor(
    tmp_path: Path, made: Callable[[QuickLake], Operation]
) -> None:
    """A process that was taken for dead commits files, or deletion vectors, while its successor
    works; and the log forgets that."""
    lake = make(tmp_path, 4)
    lake.backoff_limit = 1
    operation = made(lake)
    first = lake.hold(operation, Point.START_JOB)
    rows: list[Rows] = []

    def late_commit(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.READ_RESULT:
            assert effect.attempt == 2
            first.succeed()
            _forget(lake)
            _remember(lake)
            rows.append(lake.by_tandem())
            lake.foreign().create_checkpoint()
            for version in range(lake.version):
                (lake.path / commit_path(version)).unlink()
        return call()

    ports = lake.ports(processes=Process(2, {2}), local_claims=LocalClaims())
    status = lake.run(operation, interceptor=late_commit, ports=ports)
    assert status.phase is Phase.FAILED, status
    assert "files of an attempt are live" in status.conditions[0].message
    [expected] = rows
    lake.assert_rows(expected)


# A session whose own attempt has failed takes over the attempt of another process: nothing that
# it decided for its own may be taken for a decision about the other's files.


class _Killed(BaseException):
    """Not caught anywhere in the engine."""


@dataclass(frozen=True)
class _ElsewhereProcesses:
    """Another host, which knows nothing of this one."""

    def me(self) -> ProcessId:
        return ProcessId("elsewhere", 7, "then")

    def alive(self, process: ProcessId) -> bool:
        return process == self.me()


def _dies_before_commit(effect: Effect, call: Callable[[], Event]) -> Event:
    if effect.point is Point.ENTER_COMMIT:
        raise _Killed
    return call()


def _rewritten(lake: QuickLake) -> Operation:
    return rewrite(lake, *lake.names, **RECOMPRESS)


@pytest.mark.parametrize("made", [QuickLake.compaction, _rewritten])
def test_an_attempt_of_another_process_is_adopted_after_a_failed_one(
    tmp_path: Path, made: Callable[[QuickLake], Operation]
) -> None:
    """I-1: its outputs are published, not those of the decision that was kept in memory."""
    lake = make(tmp_path)
    lake.backoff_limit = 1
    operation = made(lake)
    seen: list[Point] = []

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        seen.append(effect.point)
        if effect.point is Point.PUT_COMMIT and seen.count(effect.point) == 1:
            for path in lake.path.glob(f"*-{effect.attempt}/*.parquet"):
                path.unlink()  # as a vacuum without retention does
        if effect.point is Point.CHECK_EARLIER_OUTCOME and seen.count(effect.point) == 2:
            ports = lake.ports(processes=_ElsewhereProcesses(), local_claims=LocalClaims())
            with pytest.raises(_Killed):
                lake.run(operation, interceptor=_dies_before_commit, ports=ports)
        return call()

    lake.do(operation, interceptor=interceptor)
    assert Point.ADOPT_ATTEMPT in seen
    lake.assert_rows(loads(range(4)))


# Segments that go away between two attempts of a segment rewrite.


def _made(folder: Path) -> QuickLake:
    lake = make(folder, 3)
    lake.foreign().delete("k = 1")
    lake.backoff_limit = 1
    return lake


def _purge(lake: QuickLake, *names: str) -> Operation:
    return lake.resource(
        "SegmentRewrite", {"segments": list(names), "rewrite": {"recompress": {"codec": "zstd"}}}
    )


def _rewritten_by_others(lake: QuickLake) -> None:
    """And the previous files are gone, so that an operation that reads them must start again."""
    lake.foreign().update(updates={"v": "v"})
    lake.foreign().vacuum(0, dry_run=False, enforce_retention_duration=False)


def test_a_rewrite_of_segments_rewritten_meanwhile_is_superseded(tmp_path: Path) -> None:
    lake = _made(tmp_path)
    rewrite = _purge(lake, *lake.names)
    status = lake.run(
        rewrite, interceptor=just_before(Point.START_JOB, lambda: _rewritten_by_others(lake))
    )
    assert status.phase is Phase.SUPERSEDED, status
    assert "other operations rewrote" in status.conditions[0].message
    lake.assert_rows(without(loads(range(3)), k_is(1)))
    assert lake.run(rewrite).phase is Phase.SUPERSEDED


def test_a_later_process_knows_of_the_rewrite_too(tmp_path: Path) -> None:
    lake = _made(tmp_path)
    rewrite = _purge(lake, *lake.names)
    with pytest.raises(ProcessDied):
        lake.run(
            rewrite,
            interceptor=StrikeOnce(Point.START_JOB, Fault.DIE_BEFORE),
            ports=lake.ports(local_claims=LocalClaims()),
        )
    _rewritten_by_others(lake)
    assert lake.run(rewrite).phase is Phase.SUPERSEDED


def test_a_segment_that_was_never_there_is_an_error_still(tmp_path: Path) -> None:
    lake = _made(tmp_path)
    status = lake.run(_purge(lake, lake.names[0], "77"))
    assert status.conditions[0].reason == Reason.UNKNOWN_SEGMENT


# Tables whose checkpoints forget who committed (`delta.setTransactionRetentionDuration`).


def _dies_after_commit(effect: Effect, call: Callable[[], Event]) -> Event:
    event = call()
    if effect.point is Point.PUT_COMMIT:
        raise _Killed
    return event


def _refused(status: OperationStatus) -> None:
    assert status.phase is Phase.FAILED
    assert status.conditions[0].reason == Reason.UNSUPPORTED_FEATURE, status
    assert FORGETFUL in status.conditions[0].message


@pytest.mark.parametrize("made", [Lake.compaction, lambda lake: lake.ingest(batch(9))])
def test_a_table_with_short_log_retention_is_refused(
    tmp_path: Path, made: Callable[[QuickLake], Operation]
) -> None:
    lake = make(tmp_path, 2, properties={**DELETION_VECTORS, **NOW})
    _refused(lake.run(made(lake)))
    assert lake.version == lake.first_version
    lake.assert_rows(loads(range(2)))


def test_a_success_that_left_the_log_is_neither_repeated_nor_deleted(tmp_path: Path) -> None:
    lake = make(tmp_path, 2)
    ingest = lake.ingest(batch(2))
    ports = lake.ports(processes=_ElsewhereProcesses(), local_claims=LocalClaims())
    with pytest.raises(_Killed):
        lake.run(ingest, interceptor=_dies_after_commit, ports=ports)
    lake.foreign().alter.set_table_properties(NOW)
    lake.foreign().create_checkpoint()
    assert lake.log.snapshot().txns == {}, "or this test shows nothing"
    _refused(lake.run(ingest))
    lake.assert_rows(loads(range(3)))


# An operation that lost its locks to one of higher priority publishes nothing (I-25).


def test_I25_a_revoked_holder_publishes_nothing_until_it_holds_them_again(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    locks = InProcessLocks()
    compaction = lake.hold(
        lake.compaction("Major"), Point.ENTER_COMMIT, ports=lake.ports(locks=locks)
    )
    files = lake.log.snapshot().num_files
    urgent = LockRequest(
        table=lake.location,
        operation="urgent",
        mode=Mode.EXCLUSIVE,
        resources=WHOLE_TABLE,
        owner="urgent",
        priority=100,
    )
    assert isinstance(locks.acquire(urgent), Granted)
    compaction.go_on(Point.AWAIT_LOCKS)
    assert lake.log.snapshot().num_files == files
    locks.release(lake.location, "urgent", "urgent")
    compaction.succeed()
    lake.assert_rows(loads(range(4)))
    lake.assert_clean()


# A table of the version before, with operations half-way, is taken over. `version_before.tar.gz`
# is a table as commit df87a2a wrote it, before the modules moved and the machine's state was
# grouped: formats that are read again and identities of operations must not change with the code.
# Its location is `/LAKE`. Four foreign segments of ten rows, an ingest and an update; then four
# operations whose processes died: op-4-3 TableCompaction, SemiMajor before its commit is put
# op-4-4 TableUpdate, k = 1 before it reconciles op-4-5 TableUpdate, delete k = 2 before its job
# starts op-4-6 SegmentRewrite, segment 0 after its commit was put


TABLE = Path(__file__).with_name("version_before.tar.gz")
COMMITTED = 7


@pytest.fixture
def lake(tmp_path: Path) -> QuickLake:
    with tarfile.open(TABLE) as tar:
        tar.extractall(tmp_path, filter="data")
    for file in tmp_path.rglob("*.json"):
        file.write_text(file.read_text().replace("/LAKE", str(tmp_path)))
    location = (tmp_path / "lake").as_uri()
    made = QuickLake(location, None, tmp_path / "sources", open_store(location))  # type: ignore[arg-type]
    made.first_version, made.count, made.backoff_limit = 4, 2, 3
    return made


def test_operations_of_the_version_before_are_taken_over_and_end_once(lake: QuickLake) -> None:
    rewrite = {"segments": [lake.names[0]], "rewrite": {"recompress": {"codec": "gzip"}}}
    operations = [
        lake.compaction("SemiMajor"),
        lake.update("k = 1", v="v + 15"),
        lake.delete("k = 2"),
        lake.resource("SegmentRewrite", rewrite),
    ]
    before = plus(tuple(row for n in range(5) for row in batch(n)), k_is(3), 1)
    assert lake.version == COMMITTED
    lake.assert_rows(before)
    ends = [
        lake.run(each, ports=lake.ports(processes=Process(2, {2})), again=False)
        for each in operations
    ]
    assert [end.phase for end in ends] == [Phase.SUCCEEDED] * 4, ends
    # The rewrite had committed; the others commit now, one of them in another attempt.
    assert lake.version == COMMITTED + 3
    assert ends[3].result is not None
    assert ends[3].result.version == COMMITTED
    # Of the attempts that were left, only that whose job had not started is given up.
    assert [end.attempt for end in ends] == [1, 1, 2, 1]
    lake.assert_rows(without(plus(before, k_is(1), 15), k_is(2)))
    lake.assert_clean()
