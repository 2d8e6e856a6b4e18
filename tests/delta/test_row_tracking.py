"""Row ids of the files of a commit: against a model that remembers each id that was ever given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.jobs import quick_lake
from support.lake.delta_log import SCHEMA_STRING
from tandem.delta.actions import (
    BASE_ROW_ID,
    ROW_COMMIT_VERSION,
    Action,
    AddFile,
    Commit,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
)
from tandem.delta.log.files import from_adds
from tandem.delta.log.snapshot import Snapshot, commit_info, remove_of
from tandem.delta.row_tracking import DOMAIN, check, with_row_ids
from tandem.errors import CorruptLog, RowTrackingIncomplete

ENABLED = {"delta.enableRowTracking": "true"}
SUSPENDED = {"delta.rowTrackingSuspended": "true"}
FEATURES = frozenset({"rowTracking", "domainMetadata"})
LAST = 2**63 - 1


def table(
    *adds: AddFile,
    configuration: Mapping[str, str] | None = None,
    mark: object = None,
    features: frozenset[str] = FEATURES,
) -> Snapshot:
    body = mark if isinstance(mark, str) else json.dumps({"rowIdHighWaterMark": mark})
    domains = {} if mark is None else {DOMAIN: DomainMetadata(DOMAIN, body, removed=False)}
    metadata = Metadata("t", SCHEMA_STRING, (), configuration or {})
    protocol = Protocol(1, 7, frozenset(), features)
    return Snapshot("t", 7, 0, metadata, protocol, {}, domains, from_adds(adds))


def file(path: str, rows: int | None = 1, vector: int = 0, **ids: Any) -> AddFile:
    stats = None if rows is None else json.dumps({"numRecords": rows})
    dv = DeletionVector("u", f"{vector}", 1, 1, 1) if vector else None
    return AddFile(path, {}, 1, 1, data_change=True, stats=stats, deletion_vector=dv, extra=ids)


def rows_in(add: AddFile) -> int:
    return int(json.loads(str(add.stats))["numRecords"])


def committed(snapshot: Snapshot, actions: Sequence[Action]) -> tuple[Snapshot, list[Action]]:
    rows = {a.logged_path: rows_in(a) for a in actions if isinstance(a, AddFile)}
    found = with_row_ids(snapshot, actions, rows)
    version = snapshot.version + 1
    return snapshot.advance([Commit(version, 0, tuple(found))], None), found


STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), max_size=3),  # rows of new files
        st.sets(st.integers(0, 9), max_size=3),  # live files that get another vector
        st.sets(st.integers(0, 9), max_size=2),  # live files that are removed
        st.booleans(),  # another writer has the version: so many files of its own come before
    ),
    max_size=8,
)


@given(steps=STEPS, tracked=st.booleans(), above=st.integers(0, 3))
def test_no_id_is_given_twice_and_none_changes(
    steps: list[tuple[list[int], set[int], set[int], bool]], tracked: bool, above: int
) -> None:
    own: dict[str, Any] = {BASE_ROW_ID: 4, ROW_COMMIT_VERSION: 2} if tracked else {}
    mark = 6 + above if tracked else -1
    snapshot = table(file("a", 3, **own), file("b", 2), mark=mark)
    known, ever = {"a": own} if tracked else {}, set(range(mark + 1))
    for number, (sizes, marked, gone, is_raced) in enumerate(steps):
        live = dict(enumerate(snapshot.adds()))
        changes: list[Action] = []
        for n in live.keys() & (marked | gone):
            old = replace(live[n], extra={})  # as a decision from before a backfill has it
            changes.append(remove_of(old, deletion_ms=1, data_change=True))
            if n not in gone:
                vector = DeletionVector("u", f"{number}-{n}", 1, 1, 1)
                changes.append(replace(old, deletion_vector=vector))
        new = [file(f"{number}-{n}", size) for n, size in enumerate(sizes)]
        commits: list[list[Action]] = [[*changes, *new]]
        if is_raced:
            commits.insert(0, [replace(add, logged_path=f"{add.logged_path}-r") for add in new])
        for commit in commits:
            snapshot, found = committed(snapshot, commit)
            for add in (a for a in found if isinstance(a, AddFile)):
                if add.logged_path not in known:
                    known[add.logged_path] = {**add.extra, ROW_COMMIT_VERSION: snapshot.version}
                    base = add.extra[BASE_ROW_ID]
                    assert base == max(ever, default=-1) + 1
                    ever.update(range(base, base + rows_in(add)))
                assert add.extra == known[add.logged_path]
            marks = [a for a in found if isinstance(a, DomainMetadata)]
            assert len(marks) == (max(ever, default=-1) > mark)
            mark = max(ever, default=-1)
            assert json.loads(snapshot.domains[DOMAIN].configuration) == {
                "rowIdHighWaterMark": mark
            }


def test_a_remove_repeats_the_ids_that_the_file_has_now() -> None:
    snapshot = table(file("a", 3, **{BASE_ROW_ID: 4, ROW_COMMIT_VERSION: 2}), mark=6)
    _, [gone] = committed(snapshot, [remove_of(file("a", 3), deletion_ms=1, data_change=True)])
    assert gone.extra.items() >= {BASE_ROW_ID: 4, ROW_COMMIT_VERSION: 2}.items()  # type: ignore[union-attr]


def test_files_that_are_added_have_no_ids_while_they_are_suspended() -> None:
    old = file("a", 3, **{BASE_ROW_ID: 4, ROW_COMMIT_VERSION: 2})
    snapshot = table(old, configuration=SUSPENDED, mark=6)
    actions: list[Action] = [remove_of(old, deletion_ms=1, data_change=True), old, file("b")]
    _, [gone, *adds] = committed(snapshot, actions)
    assert gone.extra.items() >= {BASE_ROW_ID: 4, ROW_COMMIT_VERSION: 2}.items()  # type: ignore[union-attr]
    assert [add.extra for add in adds] == [{}, {}]  # type: ignore[union-attr]


def test_a_table_without_the_feature_is_left_alone() -> None:
    actions: list[Action] = [file("a", **{BASE_ROW_ID: 4}), file("b")]
    assert committed(table(features=frozenset()), actions)[1] == actions


@pytest.mark.parametrize(
    ("live", "mark", "expected"),
    [
        ([], None, 0),
        ([], -5, 0),
        ([], 6, 7),
        ([file("a", 3, **{BASE_ROW_ID: 4})], None, 7),  # as if the mark had been lost
        ([file("a", 3, **{BASE_ROW_ID: 4})], 5, 7),
        ([file("a", None, **{BASE_ROW_ID: 4})], 9, 10),
        # Overlapping: the last one is not that with the highest end.
        ([file("a", 9, **{BASE_ROW_ID: 4}), file("c", 1, **{BASE_ROW_ID: 5})], 5, 13),
    ],
)
def test_ids_lie_above_the_mark_and_all_live_rows(
    live: list[AddFile], mark: int | None, expected: int
) -> None:
    _, [add, *_] = committed(table(*live, mark=mark), [file("b", 2)])
    assert add.extra[BASE_ROW_ID] == expected  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("live", "mark"),
    [
        *(([], mark) for mark in ("", "{}", "[]", "[" * 10_000, LAST + 1, 1.5, True, "6")),
        ([], LAST),
        ([], LAST - 1),
        ([file("a", 3, **{BASE_ROW_ID: LAST - 1})], 5),
        ([file("a", None, **{BASE_ROW_ID: 4})], None),  # which ids it has is unknown
    ],
)
def test_a_mark_that_is_not_usable_is_named(live: list[AddFile], mark: object) -> None:
    with pytest.raises(CorruptLog, match="high-water mark of row ids"):
        committed(table(*live, mark=mark), [file("b", 2)])


def test_the_last_ids_are_given() -> None:
    snapshot, _ = committed(table(mark=LAST - 2), [file("b", 2)])
    assert snapshot.domains[DOMAIN].configuration == f'{{"rowIdHighWaterMark":{LAST}}}'


def test_an_enabled_table_needs_ids_in_each_file() -> None:
    whole = file("a", **{BASE_ROW_ID: 0, ROW_COMMIT_VERSION: 0})
    check(table(whole, configuration=ENABLED, mark=0), resource="x")
    check(table(file("b")), resource="x")
    for ids in ({}, {BASE_ROW_ID: 1}, {ROW_COMMIT_VERSION: 1}):
        with pytest.raises(RowTrackingIncomplete, match=r"1 of 2 files, for example b.* Spark"):
            check(table(whole, file("b", **ids), configuration=ENABLED, mark=0), resource="x")
    with pytest.raises(CorruptLog):
        check(table(mark="x"), resource="x")


@pytest.mark.parametrize("configuration", [{}, ENABLED, SUSPENDED])
def test_commits_say_that_ids_are_preserved_where_that_is_enabled(
    configuration: Mapping[str, str],
) -> None:
    previous = table(configuration=configuration)
    info = commit_info("WRITE", {}, now_ms=0, previous=previous, blind_append=True)
    expected = {"delta.rowTracking.preserved": "true"} if configuration == ENABLED else None
    assert info.body.get("tags") == expected


def test_an_edit_has_no_ids_of_its_source(tmp_path: Path) -> None:
    """Of a table from which the feature was dropped: Spark gives ids only to files without."""
    lake = quick_lake.make(tmp_path, 1, properties={})
    lake.log_again(extra={BASE_ROW_ID: 0, ROW_COMMIT_VERSION: 1})
    lake.do(lake.update("k = 1", v="0"))
    assert lake.first_add.extra == {}
