"""A commit of Tandem whose answer was lost, and which the log no longer holds: neither
put again nor cleaned away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.jobs.quick_lake import QuickLake, make
from support.lake.faults import Fault, strike
from support.lake.lake import Process, batch, loads
from support.lake.rows import Rows
from tandem.delta.actions import Action
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.names import commit_path
from tandem.delta.protocol import FORGETFUL
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.ports import LocalClaims
from tandem.operations.session.options import Interceptor
from tandem.spec.resources import Operation
from tandem.spec.status import Phase

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
