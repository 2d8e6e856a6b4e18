"""How many requests a commit takes, each exactly: on a store far away they are its time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch
from support.lake.noted import Noted
from support.lake.rewritten import PURGE, rewrite
from tandem.errors import OutputMissing, StorageError
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus, Phase


class Course:
    """An interceptor: the requests of each effect, in their order, and what rivals do before it,
    whose requests do not count."""

    def __init__(self, noted: Noted, before: Callable[[Effect], None]) -> None:
        self._noted = noted
        self._before = before
        self.effects: list[tuple[Point, list[str]]] = []

    def __call__(self, effect: Effect, call: Callable[[], Event]) -> Event:
        self._before(effect)
        self._noted.taken()
        event = call()
        self.effects.append((effect.point, self._noted.taken()))
        return event

    def from_result_to_put(self) -> list[tuple[Point, list[str]]]:
        """What happens from the read of the result to the last put."""
        points = [point for point, _ in self.effects]
        last = len(points) - 1 - points[::-1].index(Point.PUT_COMMIT)
        return self.effects[points.index(Point.READ_RESULT) : last + 1]


def _run(
    lake: QuickLake, operation: Operation, before: Callable[[Effect], None] = lambda _: None
) -> tuple[OperationStatus, list[tuple[Point, list[str]]]]:
    store = lake.store
    noted = Noted(store)
    course = Course(noted, before)
    lake.store = cast(Any, noted)
    try:
        status = lake.run(operation, interceptor=course)
    finally:
        lake.store = store
    assert status.phase is Phase.SUCCEEDED, status
    return status, course.from_result_to_put()


def test_a_compaction_without_rivals_takes_eight_requests_from_its_result_to_its_commit(
    tmp_path: Path,
) -> None:
    lake = quick_lake.make(tmp_path)
    version = lake.version
    _, course = _run(lake, lake.compaction("Major"))
    made = [request for _, requests in course for request in requests]
    assert Counter(made) == Counter(
        [
            "get _tandem/operations/ID/attempts/1/rounds/0/result.json",
            "get _tandem/operations/ID/attempts/1/rounds/0/rowmap-UUID",
            "list _delta_log",
            "put _tandem/rowmaps/ID-1.rowmap",
            f"head version {version}",
            "list ID-1",
            f"put_if_absent version {version + 1}",
            "list _delta_log",  # not read back: what was put is known
        ]
    )


def test_a_round_after_a_lost_put_reads_only_what_is_new(tmp_path: Path) -> None:
    """The first put is lost to a delete and an append. All of them are read while the put ends,
    each once, and the next round begins with them."""
    lake = quick_lake.make(tmp_path)
    version = lake.version
    acted: list[Point] = []

    def rivals(effect: Effect) -> None:
        if effect.point is Point.PUT_COMMIT and not acted:
            acted.append(effect.point)
            lake_of_rival = quick_lake.at(lake.location, tmp_path / "rival")
            lake_of_rival.first_version = 900
            lake_of_rival.do(lake_of_rival.delete("id = 3"))
            lake_of_rival.append(batch(7))

    _, course = _run(lake, lake.compaction("Major"), rivals)
    lost = next(number for number, (point, _) in enumerate(course) if point is Point.PUT_COMMIT)
    assert Counter(course[lost][1]) == Counter(
        [
            f"head version {version}",
            "list ID-1",
            f"put_if_absent version {version + 1}",
            f"get version {version + 1}",
            "list _delta_log",
            f"get version {version + 2}",
        ]
    )
    again = [(point, requests) for point, requests in course[lost + 1 :] if requests]
    assert [point for point, _ in again] == [
        Point.RECONCILE,
        Point.WRITE_SIDECARS,
        Point.PUT_COMMIT,
    ]
    [reconcile, sidecars, put] = [requests for _, requests in again]
    assert [request.split("/")[0] for request in reconcile] == ["get_range _tandem"]
    assert [request.split(" ")[0] for request in sidecars] == ["head", "put_if_absent"]
    assert Counter(put) == Counter(
        [
            f"head version {version + 2}",
            "list ID-1",
            f"put_if_absent version {version + 3}",
            "list _delta_log",
        ]
    )
    expected = [row for number in (0, 1, 2, 3, 7) for row in batch(number) if row[0] != 3]
    lake.assert_rows_so_far(tuple(expected))


def test_a_statement_reads_each_commit_and_each_row_map_once(tmp_path: Path) -> None:
    """Five appends and three rewrites are committed before its first round."""
    lake = quick_lake.make(tmp_path)
    for number in range(4):
        lake.do(lake.delete(f"id = {10 * number}"))
    version = lake.version

    def rivals(effect: Effect) -> None:
        if effect.point is Point.READ_RESULT and lake.version == version:
            rival = quick_lake.at(lake.location, tmp_path / "rival")
            rival.first_version = 900
            for number in range(5):
                rival.append(batch(20 + number))
            for name in rival.names[:3]:
                rival.do(rewrite(rival, name, **PURGE))

    _, course = _run(lake, lake.update("k = 1", v="v + 1000000"), rivals)
    made = Counter(request for _, requests in course for request in requests)
    assert lake.version == version + 9
    read = {request: times for request, times in made.items() if request.startswith("get version")}
    assert read == {f"get version {version + 1 + number}": 1 for number in range(8)}
    assert sum(times for request, times in made.items() if "rowmaps/" in request) == 3
    # The blind appends come after the update; the rows that were rewritten are updated.
    updated = {row[0] for row in lake.by_tandem() if row[2] >= 1_000_000}
    assert updated == {row[0] for row in lake.by_tandem() if row[1] == 1 and row[0] < 40}


def test_the_version_that_a_lost_put_has_read_is_not_taken_for_the_latest_one_later(
    tmp_path: Path,
) -> None:
    """Between the lost put and the next read of the table, the attempt fails: the next attempt
    reads the table again."""
    lake = quick_lake.make(tmp_path)
    lake.backoff_limit = 2
    listed: list[tuple[Point, list[str]]] = []
    acted: list[Point] = []
    noted = Noted(lake.store)

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.PUT_COMMIT and not acted:
            acted.append(effect.point)
            quick_lake.at(lake.location).append(batch(7))
        if effect.point is Point.RECONCILE and acted == [Point.PUT_COMMIT]:
            acted.append(effect.point)
            raise OutputMissing("a file that the job wrote was deleted before the commit")
        noted.taken()
        event = call()
        listed.append((effect.point, noted.taken()))
        return event

    store, lake.store = lake.store, cast(Any, noted)
    status = lake.run(lake.compaction("Major"), interceptor=interceptor)
    lake.store = store
    assert status.phase is Phase.SUCCEEDED, status
    reads = [requests for point, requests in listed if point is Point.READ_TABLE]
    assert [bool(requests) for requests in reads] == [True, True, False, True, True]


def test_a_store_that_fails_after_a_lost_put_is_asked_again(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    acted: list[Point] = []
    store = lake.store
    failures = [2]

    class Failing(Noted):
        def __getattr__(self, name: str) -> Any:
            found = super().__getattr__(name)
            if name != "list" or not acted or not failures[0]:
                return found

            def fails(prefix: str = "", **named: Any) -> Any:
                if prefix == "_delta_log":
                    failures[0] -= 1
                    raise StorageError("the store does not answer", resource=prefix)
                return found(prefix, **named)

            return fails

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.PUT_COMMIT and not acted:
            quick_lake.at(lake.location).append(batch(7))
            acted.append(effect.point)
        return call()

    lake.store = cast(Any, Failing(store))
    status = lake.run(lake.compaction("Major"), interceptor=interceptor)
    lake.store = store
    assert status.phase is Phase.SUCCEEDED, status
    assert failures == [0]
    lake.assert_rows_so_far(tuple(row for number in (0, 1, 2, 3, 7) for row in batch(number)))


def test_vectors_of_several_files_are_read_side_by_side(tmp_path: Path) -> None:
    many = 3
    lake = quick_lake.make(tmp_path, many)
    for number in range(many):
        lake.do(lake.delete(f"id = {10 * number}"))
    meeting = threading.Barrier(many)
    store = lake.store

    class Meeting(Noted):
        def __getattr__(self, name: str) -> Any:
            found = super().__getattr__(name)
            if name != "get_range":
                return found

            def met(path: str, start: int, length: int) -> bytes:
                if path.startswith("_tandem/dv/"):
                    meeting.wait(300)
                return cast(bytes, found(path, start, length))

            return met

    lake.store = cast(Any, Meeting(store))
    status = lake.run(lake.compaction("Major"))
    lake.store = store
    assert status.phase is Phase.SUCCEEDED, status
