"""Log clean-up: what is expired goes, what anything still needs stays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.lake import delta_log as dl
from support.lake.memory_store import MemoryStore
from support.some import few
from tandem.delta.log import listing
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.maintenance import clean, maintain, plan_cleanup, write_checkpoint
from tandem.errors import CorruptLog

DAY = 86_400_000


def _daily(
    checkpoints: tuple[int, ...], versions: int = 10, configuration: dict[str, str] | None = None
) -> tuple[MemoryStore, DeltaLog]:
    """A table with one commit a day, at noon, and checkpoints written on the same day."""
    today = [0]
    store = MemoryStore(clock=lambda: today[0] * DAY + DAY // 2)
    log = DeltaLog(store, parallel_reads=1)
    settings_ = {"delta.logRetentionDuration": "interval 3 days", **(configuration or {})}
    for version in range(versions):
        today[0] = version
        first = [dl.protocol(), dl.metadata(settings_)] if version == 0 else []
        store.put(dl.commit_name(version), dl.lines([dl.info(), *first, dl.add(f"f{version}")]))
        store.put(f"_delta_log/{version:020d}.crc", b"{}")
        if version in checkpoints:
            write_checkpoint(log, log.snapshot(), now_ms=0)
    return store, log


def _versions(store: MemoryStore) -> list[int]:
    return [int(p[11:31]) for p in store.paths() if _is_commit(p)]


def _is_commit(path: str) -> bool:
    return path.startswith("_delta_log/0") and path[31:] == ".json"


def test_removes_what_lies_before_the_cutoff_checkpoint() -> None:
    store, log = _daily((2, 5, 8))
    # Day 9 minus 3 days is midnight of day 6: version 5 is the newest not newer, and has one.
    assert clean(log, log.snapshot(), now_ms=9 * DAY + 1000) > 0
    assert _versions(store) == [5, 6, 7, 8, 9]
    left = [p for p in store.paths() if "checkpoint.parquet" in p]
    assert [int(p[11:31]) for p in left] == [5, 8]
    assert next(p for p in store.paths() if p.endswith(".crc")).endswith("5.crc")
    for version in range(5, 10):
        assert log.snapshot(version).num_files == version + 1


@pytest.mark.parametrize(
    ("checkpoints", "configuration", "why"),
    [
        ((), {}, "no checkpoint"),
        ((7, 8), {}, "only checkpoints newer than the cut-off"),
        ((2, 5), {"delta.enableExpiredLogCleanup": "false"}, "switched off"),
        ((2, 5), {"delta.logRetentionDuration": "interval 30 days"}, "nothing is that old"),
        ((0,), {}, "nothing before the checkpoint"),
    ],
)
def test_clean_up_removes_nothing_that_is_needed(
    checkpoints: tuple[int, ...], configuration: dict[str, str], why: str
) -> None:
    store, log = _daily(checkpoints, configuration=configuration)
    before = store.paths()
    assert clean(log, log.snapshot(), now_ms=9 * DAY) == 0, why
    assert store.paths() == before


def test_a_broken_checkpoint_is_not_relied_on() -> None:
    store, log = _daily((2, 5, 8))
    store.put("_delta_log/00000000000000000005.checkpoint.parquet", b"PAR1 cut off")
    before = store.paths()
    with pytest.raises(CorruptLog):
        clean(log, log.snapshot(), now_ms=9 * DAY)
    assert store.paths() == before


def test_a_running_operation_keeps_its_commits() -> None:
    store, log = _daily((2, 5, 8))
    clean(log, log.snapshot(), now_ms=9 * DAY, in_use_from=4)
    assert _versions(store) == list(range(2, 10))


def test_unknown_retention_is_reported_and_removes_nothing() -> None:
    store, log = _daily((2, 5), 16, {"delta.logRetentionDuration": "interval 2 months"})
    report = maintain(log, log.snapshot(), now_ms=15 * DAY)
    assert report.checkpoint == 15
    assert "logRetentionDuration" in report.notes[0]
    assert _versions(store) == list(range(16))


def test_unreferenced_sidecars_are_removed_after_a_day() -> None:
    store, log = _daily((2, 5, 8))
    store.put("_delta_log/_sidecars/old.parquet", b"x")  # written on day 9
    clean(log, log.snapshot(), now_ms=9 * DAY)
    assert "_delta_log/_sidecars/old.parquet" in store.paths()
    assert clean(log, log.snapshot(), now_ms=12 * DAY) > 0
    assert "_delta_log/_sidecars/old.parquet" not in store.paths()


def _subsets() -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, 9), unique=True).map(lambda v: tuple(sorted(v)))


@settings(max_examples=few(10, 200), deadline=None)
@given(_subsets(), st.integers(0, 20), st.data())
def test_a_killed_clean_up_leaves_a_readable_log(
    checkpoints: tuple[int, ...], today: int, data: st.DataObject
) -> None:
    """Whatever prefix of the plan was carried out, the latest version and all that were to be
    kept read as before, and everything younger than the retention is still there."""
    store, log = _daily(checkpoints)
    before = {v: log.snapshot(v).num_files for v in range(10)}
    plan = plan_cleanup(log, log.snapshot(), now_ms=today * DAY)
    paths = [file.path for file in plan]
    done = data.draw(st.integers(0, len(paths)))
    times = {m.path: m.modified_ms for m in store.list("_delta_log")}
    store.delete(paths[:done])
    keep_from = min(v for v in range(10) if listing.commit_path(v) not in paths)
    assert all(times[p] <= today * DAY - 3 * DAY for p in paths)
    assert {v: log.snapshot(v).num_files for v in range(keep_from, 10)} == {
        v: n for v, n in before.items() if v >= keep_from
    }
    assert log.snapshot().version == 9
