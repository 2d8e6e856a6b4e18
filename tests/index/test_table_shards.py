"""The shards of a table that is followed from version to version: as the pure rule says, for all
live files, and none for others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.test_shards import Model
from support.some import few
from tandem.delta.actions import AddFile, Commit, Metadata, Protocol, RemoveFile
from tandem.delta.log import files as files_
from tandem.errors import UnknownSegment
from tandem.index import window as window_
from tandem.index.server.shards import NO_SHARD, TableShards
from tandem.index.window import Chosen, Head, View, Window
from tandem.timeline.names import foreign_name
from tandem.timeline.segments import TAG_SEGMENT

SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
BYTES = 200
"""Of the facts of a small file of one column, by estimate."""


def add(path: str, segment: str | None, *, counted: bool = True) -> AddFile:
    tags = {} if segment is None else {TAG_SEGMENT: segment}
    return AddFile(path, {}, 1_000, 1, True, '{"numRecords":1}' if counted else None, tags)


def loaded(view: View) -> Any:
    """A snapshot with the files of a version."""
    live = [part.take(np.flatnonzero(part.visible(view.version))) for part in view.parts]
    return SimpleNamespace(
        **{name: getattr(view.head, name) for name in ("location", "version", "timestamp_ms")},
        metadata=view.head.metadata,
        protocol=view.head.protocol,
        files=pa.concat_tables([files_.EMPTY, *live]),
    )


class Table:
    """A window over commits that exist in memory alone."""

    def __init__(self) -> None:
        head = Head("memory", 0, 1, Metadata("t", SCHEMA, (), {}), Protocol(1, 2))

        self.window = Window(loaded(View(head, ())))
        self.live: dict[str, AddFile] = {}
        self.next = 0

    def commit(self, adds: list[AddFile], removes: list[str]) -> View:
        gone = tuple(
            RemoveFile(path, 1, True) for path in removes if self.live.pop(path, None) is not None
        )
        self.live |= {each.logged_path: each for each in adds}
        self.window.follow([Commit(self.window.latest + 1, 1, (*gone, *adds))])
        return self.window.view()


def found(shards: TableShards, view: View) -> dict[str, str | None]:
    """The shard of each live file."""
    result: dict[str, str | None] = {}
    for part in view.parts:
        rows = np.flatnonzero(part.visible(view.version))
        numbers, known = shards.of(Chosen(part, rows, np.zeros(len(rows), bool)))
        for path, number in zip(part.take(rows)["path"].to_pylist(), numbers.tolist(), strict=True):
            assert (number == NO_SHARD) == (number not in known)
            result[path] = known[number].key if number in known else None
    return result


STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 3)), max_size=4),
        st.lists(st.integers(0, 30), max_size=6),
        st.booleans(),
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=few(15, 1_500))
@given(STEPS, st.sampled_from([1, BYTES, 3 * BYTES, 1_000_000]))
def test_I47_every_live_file_is_in_the_shard_of_its_segment(
    steps: list[tuple[list[tuple[str, int]], list[int], bool]], shard_size: int
) -> None:
    """Segments by tags and foreign files; files that are removed and come back; parts that are
    merged; versions that are skipped."""
    table, model = Table(), Model(shard_size, remembers=True)
    shards = TableShards("t", shard_size=shard_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_, "_SMALL_PARTS", 2)
        for added, removed, looked_at in steps:
            adds = []
            for segment, count in added:
                for _ in range(count):
                    table.next += 1
                    # Every third one is foreign, and comes back at its path.
                    foreign = table.next % 3 == 0
                    path = f"{segment}.parquet" if foreign else f"{table.next}.parquet"
                    adds.append(add(path, None if foreign else str(ord(segment))))
            adds = list({each.logged_path: each for each in adds}.values())
            removes = [f"{at}.parquet" for at in removed] + [each.logged_path for each in adds]
            view = table.commit(adds, removes)
            if not looked_at:
                continue
            shards.follow(view)
            expected = model.follow(live_segments(view))
            names = {path: name_of(each) for path, each in table.live.items()}
            assert found(shards, view) == {path: expected[name] for path, name in names.items()}
            assert [shard.key for shard in shards.shards] == [key for key, _ in model.shards]
            sizes = dict(live_segments(view))
            for shard in shards.shards:
                mine = sum(size for name, size in sizes.items() if expected[name] == shard.key)
                assert shard.size == mine


def name_of(file: AddFile) -> str:
    return file.tags.get(TAG_SEGMENT) or foreign_name(file.logged_path)


def live_segments(view: View) -> list[tuple[str, int]]:
    """Segments and their bytes, in the order of their first entries."""
    sizes: dict[str, int] = {}
    for part in view.parts:
        rows = np.flatnonzero(part.visible(view.version))
        for file in files_.to_adds(part.take(rows)):
            sizes[name_of(file)] = sizes.get(name_of(file), 0) + BYTES
    return list(sizes.items())


def test_an_older_version_changes_nothing() -> None:
    table, shards = Table(), TableShards("t", shard_size=1)
    first = table.commit([add("1", "1")], [])
    second = table.commit([add("2", "2")], ["1"])
    shards.follow(second)
    assert [shard.key for shard in shards.shards] == ["2"]
    assert shards.has(first)
    assert shards.follow(first) == ((), ())
    assert [shard.key for shard in shards.shards] == ["2"]
    assert found(shards, first) == {"1": None}


def test_what_a_version_changes_is_what_came_and_went() -> None:
    table, shards = Table(), TableShards("t", shard_size=1)
    changed = shards.follow(table.commit([add("1", "1"), add("2", "2")], []))
    # Of a table that was just loaded, all is new: its facts are read when they are asked for.
    assert changed == ((), ())
    changed = shards.follow(table.commit([add("3", "3")], ["1"]))
    assert [shard.key for shard in changed.gone] == ["1"]
    added = [
        path for part in changed.added for path in part.entries.take(part.rows)["path"].to_pylist()
    ]
    assert added == ["3"]


def test_a_table_that_was_loaded_again_is_looked_at_again() -> None:
    """It was dropped from memory; its entries are others, of the same version."""
    table, shards = Table(), TableShards("t", shard_size=1)
    view = table.commit([add("1", "1"), add("2", None)], [])
    shards.follow(view)
    again = Window(loaded(view)).view()
    assert not shards.has(again)
    shards.follow(again)
    assert found(shards, again) == found(shards, view)
    assert len(shards.shards) == 2


def test_X15_a_shard_with_a_file_of_unknown_rows_has_no_size() -> None:
    table, shards = Table(), TableShards("t", shard_size=1)
    shards.follow(table.commit([add("1", "1"), add("2", "1", counted=False), add("3", "3")], []))
    assert [(shard.key, shard.size) for shard in shards.shards] == [("1", None), ("3", BYTES)]


def test_segments_that_no_longer_live_are_forgotten_in_the_end() -> None:
    table, shards = Table(), TableShards("t", shard_size=1 << 30)
    table.commit([add("keep", "0")], [])
    for at in range(1, 3_000, 100):
        names = [str(number) for number in range(at, at + 100)]
        shards.follow(table.commit([add(name, name) for name in names], []))
        shards.follow(table.commit([], names))
    assert len(shards._map.segments) < 1_200
    assert [shard.key for shard in shards.shards] == ["0"]


def test_an_empty_table_has_no_shard() -> None:
    table, shards = Table(), TableShards("t")
    shards.follow(table.window.view())
    assert shards.shards == ()
    with pytest.raises(UnknownSegment, match="no such segment"):
        table.window.view().chosen(segments=("1",))
