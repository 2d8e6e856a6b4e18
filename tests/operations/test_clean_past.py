"""What a cleaning learns of a table's past from checkpoints and commits: with a log that is cleaned
up meanwhile, and by rounds that read only what is new."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from support.lake import delta_log as dl
from support.lake.memory_store import MemoryStore
from tandem.delta import dv
from tandem.delta.actions import DeletionVector
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.maintenance import clean as clean_log
from tandem.delta.log.maintenance import write_checkpoint
from tandem.errors import UnsupportedFeature
from tandem.operations.clean import MARKER, CleaningOptions, clean, rules_for
from tandem.operations.clean_facts import CleaningDependencies, live_files
from tandem.operations.model import Table
from tandem.planning.cleaning import DAY_MS, CleaningRules
from tandem.spec.table import Retention
from tandem.storage import open_store

CONFIGURATION = {
    "delta.deletedFileRetentionDuration": "interval 2 days",
    "delta.logRetentionDuration": "interval 3 days",
}


class Daily:
    """A table of others: each day a file comes and the one of three days ago goes. Each third day
    there is a checkpoint, and the log is cleaned up. With a `feed` commits name change files."""

    def __init__(self, *, feed: bool = False) -> None:
        self.feed = feed
        self.now_ms = DAY_MS
        self.store = MemoryStore(clock=lambda: self.now_ms)
        self.log = DeltaLog(self.store, parallel_reads=1)
        self.table = Table(self.store, self.log, "LakeTable/daily")
        self.day = 0

    def pass_a_day(self) -> None:
        first = [dl.protocol(), dl.metadata(CONFIGURATION)] if not self.day else []
        gone = self.day - 3
        removes = [dl.remove(name(gone), deletionTimestamp=self.now_ms)] if gone >= 0 else []
        self.store.put(name(self.day, logged=False), b"x" * 10)
        actions = [dl.info(), *first, dl.add(name(self.day)), *removes]
        if self.feed:
            self.store.put(f"_change_data/cdc {self.day}.parquet", b"x")
            path = f"_change_data/cdc%20{self.day}.parquet"
            actions.append(
                {"cdc": {"path": path, "partitionValues": {}, "size": 1, "dataChange": False}}
            )
        self.store.put(dl.commit_name(self.day), dl.lines(actions))
        if self.day % 3 == 2:
            write_checkpoint(self.log, self.log.snapshot(), now_ms=self.now_ms)
            clean_log(self.log, self.log.snapshot(), now_ms=self.now_ms)
        self.day += 1
        self.now_ms += DAY_MS

    def files(self) -> set[str]:
        return {p for p in self.store.paths() if not p.startswith("_")}

    def rules(self) -> CleaningRules:
        return rules_for(self.log.snapshot().configuration, None)

    def clean(self, *, thorough: bool) -> int:
        class Clock:
            def now_ms(_self) -> int:  # noqa: N805 - the table's own time
                return self.now_ms

            def sleep(self, ms: int, wake: object) -> None:
                raise AssertionError(f"{ms} {wake}")

        means = CleaningDependencies(clock=Clock())
        return len(
            clean(self.table, self.rules(), means, CleaningOptions(whole_log=thorough)).garbage
        )


def name(day: int, *, logged: bool = True) -> str:
    path = f"k={day % 2}/day {day}%.parquet"
    return quote(path, safe="/=") if logged else path


@pytest.mark.parametrize("thorough", [True, False])
def test_daily_rounds_leave_exactly_what_the_retention_keeps(thorough: bool) -> None:
    daily = Daily()
    for day in range(20):
        daily.pass_a_day()
        daily.clean(thorough=thorough)
        # A day has passed since: what went a day ago is one day old, and two are kept.
        kept = {name(each, logged=False) for each in range(max(0, day - 2 - 1), day + 1)}
        assert daily.files() == kept, day


@pytest.mark.parametrize("thorough", [True, False])
def test_change_files_go_with_their_versions_also_behind_a_checkpoint(thorough: bool) -> None:
    """A checkpoint keeps removals, and nothing of change files: the commits are read."""
    daily = Daily(feed=True)
    for day in range(20):
        daily.pass_a_day()
        if day % 2:  # a round has to know what was named before the last checkpoint
            daily.clean(thorough=thorough)
            there = {p for p in daily.store.paths() if p.startswith("_change_data/")}
            assert there == {f"_change_data/cdc {day}.parquet"}
    assert daily.files() == {name(each, logged=False) for each in range(16, 20)}


def test_rounds_read_only_new_commits() -> None:
    daily = Daily()
    for _ in range(20):
        daily.pass_a_day()
    daily.clean(thorough=False)
    daily.pass_a_day()
    read: list[str] = []
    daily.store.fault = lambda call: read.append(call.path) if call.name == "get" else None
    daily.clean(thorough=False)
    few = len([p for p in read if p.endswith(".json") and p.startswith("_delta_log/0")])
    read.clear()
    daily.pass_a_day()
    daily.clean(thorough=True)
    assert 0 < few <= len([p for p in read if p.endswith(".json")])


def test_after_a_pause_files_that_left_the_log_are_left_to_vacuum() -> None:
    daily = Daily()
    for _ in range(20):
        daily.pass_a_day()
    daily.clean(thorough=True)
    kept = {name(each, logged=False) for each in range(16, 20)}
    assert daily.files() >= kept
    assert daily.clean(thorough=True) == 0


def test_a_damaged_marker_costs_only_another_read() -> None:
    daily = Daily()
    for _ in range(6):
        daily.pass_a_day()
    daily.store.put(MARKER, b"{")
    assert daily.clean(thorough=False) > 0


def test_a_table_with_a_feature_that_we_do_not_know_is_left_alone() -> None:
    daily = Daily()
    for _ in range(6):
        daily.pass_a_day()
    protocol = dl.protocol(1, 7, writerFeatures=["fromTheFuture"])
    daily.store.put(dl.commit_name(6), dl.lines([dl.info(), protocol]))
    before = daily.files()
    with pytest.raises(UnsupportedFeature, match="cleaning is refused because of fromTheFuture"):
        clean(daily.table, daily.rules(), CleaningDependencies())
    assert daily.files() == before


def test_a_vector_that_is_named_by_its_absolute_path_is_live(tmp_path: Path) -> None:
    """As a clone may name it, though a removal calls the same file by its short name."""
    store = open_store(tmp_path.as_uri())
    vector = {**dl.vector("vBn[lx{q8@P<9BNH/isA"), "storageType": "u"}
    short = dv.file_path(DeletionVector("u", vector["pathOrInlineDv"], 0, 0))
    whole = {**vector, "storageType": "p", "pathOrInlineDv": f"{tmp_path.as_uri()}/{short}"}
    add = dl.add("a.parquet", deletionVector=whole, stats='{"numRecords":10}')
    commit = [dl.info(), dl.protocol(), dl.metadata(CONFIGURATION), add]
    store.put(dl.commit_name(0), dl.lines(commit))
    assert live_files(DeltaLog(store).snapshot()) == {"a.parquet", short}


@pytest.mark.parametrize(
    "root", ["file:///link/to/it", "wasbs://files@account.net/it", "s3://b/it"]
)
def test_a_live_file_is_kept_under_every_name_of_the_table(tmp_path: Path, root: str) -> None:
    """Links, and unknown schemes: it may be the file that a removal means."""
    store = open_store(tmp_path.as_uri())
    commit = [dl.info(), dl.protocol(), dl.metadata(CONFIGURATION), dl.add(f"{root}/k=1/a.parquet")]
    store.put(dl.commit_name(0), dl.lines(commit))
    assert "k=1/a.parquet" in live_files(DeltaLog(store).snapshot())


def kept(files: str) -> Retention:
    return Retention.model_validate({"files": files})


@pytest.mark.parametrize(
    ("interval", "retention", "automatic", "days"),
    [
        (None, None, False, 7),
        ("interval 30 days", None, False, 30),
        ("interval 30 days", None, True, None),
        ("interval 30 days", Retention(), True, 30),
        (None, kept("24h"), True, 1),
        ("interval 2 days", kept("24h"), True, 2),
        ("interval 1 hour", kept("48h"), False, 2),
    ],
)
def test_the_longer_retention_counts(
    interval: str | None, retention: Retention | None, automatic: bool, days: int | None
) -> None:
    configuration = {} if interval is None else {"delta.deletedFileRetentionDuration": interval}
    rules = rules_for(configuration, retention, automatic=automatic)
    assert rules.files_ms == (None if days is None else days * DAY_MS)
    assert rules.dead_ms >= DAY_MS
