"""Entries say of each version's files what `tandem.pruning` says of that version's snapshot."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pruning.test_per_file import (
    ADDS,
    PARTITIONS,
    SCHEMA,
    WHERE,
    chunked,
)
from support.some import few
from tandem.delta import schema as schema_
from tandem.delta.actions import (
    AddFile,
    Commit,
    DeletionVector,
    Metadata,
    Protocol,
    RemoveFile,
)
from tandem.delta.log import files as files_
from tandem.delta.log.files import FileKey
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import VersionNotFound
from tandem.index import entries as entries_
from tandem.index import window as window_
from tandem.index.answers import certain_count, splits
from tandem.index.entries import Entries
from tandem.index.window import View, Window
from tandem.pruning.bounds import NumberBounds
from tandem.pruning.predicate import bounds_of, columns_of, may_match, must_match
from tandem.statements import parse_where
from tandem.statements.types import Schema, SqlType

METADATA = Metadata("t", SCHEMA, PARTITIONS, {})
PROTOCOL = Protocol(3, 7, frozenset({"deletionVectors"}), frozenset({"deletionVectors"}))


@pytest.fixture(autouse=True, scope="module")
def small_zones() -> Any:
    """Zones, pieces and parts of a few entries, so that a test has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries_, "ZONE", 3)
        patch.setattr(entries_, "_PIECE", 6)
        patch.setattr(entries_, "_GAP", 2)
        patch.setattr(window_, "_SMALL_PARTS", 2)
        yield


@settings(deadline=None, max_examples=few(25, 600))
@given(ADDS, st.sampled_from(WHERE), st.data())
def test_entries_are_decided_as_the_files_of_a_snapshot(
    adds: list[AddFile], text: str, data: st.DataObject
) -> None:
    where = parse_where(text, Schema.from_json(SCHEMA))
    schema = schema_.parse(SCHEMA)
    table = chunked(adds, min(3, len(adds)))
    known = bounds_of(table, schema, PARTITIONS, dict(columns_of(where)))
    versions = st.lists(st.integers(0, 4), min_size=len(adds), max_size=len(adds))
    born = np.array(data.draw(versions), np.int64)
    died = born + 1 + np.array(data.draw(versions), np.int64)
    entries = Entries(table, born, died)

    for version in range(3):
        found = entries.survivors(where, version, schema, PARTITIONS)
        live = (born <= version) & (version < died)
        assert found.tolist() == np.flatnonzero(may_match(where, known) & live).tolist()
        certain = entries.certain(where, found, schema, PARTITIONS)
        assert certain.tolist() == must_match(where, known)[found].tolist()


PATHS = ["a", "b", "c", "d%20e"]
VECTORS = [None, DeletionVector("u", "x", 1, 1), DeletionVector("u", "x", 1, 2, offset=7)]


@st.composite
def history(draw: st.DrawFn) -> list[Commit]:
    """Commits that add and remove files, as writers do and as they should not."""
    commits = []
    for version in range(1, draw(st.integers(2, 12))):
        actions: list[AddFile | RemoveFile] = []
        for path in draw(st.lists(st.sampled_from(PATHS), max_size=4)):
            vector = draw(st.sampled_from(VECTORS))
            if draw(st.booleans()):
                rows = draw(st.sampled_from(["", '{"numRecords":5}', '{"numRecords":9}']))
                actions.append(AddFile(path, {}, 1, 0, True, rows, deletion_vector=vector))
            else:
                actions.append(RemoveFile(path, 0, True, deletion_vector=vector))
        commits.append(Commit(version, version, tuple(actions)))
    return commits


def files_at(view: View) -> dict[FileKey, str | None]:
    found: dict[FileKey, str | None] = {}
    for part in view.chosen():
        texts = pa.chunked_array(part.entries.statistics.texts(), pa.string()).to_pylist()
        adds = files_.to_adds(part.entries.take(part.rows))
        found |= {add.key: texts[row] for add, row in zip(adds, part.rows, strict=True)}
    return found


@settings(deadline=None, max_examples=few(25, 600), suppress_health_check=[HealthCheck.too_slow])
@given(history(), st.data())
def test_I50_Xa_every_version_of_a_window_has_its_own_files(
    commits: list[Commit], data: st.DataObject
) -> None:
    window = Window(Snapshot("t", 0, 0, METADATA, PROTOCOL, {}, {}, files_.EMPTY))
    expected: list[dict[FileKey, str | None]] = [{}]
    views = [window.view()]
    first = 0
    for commit in commits:
        now = dict(expected[-1])
        for action in commit.actions:
            if isinstance(action, AddFile | RemoveFile):
                now.pop(action.key, None)
            if isinstance(action, AddFile):
                now[action.key] = action.stats
        expected.append(now)
        window.follow([commit])
        if data.draw(st.booleans()):
            views.append(window.view())
        if data.draw(st.integers(0, 4)) == 0:
            first = max(first, min(data.draw(st.integers(0, 12)), commit.version))
            window.forget(first)

    assert (window.first, window.latest) == (first, len(commits))
    for version, files in enumerate(expected):
        if version < first:
            with pytest.raises(VersionNotFound, match=f"no version {version}"):
                window.view(version)
            continue
        view = window.view(version)
        assert files_at(view) == files
        rows = [None if not stats else int(stats[14]) for stats in files.values()]
        deleted = [0 if key[1] is None else 1 + key[1].endswith("@7") for key in files]
        counted = certain_count(view)
        if None in rows:
            assert view.total is None
        else:
            assert view.total == sum(n or 0 for n in rows) - sum(deleted) == counted.rows
        assert len(counted.rest) == rows.count(None)
    # A view that was taken earlier still is what it was, whatever was forgotten since.
    for view in views:
        assert files_at(view) == expected[view.version]


def test_a_file_with_more_deleted_rows_than_rows_is_not_counted() -> None:
    vector = DeletionVector("u", "x", 1, 10)
    add = AddFile("a", {}, 1, 0, True, '{"numRecords":5}', deletion_vector=vector)
    window = Window(Snapshot("t", 0, 0, METADATA, PROTOCOL, {}, {}, files_.from_adds([add])))
    counted = certain_count(window.view())
    assert (counted.rows, len(counted.rest)) == (0, 1)


def test_a_commit_out_of_order_is_refused() -> None:
    window = Window(Snapshot("t", 0, 0, METADATA, PROTOCOL, {}, {}, files_.EMPTY))
    with pytest.raises(ValueError, match="does not follow"):
        window.follow([Commit(2, 2, ())])


def test_a_renamed_column_keeps_its_bounds() -> None:
    """By physical name: `m` of the test schema is `col-1` in statistics."""
    stats = '{"numRecords":3,"minValues":{"col-1":1},"maxValues":{"col-1":4},"nullCount":{}}'
    add = AddFile("a", {}, 1, 0, True, stats)
    window = Window(Snapshot("t", 0, 0, METADATA, PROTOCOL, {}, {}, files_.from_adds([add])))
    renamed = replace(METADATA, schema_string=SCHEMA.replace('"name": "m"', '"name": "other"'))
    window.follow([Commit(1, 1, (renamed,))])
    view = window.view()
    where = parse_where("other > 4", renamed.schema_string)
    assert len(splits(view, where)) == 0
    assert len(splits(window.view(0), parse_where("m > 3", SCHEMA))) == 1


STATED = [
    f'{{"numRecords":{rows},"minValues":{{"l":{low}}},"maxValues":{{"l":{low + rows}}},'
    f'"nullCount":{{"l":0}}}}'
    for rows, low in ((5, 0), (9, 3), (2, 40))
]
ASKED = [parse_where(text, Schema.from_json(SCHEMA)) for text in ("l > 4", "l < 3", "l >= 0")]


@settings(deadline=None, max_examples=few(25, 600), suppress_health_check=[HealthCheck.too_slow])
@given(history(), st.data())
def test_questions_that_were_asked_before_are_answered_as_new_ones(
    commits: list[Commit], data: st.DataObject
) -> None:
    """Of the newest version, and of views that are held while commits come."""
    window = Window(Snapshot("t", 0, 0, METADATA, PROTOCOL, {}, {}, files_.EMPTY))
    views = [window.view()]
    for commit in commits:
        stated = tuple(
            replace(action, stats=data.draw(st.sampled_from(STATED)))
            if isinstance(action, AddFile)
            else action
            for action in commit.actions
        )
        window.follow([replace(commit, actions=stated)])
        views.append(window.view())
        if data.draw(st.booleans()):
            window.forget(commit.version - data.draw(st.integers(0, 3)))
        for view in data.draw(st.lists(st.sampled_from(views), max_size=4)):
            for where in ASKED:
                found = certain_count(view, where)
                again = certain_count(replace(view, lately=window_.Lately()), where)
                assert (found.rows, found.rest.files) == (again.rows, again.rest.files)


def test_a_zone_has_the_least_and_the_greatest_of_its_entries() -> None:
    there = np.ones(4, np.bool_)
    low, high = pa.array([3, 1, 7, 5]), pa.array([4, 9, 8, 6])
    bounds = NumberBounds.of(SqlType("long"), low, high, (~there, there))
    zones = bounds.zones(np.array([0, 2]))
    assert (zones.low.tolist(), zones.high.tolist()) == ([1, 5], [9, 8])


def test_I50_the_rows_of_a_version_are_without_those_of_removed_files() -> None:
    def add(path: str, rows: int) -> AddFile:
        return AddFile(path, {}, 1, 0, True, json.dumps({"numRecords": rows}))

    files = files_.from_adds([add("a", 5), add("b", 7)])
    window = Window(Snapshot("t", 0, 0, METADATA, PROTOCOL, {}, {}, files))
    assert window.view().total == 12
    window.follow([Commit(1, 0, (RemoveFile("a", 0, True), add("c", 2)))])
    assert [window.view(version).total for version in (0, 1)] == [12, 9]
