"""Cleaning of a table and of its log, on files whose clock the test sets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from mergelog.aged import AgedOrders, removed
from mergelog.orders import MERGE, STITCH, rows
from mergelog.test_beside import Before
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from tandem import mergelog
from tandem.delta.log.listing import commit_path
from tandem.errors import BaseHistoryGap, DataFileMissing
from tandem.mergelog import log_table
from tandem.mergelog.upkeep import resolve
from tandem.mergelog.versions import ROLLBACK, WRITER, upload_of
from tandem.operations import garbage
from tandem.operations.clean import rules_for
from tandem.operations.clean_log import merges_of
from tandem.operations.machine.events import Point
from tandem.planning.cleaning import DAY_MS, CleaningRules, RemovalReason
from tandem.spec.status import Phase

BLOCKS = "_tandem/log/blocks/"


ONE = pytest.mark.parametrize("orders_template", ["at"], indirect=True, ids=["by value"])


@pytest.fixture
def aged(orders_template: Path, tmp_path: Path) -> AgedOrders:
    return AgedOrders.copy(orders_template, tmp_path / "orders")


def blocks(orders: AgedOrders) -> set[str]:
    """The files of blocks, in use or not."""
    return {p for p in orders.there() if "/log/" in p and re.search(r"/part-[^/]*\.parquet", p)}


def versions(orders: AgedOrders) -> dict[int, object]:
    first, last = orders.log.base.versions()
    return {version: orders.view_at(version) for version in range(first, last + 1)}


# Stitched and merged blocks


def test_L11_I43_originals_stay_for_the_retention_and_longer_views_never_change(
    aged: AgedOrders,
) -> None:
    originals = set(aged.live())
    aged.run(STITCH)
    aged.clock.pass_days(1)
    aged.run(MERGE, name="merge")
    expected, before = aged.view(), versions(aged)
    # Within the retention each version can be read, and restored.
    young = aged.clean(5)
    assert blocks(aged) > originals
    assert versions(aged) == before
    assert young.next_ms is not None
    aged.clean(8)
    assert blocks(aged) == set(aged.live())
    assert aged.view() == aged.base() == expected
    # Archival: the versions of the log go a month later.
    aged.upsert("later", range(1), "later", 9)
    shown = aged.view()
    for days in (1, 40):
        aged.clean(days)
    assert aged.view() == shown


@ONE
def test_L15_originals_that_a_merge_reads_stay(aged: AgedOrders) -> None:
    """A merge that plans while they are stitched pins them."""
    expected, originals = aged.view(), set(aged.live())
    rounds = []

    def stitched() -> None:
        aged.run(STITCH, Before(Point.START_JOB, planned), name="stitch")

    def planned() -> None:
        merge = aged.run(MERGE, Before(Point.START_JOB, cleaned), name="merge")
        assert (merge.phase, merge.attempt) == (Phase.SUCCEEDED, 1)

    def cleaned() -> None:
        rounds.append(removed(aged.clean(40)))

    stitched()
    assert not rounds[0] & originals
    assert aged.view() == aged.base() == expected
    aged.clean()  # the merged blocks leave the log
    assert removed(aged.clean(8)) >= originals


@ONE
def test_a_merge_that_died_before_it_recorded_its_result_pins_nothing(aged: AgedOrders) -> None:
    """It has committed: the log of the base table says so. Deletes stay in force, and their blocks
    can be stitched."""
    with pytest.raises(ProcessDied):
        aged.run(MERGE, StrikeOnce(Point.RECORD_RESULT, Fault.DIE_BEFORE))
    assert garbage.unfinished(aged.store)
    assert not merges_of(aged.table).reads
    assert aged.run(STITCH).result is not None
    assert aged.view() == aged.base()


@ONE
def test_L15_originals_go_before_the_merge(aged: AgedOrders) -> None:
    expected, originals = aged.view(), set(aged.live())
    aged.run(STITCH)
    assert not removed(aged.clean(6)) & originals
    assert removed(aged.clean(2)) >= originals
    assert set(aged.live()) <= aged.there()
    assert aged.view() == expected
    aged.do(MERGE, name="merge")
    assert aged.base() == expected


@ONE
def test_blocks_that_a_log_compaction_reads_stay(aged: AgedOrders) -> None:
    expected, originals = aged.view(), set(aged.live())

    def meanwhile() -> None:
        aged.run(MERGE, name="merge")
        assert not removed(aged.clean(40)) & originals

    aged.run(STITCH, Before(Point.START_JOB, meanwhile))
    assert aged.view() == expected


@ONE
def test_a_dead_log_compaction_is_abandoned_and_its_files_are_removed(aged: AgedOrders) -> None:
    expected = aged.view()
    with pytest.raises(ProcessDied):
        aged.run(STITCH, StrikeOnce(Point.PUT_COMMIT, Fault.DIE_BEFORE))
    result = aged.clean(8)
    assert len(result.abandoned) == 1
    assert RemovalReason.ABANDONED in {each.why for each in result.garbage}
    assert aged.view() == expected
    status = aged.run(STITCH)
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 2)
    assert aged.view() == expected


def test_deletes_that_are_kept_stay(aged: AgedOrders) -> None:
    """With an ordering column a delete stays in force after its merge."""
    aged.run(MERGE)
    aged.clean(1)
    kept = set(aged.live())
    assert bool(kept) is aged.ordered
    aged.clean(60)
    assert set(aged.live()) == kept <= aged.there()
    # Older than the delete of key 0: the delete beats it, where there is an order.
    aged.upsert("late", range(1), "older", 7)
    assert (0 in {row[0] for row in aged.view()}) is not aged.ordered


@ONE
def test_the_log_is_none_of_the_base_tables_files(aged: AgedOrders) -> None:
    """Nor is a file of others that is called like a block."""
    (aged.folder / "blocks/0123456789abcdef/1").mkdir(parents=True)
    (aged.folder / "blocks/0123456789abcdef/1/part.parquet").write_bytes(b"")
    aged.run(STITCH)
    expected = aged.view()
    aged.clean(400, CleaningRules(0))
    assert "blocks/0123456789abcdef/1/part.parquet" in aged.there()
    assert aged.view() == expected


@ONE
def test_without_a_retention_only_orphans_are_removed(aged: AgedOrders) -> None:
    aged.run(STITCH)
    aged.run(MERGE, name="merge")
    before = versions(aged)
    orphan = uploaded(aged, aged.writer("dead"))
    result = aged.clean(3, CleaningRules(None))
    blocks = {each.file.path: each.why for each in result.garbage if BLOCKS in each.file.path}
    assert blocks == {orphan: RemovalReason.ROLLED_BACK}
    assert versions(aged) == before


# Uploads of dead writers


def uploaded(orders: AgedOrders, writer: mergelog.LogWriter) -> str:
    """A block that a writer uploads and does not commit: its path below the table."""
    (add,) = writer._upload(writer._arrange(rows(range(5, 6), "never", 9), None))
    return f"_tandem/log/{add.path}"


@ONE
def test_an_orphan_goes_after_a_day_and_its_upload_is_rolled_back_before(
    aged: AgedOrders,
) -> None:
    expected, writer = aged.view(), aged.writer("dead")
    orphan = uploaded(aged, writer)
    assert orphan not in removed(aged.clean(0.9))
    version = aged.log.snapshot().version
    dry = aged.clean(0.2, dry_run=True)
    assert aged.log.snapshot().version == version
    done = aged.clean()
    assert removed(dry) == removed(done) >= {orphan}
    upload = upload_of(orphan.removeprefix("_tandem/log/"))
    assert upload is not None
    assert dry.rolled_back == done.rolled_back == (upload,)
    assert aged.log.snapshot().txns[ROLLBACK + upload[0]].version == upload[1]
    assert not (aged.folder / orphan).parent.exists()
    assert aged.view() == expected
    # Nothing is left to do, and the session may append again.
    assert aged.clean().rolled_back == ()
    writer.append(rows(range(5, 6), "later", 9), batch=0)
    assert {row[0]: row[2] for row in aged.view()}[5] == "later"


@ONE
@pytest.mark.parametrize("others", [0, 1, 9], ids=["alone", "beside", "past all versions"])
def test_a_writer_that_slept_for_longer_than_all_retentions_commits_once(
    aged: AgedOrders, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """It stands still right before its put. With many others, the version that it puts was there
    and is gone, so that the put succeeds where no reader looks."""
    monkeypatch.setattr(log_table, "CHECKPOINT_INTERVAL", 4)
    aged.upsert("first", range(1), "first", 9)  # takes the interval over
    with aged.writer("sleeper") as writer:
        late = commit_path(aged.log.snapshot().version + 1)
        slept: list[str] = []

        def sleep() -> None:
            slept.extend(path for path in aged.there() if upload_of(path[len("_tandem/log/") :]))
            for number in range(others):
                aged.upsert(f"other {number}", range(30 + number, 31 + number), "theirs", 9)
            for days in (2, 100):
                aged.clean(days)
            if others > 4:
                assert not (aged.folder / "_tandem/log" / late).exists()

        aged.files.before_put = sleep
        done = writer.append(rows(range(5, 7), "mine", 9), batch=3)
    assert slept
    assert done.instant == aged.log.snapshot().version
    found = [row for row in aged.view() if row[2] == "mine"]
    assert [row[0] for row in found] == [5, 6]
    assert len([row for row in aged.view() if row[2] == "theirs"]) == others
    assert aged.log.snapshot().txns[WRITER + "sleeper"].version == 3
    commits = [path for path in aged.there() if path.endswith(late)]
    assert bool(commits) is (others <= 4)
    again = aged.writer("sleeper").append(rows(range(5, 7), "mine", 9), batch=3)
    assert (again.instant, again.repeated) == (done.instant, True)
    # What its first upload left is removed, and what counts stays.
    expected = aged.view()
    aged.clean(2)
    assert set(aged.live()) <= aged.there()
    assert aged.view() == expected


# Restores of the base table, and history that is gone


@ONE
def test_blocks_that_a_restore_brings_back_stay(aged: AgedOrders) -> None:
    """They had left the log for longer than its retention when it is cleaned."""
    before, merged_into = aged.view(), aged.log.base.snapshot().version
    aged.run(MERGE)
    aged.clean(1)
    aged.clock.pass_days(5)
    aged.foreign(lambda location: DeltaTable(location).restore(merged_into))
    assert aged.view() == before
    aged.clean(20, dry_run=True)
    aged.clean(1)
    assert aged.view() == before
    aged.do(MERGE, name="again")
    assert aged.base() == before


def test_a_restore_to_before_the_retention_is_named_and_its_lost_records_are_given_up(
    aged: AgedOrders,
) -> None:
    """The files of the base table are those of later versions, too; the merged block is of none."""
    aged.run(MERGE)
    before = aged.view()
    aged.upsert("new keys", range(100, 103), "new", 5)
    merged_into, with_block = aged.log.base.snapshot().version, aged.there()
    aged.run(MERGE, name="second")
    after = aged.view()
    aged.clean()
    aged.clean(8)
    assert len([path for path in with_block - aged.there() if BLOCKS in path]) > 0
    aged.foreign(lambda location: DeltaTable(location).restore(merged_into))
    with pytest.raises(DataFileMissing, match=r"restore the version before.*resolve --discard"):
        aged.view()
    with pytest.raises(DataFileMissing, match="cannot be kept"):
        resolve(aged.log, keep=True, now_ms=aged.clock.now_ms)
    found = resolve(aged.log, keep=False, now_ms=aged.clock.now_ms)
    assert len(found.gone) == 1
    assert aged.view() == before
    aged.upsert("later", range(100, 102), "later", 9)
    assert aged.view() == [*before, (100, 9, "later"), (101, 9, "later")]
    aged.do(MERGE, name="third")
    # The version before the restore has lost nothing.
    aged.foreign(lambda location: DeltaTable(location).restore(merged_into + 1))
    assert aged.view() == after


@ONE
def test_the_view_between_a_restore_and_an_overwrite_can_be_read(aged: AgedOrders) -> None:
    """No version of the log ever had those blocks again, and they left it long ago."""
    merged_into = aged.log.base.snapshot().version
    before = aged.view()
    aged.run(MERGE)
    aged.clean(1)
    aged.clock.pass_days(5)
    aged.foreign(lambda location: DeltaTable(location).restore(merged_into))
    restored = aged.log.base.snapshot().version
    aged.clock.pass_days(1)
    aged.foreign(
        lambda location: write_deltalake(location, rows(range(3), "new", 1), mode="overwrite")
    )
    aged.clean(3)
    assert aged.view_at(restored) == before
    aged.clean(5)
    assert len(aged.view()) == 3


@ONE
def test_versions_of_the_log_that_a_restored_version_needs_stay(
    aged: AgedOrders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are older than the retention, the restored version is not."""
    monkeypatch.setattr(log_table, "CHECKPOINT_INTERVAL", 4)
    month = CleaningRules(30 * DAY_MS)
    for number in range(5):
        aged.upsert(f"writer {number}", range(30, 31), "theirs", 9)
    merged_into, before = aged.log.base.snapshot().version, aged.view()
    aged.run(MERGE)
    aged.clean(1, month)
    aged.clock.pass_days(20)
    aged.foreign(lambda location: DeltaTable(location).restore(merged_into))
    restored = aged.log.base.snapshot().version
    aged.clock.pass_days(1)
    aged.foreign(lambda location: DeltaTable(location).delete())
    for number in range(5, 10):
        aged.upsert(f"writer {number}", range(30, 31), "later", 9)
    aged.clean(20, month)
    assert aged.view_at(restored) == before
    later = aged.clean(15, month)
    assert RemovalReason.ARCHIVED in {each.why for each in later.garbage}
    assert [row[2] for row in aged.view()] == ["later"]


@ONE
def test_history_that_is_gone_is_an_error_by_name(
    aged: AgedOrders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_table, "CHECKPOINT_INTERVAL", 4)
    for number in range(5):
        aged.upsert(f"writer {number}", range(30, 31), "theirs", 9)
    version = aged.log.base.snapshot().version
    aged.foreign(
        lambda location: write_deltalake(location, rows(range(50, 51), "x", 1), mode="append")
    )
    for number in range(5, 10):
        aged.upsert(f"writer {number}", range(30, 31), "theirs", 9)
    expected = aged.view()
    archived = [aged.clean(days) for days in (1, 40)][1]
    assert RemovalReason.ARCHIVED in {each.why for each in archived.garbage}
    assert aged.view() == expected
    with pytest.raises(BaseHistoryGap, match="no longer has the state"):
        aged.view_at(version)
    # A restore to before that: what it means for the log is not known any more.
    aged.foreign(lambda location: DeltaTable(location).restore(version))
    with pytest.raises(BaseHistoryGap, match="no longer has the state"):
        aged.view()
    with pytest.raises(BaseHistoryGap), aged.writer("new") as writer:
        writer.append(rows(range(1), "x", 1), batch=0)
    before = aged.there()
    # The table is cleaned, and what was removed of it is in the result.
    cleaned = aged.clean_round(40)
    assert "no longer has the state" in cleaned.problem
    assert removed(cleaned) == before - aged.there()
    assert {path for path in before if path.startswith(BLOCKS)} <= aged.there()
    resolve(aged.log, keep=True, now_ms=aged.clock.now_ms)
    assert [row for row in aged.view() if row[0] == 30]


@ONE
def test_I46_the_retention_of_the_log_is_at_least_that_of_the_base_table(aged: AgedOrders) -> None:
    """The base table keeps files for a month from today on; its log has not seen that yet."""
    originals = set(aged.live())
    aged.run(STITCH)
    aged.foreign(
        lambda location: DeltaTable(location).alter.set_table_properties(
            {"delta.deletedFileRetentionDuration": "interval 30 days"}
        )
    )
    rules = rules_for(aged.log.base.snapshot().configuration, None)
    assert not removed(aged.clean(10, rules)) & originals
    assert removed(aged.clean(21, rules)) >= originals
