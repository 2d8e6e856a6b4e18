"""A table that a catalog manages: read through it, and committed to."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.lake import delta_log as dl
from support.lake.memory_catalog import TABLE_ID, CatalogCall, MemoryCatalog
from support.lake.memory_store import Call, MemoryStore
from tandem.delta.actions import Action, AddFile, DomainMetadata
from tandem.delta.log.catalog_log import CatalogLog, staged_name
from tandem.delta.log.commit_log import MaintenanceRight
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.listing import STAGED, commit_path
from tandem.delta.log.maintenance import clean, maintain, write_checkpoint
from tandem.delta.log.snapshot import Snapshot, commit_info
from tandem.errors import (
    AlreadyExists,
    BacklogFull,
    CatalogForbids,
    CommitRefused,
    CorruptLog,
    LogGap,
    OutcomeUnknown,
    Reason,
    TableReplaced,
    UnsupportedFeature,
)

FEATURES = ["catalogManaged", "inCommitTimestamp", "vacuumProtocolCheck"]
ICT = {"delta.enableInCommitTimestamps": "true"}


class Managed:
    """A table in memory, its catalog, and how many calls there were of each kind."""

    def __init__(self, **catalog: Any) -> None:
        self.store = MemoryStore()
        first = [
            dl.info(inCommitTimestamp=1),
            dl.protocol(3, 7, readerFeatures=FEATURES, writerFeatures=FEATURES),
            dl.metadata(ICT),
        ]
        dl.write_log(self.store, [first])
        self.catalog = MemoryCatalog(self.store, **catalog)
        self.log = self.opened()
        self.calls: list[str] = []

    def opened(self) -> DeltaLog:
        commits = CatalogLog(self.store, self.catalog, TABLE_ID)
        return DeltaLog(self.store, commits=commits, parallel_reads=1)

    def actions(self, name: str, previous: Snapshot | None = None) -> list[Action]:
        previous = previous or self.log.snapshot()
        info = commit_info("WRITE", {}, now_ms=50, previous=previous, blind_append=True)
        return [info, AddFile(name, {}, 1, 1, data_change=True)]

    def put(self, name: str) -> int:
        """Another writer's commit, with a file of this name; its version."""
        version = self.catalog.latest + 1
        self.opened().put_commit(version, self.actions(name), token=name)
        return version

    def stage(self, version: int, name: str, token: str) -> str:
        """A staged file of another writer."""
        info = dl.info(inCommitTimestamp=version + 100, txnId=token)
        staged = staged_name(version, token)
        self.store.put(f"{STAGED}/{staged}", dl.lines([info, dl.add(name)]))
        return staged

    def count(self) -> None:
        def of_store(call: Call) -> None:
            if call.when == "before":
                self.calls.append(call.name)

        def of_catalog(call: CatalogCall) -> None:
            if call.when == "before":
                self.calls.append(call.name)

        self.store.fault, self.catalog.fault = of_store, of_catalog

    def files(self) -> set[str]:
        return {add.logged_path for add in self.opened().snapshot().adds()}

    def unpublish(self) -> None:
        """From here on, no writer gets to publish."""

        def fault(call: CatalogCall) -> None:
            if call.name == "report_published":
                raise OutcomeUnknown("no answer")

        def of_store(call: Call) -> None:
            if call.name == "put_if_absent" and STAGED not in call.path:
                raise OutcomeUnknown("no answer")

        self.catalog.fault, self.store.fault = fault, of_store

    def heal(self) -> None:
        self.catalog.fault = self.store.fault = None

    def published(self) -> list[int]:
        names = [path.removeprefix("_delta_log/") for path in self.store.paths()]
        return [int(name[:20]) for name in names if name[20:] == ".json"]


# Committing: the steps, and who won.


def test_a_commit_is_staged_ratified_published_and_reported() -> None:
    table = Managed()
    snapshot, actions = table.log.snapshot(), table.actions("ours")
    table.count()
    known: dict[int, bytes] = {}
    assert table.log.commit_after(snapshot, actions, token="t", known=known) is None
    assert table.calls == [
        "load", "put_if_absent", "add_commit", "put_if_absent", "report_published"
    ]  # fmt: skip
    newest = table.log.update(snapshot, known=known)
    assert table.calls[5:] == [], "five requests, none of them a listing"
    assert newest.version == 1
    assert newest.file("ours") is not None
    assert table.published() == [0, 1]
    assert table.catalog.unpublished == []
    assert table.files() == {"ours"}


@pytest.mark.parametrize("published", [True, False])
def test_a_commit_of_ours_is_read_without_a_request_beside_later_ones(*, published: bool) -> None:
    table = Managed()
    snapshot, actions = table.log.snapshot(), table.actions("ours")
    known: dict[int, bytes] = {}
    if not published:
        table.unpublish()
    assert table.log.commit_after(snapshot, actions, token="t", known=known) is None
    table.heal()
    table.put("theirs")
    table.count()
    newest = table.log.update(snapshot, known=known)
    assert (newest.version, table.calls) == (1, [])
    latest = table.log.update(newest)
    assert (latest.version, {add.logged_path for add in latest.adds()}) == (2, {"ours", "theirs"})


def test_the_catalog_gets_the_time_and_the_domains_of_the_commit() -> None:
    table = Managed()
    mark = DomainMetadata("delta.rowTracking", '{"rowIdHighWaterMark":7}', removed=False)
    table.log.put_commit(1, [*table.actions("ours"), mark], token="t")
    assert table.catalog.domains == {"delta.rowTracking": '{"rowIdHighWaterMark":7}'}
    found = table.catalog.versions[1]
    content = table.store.get(f"{STAGED}/{found.file_name}")
    info = json.loads(content.split(b"\n")[0])["commitInfo"]
    assert (found.timestamp_ms, found.size) == (info["inCommitTimestamp"], len(content))
    assert info["txnId"] == "t"


def test_in_commit_timestamps_increase_whatever_the_clock_says() -> None:
    table = Managed()
    times = []
    for version in range(1, 4):
        table.put(f"f{version}")
        times.append(table.catalog.versions[version].timestamp_ms)
    assert times == [50, 51, 52]


def test_a_taken_version_is_not_ours_and_its_commit_is_read() -> None:
    table = Managed()
    snapshot, actions = table.log.snapshot(), table.actions("ours")
    table.put("theirs")
    newest = table.log.commit_after(snapshot, actions, token="t")
    assert newest is not None
    assert newest.version == 1
    assert newest.file("theirs") is not None
    with pytest.raises(AlreadyExists):
        table.log.put_commit(1, actions, token="t")
    assert table.files() == {"theirs"}


def _on(name: str, when: str, act: Callable[[CatalogCall], None]) -> Callable[[CatalogCall], None]:
    """Acts at the first such call."""
    done = [False]

    def fault(call: CatalogCall) -> None:
        if (call.name, call.when) == (name, when) and not done[0]:
            done[0] = True
            act(call)

    return fault


def _no_answer(_call: CatalogCall) -> None:
    raise OutcomeUnknown("no answer")


@pytest.mark.parametrize("accepts_again", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_F28_a_lost_answer_is_one_commit(when: str, *, accepts_again: bool) -> None:
    """Sent again, the commit is refused by one server and accepted by another: its name decides."""
    table = Managed(accepts_again=accepts_again)
    snapshot, actions = table.log.snapshot(), table.actions("ours")
    table.catalog.fault = _on("add_commit", when, _no_answer)
    assert table.log.commit_after(snapshot, actions, token="t") is None
    assert table.catalog.latest == 1
    assert table.files() == {"ours"}


def test_a_refusal_of_what_was_accepted_is_ours_by_its_name() -> None:
    table = Managed()
    snapshot, actions = table.log.snapshot(), table.actions("ours")

    def refuse(_call: CatalogCall) -> None:
        raise CommitRefused("409")

    table.catalog.fault = _on("add_commit", "after", refuse)
    assert table.log.commit_after(snapshot, actions, token="t") is None
    assert table.files() == {"ours"}


@pytest.mark.parametrize("published", [True, False])
def test_F26_another_writer_wins_between_our_staging_and_our_request(*, published: bool) -> None:
    """Its answer alone looks like a lost one of ours."""
    table = Managed()
    snapshot, actions = table.log.snapshot(), table.actions("ours")

    def others(_call: CatalogCall) -> None:
        if not published:
            table.unpublish()
        table.put("theirs")
        table.heal()

    table.catalog.fault = _on("add_commit", "before", others)
    newest = table.log.commit_after(snapshot, actions, token="t")
    assert newest is not None
    assert table.files() == {"theirs"}
    staged = [path for path in table.store.paths() if path.startswith(STAGED)]
    assert len(staged) == 1, "the file that lost is deleted by its writer"


def test_a_commit_that_was_published_and_forgotten_meanwhile_is_ours_by_its_token() -> None:
    table = Managed()
    snapshot, actions = table.log.snapshot(), table.actions("ours")

    def others(_call: CatalogCall) -> None:
        table.opened().commit_log.publish(1)
        raise OutcomeUnknown("no answer")

    table.catalog.fault = _on("add_commit", "after", others)
    assert table.log.commit_after(snapshot, actions, token="t") is None
    assert table.catalog.unpublished == []
    assert table.log.is_ours(1, "t")
    assert not table.log.is_ours(1, "u")


def _unanswered(table: Managed) -> list[CatalogCall]:
    """The requests of a commit with the token `t`, none of which has arrived yet."""
    snapshot, actions = table.log.snapshot(), table.actions("ours")
    requests: list[CatalogCall] = []

    def late(call: CatalogCall) -> None:
        if (call.name, call.when) == ("add_commit", "before"):
            requests.append(call)
            raise OutcomeUnknown("no answer")

    table.catalog.fault = late
    with pytest.raises(OutcomeUnknown):
        table.log.commit_after(snapshot, actions, token="t")
    return requests


def test_a_catalog_that_never_answers_leaves_the_outcome_open() -> None:
    table = Managed()
    requests = _unanswered(table)
    assert not table.log.is_ours(1, "t")
    requests[0].send()
    table.heal()
    assert table.log.is_ours(1, "t"), "it arrived after all"
    with pytest.raises(CommitRefused):
        requests[1].send()
    assert table.files() == {"ours"}


def test_F29_a_request_that_arrives_after_another_commit_is_refused() -> None:
    table = Managed()
    requests = _unanswered(table)
    table.heal()
    table.put("abandonment")
    for each in requests:
        with pytest.raises(CommitRefused):
            each.send()
    assert table.files() == {"abandonment"}


def test_a_catalog_that_refuses_for_another_reason_says_so() -> None:
    table = Managed()
    snapshot, actions = table.log.snapshot(), table.actions("ours")

    def refuse(call: CatalogCall) -> None:
        if call.name == "add_commit":
            raise CommitRefused("the table has a uniform format")

    table.catalog.fault = refuse
    with pytest.raises(CommitRefused, match="uniform"):
        table.log.commit_after(snapshot, actions, token="t")
    assert table.catalog.latest == 0


def test_what_changes_the_table_is_not_committed() -> None:
    table = Managed()
    snapshot = table.log.snapshot()
    table.count()
    actions = [*table.actions("ours", snapshot), snapshot.metadata]
    with pytest.raises(UnsupportedFeature, match="metadata or protocol"):
        table.log.commit_after(snapshot, actions, token="t")
    assert table.calls == []


def test_a_catalog_that_lost_versions_gets_no_commit() -> None:
    table = Managed()
    table.put("one")
    snapshot, actions = table.log.snapshot(), table.actions("ours")
    table.catalog.latest = table.catalog.published = 0
    with pytest.raises(CorruptLog, match="lost versions"):
        table.log.commit_after(snapshot, actions, token="t")


def test_F35_a_table_that_was_made_again_is_not_written() -> None:
    table = Managed()
    snapshot, actions = table.log.snapshot(), table.actions("ours")
    table.catalog.table_id = "another"
    with pytest.raises(TableReplaced):
        table.log.commit_after(snapshot, actions, token="t")
    with pytest.raises(TableReplaced):
        table.log.snapshot()


# The backlog.


def test_F30_a_backlog_of_dead_writers_is_published_by_the_next_one() -> None:
    table = Managed()
    table.unpublish()
    for number in range(3):
        table.put(f"f{number}")
    assert table.published() == [0]
    table.heal()
    table.put("ours")
    assert table.published() == [0, 1, 2, 3, 4]
    assert table.catalog.unpublished == []


@pytest.mark.parametrize("part", [0, 20], ids=["nothing", "a part"])
def test_F30_a_commit_that_another_writer_has_published_in_part(part: int) -> None:
    """On a disk DuckDB makes the file, and writes it then; it may die between."""
    table = Managed()
    table.unpublish()
    version = table.put("theirs")
    table.heal()
    content = table.store.get(f"{STAGED}/{table.catalog.versions[version].file_name}")
    table.store.put(commit_path(version), content[:part])
    table.put("ours")
    assert table.catalog.unpublished == []
    assert table.store.get(commit_path(version)) == content
    assert table.files() == {"theirs", "ours"}


def test_a_full_backlog_is_published_and_the_commit_is_sent_again() -> None:
    table = Managed(limit=2)
    table.unpublish()
    table.put("one")
    table.put("two")
    table.heal()
    table.put("three")
    assert table.published() == [0, 1, 2, 3]
    assert table.files() == {"one", "two", "three"}


def test_a_backlog_that_stays_full_is_an_error_and_no_commit() -> None:
    table = Managed(limit=1)
    table.unpublish()
    table.put("one")
    snapshot, actions = table.log.snapshot(), table.actions("ours")
    table.heal()
    table.catalog.limit = 0
    with pytest.raises(BacklogFull):
        table.log.commit_after(snapshot, actions, token="t")
    assert table.catalog.latest == 1


def test_a_failure_to_publish_does_not_fail_the_commit() -> None:
    table = Managed()
    snapshot, actions = table.log.snapshot(), table.actions("ours")
    table.unpublish()
    assert table.log.commit_after(snapshot, actions, token="t") is None
    table.heal()
    assert table.catalog.unpublished != []
    assert table.files() == {"ours"}


def test_a_ratified_commit_whose_file_is_gone_is_named() -> None:
    table = Managed()
    table.unpublish()
    table.put("one")
    table.heal()
    path = f"{STAGED}/{table.catalog.versions[1].file_name}"
    table.store.delete([path])
    with pytest.raises(CorruptLog, match=r"staged_commits.*is gone"):
        table.log.commit_log.publish(1)
    assert table.published() == [0]


@pytest.mark.parametrize("is_ours", [False, True], ids=["another's", "ours"])
def test_F31_what_is_published_and_was_not_ratified_takes_the_place_of_no_commit(
    *, is_ours: bool
) -> None:
    """A catalog that is restored from a backup has lost versions that are published."""
    table = Managed()
    table.put("lost")
    table.catalog.latest = table.catalog.published = 0
    if is_ours:
        newest = table.log.snapshot()
        assert table.log.commit_after(newest, table.actions("ours"), token="t") is None
    else:
        table.unpublish()
        table.put("ours")
        table.heal()
    assert table.files() == {"ours"}
    assert [each.version for each in table.catalog.unpublished] == [1]
    with pytest.raises(CorruptLog, match="has not ratified"):
        write_checkpoint(table.log, table.log.snapshot(), now_ms=0)
    table.store.delete([dl.commit_name(1)])
    write_checkpoint(table.log, table.log.snapshot(), now_ms=0)
    assert table.catalog.unpublished == []
    assert table.files() == {"ours"}


def test_no_checkpoint_is_written_of_a_version_that_the_catalog_has_lost() -> None:
    table = Managed()
    table.put("lost")
    snapshot = table.log.snapshot()
    table.catalog.latest = table.catalog.published = 0
    with pytest.raises(CorruptLog, match="lost versions"):
        write_checkpoint(table.log, snapshot, now_ms=0)
    table.store.delete([dl.commit_name(1)])
    table.put("ours")
    assert table.files() == {"ours"}


# Reading.


def test_a_gap_ends_at_the_first_commit_that_is_left() -> None:
    table = Managed()
    for number in range(4):
        table.put(f"f{number}")
    table.store.delete([dl.commit_name(version) for version in (0, 1)])
    with pytest.raises(LogGap) as gap:
        table.log.commits(1, 4)
    assert gap.value.first_available == 2


def test_the_catalogs_entry_is_read_before_the_published_file() -> None:
    table = Managed()
    table.unpublish()
    table.put("ours")
    table.heal()
    table.store.put(dl.commit_name(1), dl.lines([dl.info(), dl.add("forged")]))
    assert table.files() == {"ours"}
    found = table.log.commit(1)
    assert found is not None
    assert [add.logged_path for add in found.adds] == ["ours"]


def test_F31_nothing_beyond_the_latest_version_is_read() -> None:
    table = Managed()
    table.put("one")
    two = dl.lines([dl.info(inCommitTimestamp=99), dl.add("two")])
    table.store.put(dl.commit_name(2), two)
    by_path = DeltaLog(table.store)
    table.store.put("_delta_log/_last_checkpoint", b'{"version":2}')
    assert table.log.snapshot().version == 1
    assert table.log.latest_version() == 1
    assert table.log.versions() == (0, 1)
    assert table.log.version_at(1_000) == 1
    assert table.log.commit(2) is None
    assert table.files() == {"one"}
    snapshot = table.log.snapshot(0)
    assert table.log.update(snapshot).version == 1
    assert [each.version for each in table.log.commits(0, 1)] == [0, 1]
    assert by_path.latest_version() == 2


def test_a_checkpoint_of_a_version_that_the_catalog_lacks_is_not_read() -> None:
    table = Managed()
    table.put("one")
    table.put("two")
    write_checkpoint(table.log, table.log.snapshot(), now_ms=0)
    table.catalog.latest = 1
    assert table.files() == {"one"}


def test_versions_are_followed_by_their_commits_when_they_were_published_since() -> None:
    table = Managed()
    table.unpublish()
    table.put("one")
    snapshot = table.log.snapshot()
    table.put("two")
    table.heal()
    table.put("three")
    table.count()
    newest = table.log.update(snapshot)
    assert newest.version == 3
    assert newest.change is not None
    assert "list" not in table.calls
    assert table.calls == ["load", "head", "head", "get", "get"]


def test_many_published_versions_are_listed_once() -> None:
    table = Managed()
    snapshot = table.log.snapshot()
    for number in range(8):
        table.put(f"f{number}")
    table.count()
    newest = table.log.update(snapshot)
    assert newest.version == 8
    assert newest.change is not None
    assert table.calls[:2] == ["load", "list"]


def test_time_travel_goes_by_in_commit_timestamps_of_staged_commits() -> None:
    table = Managed()
    table.unpublish()
    for number in range(3):
        table.put(f"f{number}")
    table.heal()
    assert table.log.snapshot(timestamp_ms=51).version == 2
    assert table.log.snapshot(1).timestamp_ms == 50


def test_F37_by_its_location_it_is_refused_with_the_words_to_type() -> None:
    table = Managed()
    table.put("one")
    with pytest.raises(UnsupportedFeature, match=r"unity://.*spec\.catalog"):
        DeltaLog(table.store).snapshot()


# Maintenance.


@pytest.mark.parametrize("permissions", [None, frozenset[str](), frozenset({"DATA_CLEANUP"})])
def test_F33_what_the_catalog_does_not_permit_is_not_written(
    permissions: frozenset[str] | None,
) -> None:
    table = Managed()
    snapshot, actions = table.log.snapshot(), table.actions("ours")
    table.catalog.permissions = permissions
    before = table.store.paths()
    with pytest.raises(CatalogForbids, match="no DATA_REORGANIZATION") as refused:
        table.log.commit_after(
            snapshot, actions, token="t", maintenance=MaintenanceRight.DATA_REORGANIZATION
        )
    assert refused.value.reason is Reason.CATALOG_FORBIDS
    listed = "DATA_CLEANUP" if permissions else "a list without an operation"
    expected = "no list of permitted maintenance" if permissions is None else listed
    assert refused.value.found == expected
    assert table.store.paths() == before
    assert table.log.commit_after(snapshot, actions, token="t") is None, "an ordinary change"


def test_a_checkpoint_is_written_of_published_versions_only() -> None:
    table = Managed()
    table.unpublish()
    table.put("one")
    table.put("two")
    snapshot = table.log.snapshot()
    with pytest.raises(OutcomeUnknown):
        write_checkpoint(table.log, snapshot, now_ms=0)
    table.heal()
    write_checkpoint(table.log, snapshot, now_ms=0)
    assert table.published() == [0, 1, 2]
    assert table.files() == {"one", "two"}


DAY = 86_400_000


def _old(permissions: frozenset[str] | None) -> tuple[Managed, Snapshot]:
    """Version 4 has a checkpoint; 5 and 6 are not published; two staged files lost, at versions 2
    and 6. All is old."""
    table = Managed(permissions=permissions)
    for number in range(4):
        table.put(f"f{number}")
    write_checkpoint(table.log, table.log.snapshot(), now_ms=0)
    table.stage(2, "lost", "t2")
    table.stage(6, "lost", "t6")
    table.unpublish()
    for number in range(4, 6):
        table.put(f"f{number}")
    table.heal()
    return table, table.log.snapshot()


def test_log_clean_up_takes_staged_files_and_never_ratified_ones() -> None:
    table, snapshot = _old(frozenset({"METADATA_CLEANUP"}))
    files = table.files()
    assert clean(table.log, snapshot, now_ms=90 * DAY) > 0
    assert table.published() == [4]
    staged = {int(p.removeprefix(f"{STAGED}/")[:20]) for p in table.store.paths() if STAGED in p}
    assert staged == {5, 6}
    assert table.files() == files
    table.put("more")
    assert table.files() == files | {"more"}


def test_log_clean_up_needs_its_own_permission() -> None:
    table, snapshot = _old(frozenset({"DATA_CLEANUP"}))
    before = table.store.paths()
    with pytest.raises(CatalogForbids, match="no METADATA_CLEANUP"):
        clean(table.log, snapshot, now_ms=90 * DAY)
    assert table.store.paths() == before
    for number in range(20):
        table.put(f"g{number}")
    report = maintain(table.log, table.log.snapshot(), now_ms=90 * DAY)
    assert report.checkpoint == 26
    assert "no METADATA_CLEANUP" in report.notes[0]


def test_log_clean_up_keeps_what_the_catalog_has_not_forgotten() -> None:
    """Though it is published, old, and below a checkpoint."""
    table = Managed()
    for number in range(3):
        table.put(f"f{number}")
    write_checkpoint(table.log, table.log.snapshot(), now_ms=0)
    table.catalog.published = 1
    clean(table.log, table.log.snapshot(), now_ms=90 * DAY)
    assert {2, 3} <= set(table.published())
    kept = {p.removeprefix(f"{STAGED}/") for p in table.store.paths() if STAGED in p}
    assert {each.file_name for each in table.catalog.unpublished} <= kept
    assert table.files() == {"f0", "f1", "f2"}
