"""A base is believed whole, for the log that it was written from, or not at all. Whatever becomes
of one, the answers are those of the log (X-b)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from index.clock import Clock
from pruning.test_per_file import ADDS, PARTITIONS, SCHEMA, WHERE
from support.lake.memory_store import Call, MemoryStore
from support.some import few
from support.waiting import await_that
from tandem.delta.actions import Action, AddFile, DeletionVector, Metadata, Protocol, RemoveFile
from tandem.delta.log import codec, listing
from tandem.delta.log import files as files_
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import AccessDenied, FactsRefused
from tandem.index import Query, TableIndex, open_index
from tandem.index import base as base_
from tandem.index.answers import certain_count, splits
from tandem.index.base import BEGINNING, FOLDER, FORM, Base, head_of, pack, unpack
from tandem.index.packed import PREFIX
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.service import IndexService
from tandem.index.table import FollowedTable
from tandem.index.window import View
from tandem.statements import parse_where
from tandem.statements.types import Schema
from tandem.storage import open_store

METADATA = Metadata("t", SCHEMA, PARTITIONS, {})
PROTOCOL = Protocol(3, 7, frozenset({"deletionVectors"}), frozenset({"deletionVectors"}))
QUESTIONS = [parse_where(text, Schema.from_json(SCHEMA)) for text in WHERE]
SOME = QUESTIONS[:: len(QUESTIONS) // 8]
VECTOR = DeletionVector("u", "x", 1, 1)


@pytest.fixture(autouse=True, scope="module")
def bases_of_small_tables() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_, "LEAST_FILES", 1)
        yield


class Table:
    """A table in memory, and what an index of it says."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.version = -1
        self.clock = Clock()

    def commit(self, *actions: Action) -> None:
        self.version += 1
        path = listing.commit_path(self.version)
        self.store.put(path, codec.encode_commit(actions))

    def opened(self) -> FollowedTable:
        return FollowedTable(DeltaLog(self.store), now=self.clock)

    def bases(self) -> list[str]:
        return [path for path in self.store.paths() if path.startswith(FOLDER)]

    def write(self) -> str:
        """A base with some columns; returns its path."""
        table = self.opened()
        answers(table.view())
        before = set(self.bases())
        assert table.write_base()
        [path] = set(self.bases()) - before
        return path


def answers(view: View) -> list[Any]:
    found: list[Any] = [view.version, view.total, view.head.metadata, view.head.protocol]
    for where in SOME:
        count = certain_count(view, where)
        chosen = splits(view, where)
        found.append((count.rows, sorted(files_.to_adds(count.rest.files), key=repr)))
        found.append(sorted(files_.to_adds(chosen.files), key=repr))
        found.append(sorted(zip(chosen.certain.tolist(), chosen.rows.tolist(), strict=True)))
    return found


def of_log(table: Table) -> list[Any]:
    """By the log alone."""
    without = table.store.copy()
    without.delete([path for path in without.paths() if path.startswith(FOLDER)])
    return answers(FollowedTable(DeltaLog(without)).view())


def add(path: str, least: int = 0, rows: int = 5, **changed: Any) -> AddFile:
    stats = {
        "numRecords": rows,
        "minValues": {"i": least, "s": f"a{least}", "d": least / 2},
        "maxValues": {"i": least + 3, "s": f"b{least}", "d": least + 1.0},
        "nullCount": {"i": 0, "s": rows, "d": 1},
    }
    found = AddFile(path, {"p": "a"}, 7, 3, True, json.dumps(stats), tags={"k": "v"})
    return replace(found, **changed)


def small() -> Table:
    table = Table()
    table.commit(PROTOCOL, METADATA, *(add(f"f{n}", n) for n in range(9)))
    table.commit(add("g", 20), RemoveFile("f3", 1, True))
    return table


@settings(deadline=None, max_examples=few(13, 300), suppress_health_check=[HealthCheck.too_slow])
@given(ADDS, st.data())
def test_a_base_says_what_the_log_says(adds: list[AddFile], data: st.DataObject) -> None:
    """Statistics of any writer; columns that were decoded before it was written, and not."""
    table = Table()
    vectors = st.sampled_from([None, VECTOR])
    named = [
        replace(each, logged_path=f"f%20{n}", deletion_vector=data.draw(vectors))
        for n, each in enumerate(adds)
    ]
    table.commit(PROTOCOL, METADATA, *named)
    first = table.opened()
    first.view()
    for where in data.draw(st.lists(st.sampled_from(QUESTIONS), max_size=4)):
        certain_count(first.view(), where)
    assert first.write_base()
    key = named[0].key
    table.commit(RemoveFile(key[0], 1, True, deletion_vector=named[0].deletion_vector))
    table.commit(replace(named[-1], logged_path="late"))

    again = table.opened()
    assert answers(again.view()) == of_log(table)
    assert again.bases.not_believed == {}
    texts: dict[str, str | None] = {}
    for part in again.view().chosen():
        stats = pa.chunked_array(part.entries.statistics.texts(), pa.string())
        texts |= dict(zip(part.entries.files["path"].to_pylist(), stats.to_pylist(), strict=True))
    live = list(DeltaLog(table.store).snapshot().adds())
    assert [texts[add.logged_path] for add in live] == [add.stats for add in live]
    assert again.bases.load() is not None


def test_a_table_is_begun_with_its_base() -> None:
    """The commit before it is read no more, but for its beginning."""
    table = small()
    path = table.write()
    table.commit(add("h", 30))
    read: list[str] = []

    def seen(call: Call) -> None:
        if call.name == "get" and call.when == "before":
            read.append(call.path)

    table.store.fault = seen
    view = table.opened().view()
    assert read in ([listing.commit_path(2)], [listing.commit_path(2), path])
    table.store.fault = None
    assert answers(view) == of_log(table)


def test_the_version_of_a_base_is_the_oldest_that_is_held() -> None:
    table = small()
    table.write()
    table.commit(add("h", 30))
    held = table.opened()
    assert held.view().version == 2
    assert held.view(1).version == 1
    assert [view.total for view in (held.view(0), held.view(1), held.view(2))] == [45, 45, 50]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def newer(data: bytes) -> bytes:
    return data[:8] + bytes([FORM.version + 1]) + data[9:]


WRONG: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "size"),
    "torn in its prefix": (lambda data: data[:10], "size"),
    "torn in its header": (lambda data: data[:100], "header"),
    "torn": (lambda data: data[:-100], "size"),
    "torn at its end": (lambda data: data[:-1], "size"),
    "longer": (lambda data: data + b"\0", "size"),
    "flipped": (lambda data: flipped(data, len(data) - 100), "checksum"),
    "flipped in its digest": (lambda data: flipped(data, len(data) - 1), "checksum"),
    "another file": (lambda _: b"PAR1" * 100, "magic"),
    "newer": (newer, "version"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_base_changes_no_row_and_is_replaced(name: str) -> None:
    change, field = WRONG[name]
    table = small()
    path = table.write()
    table.store.put(path, change(table.store.get(path)))
    table.commit(add("h", 30))
    held = table.opened()
    assert answers(held.view()) == of_log(table)
    assert held.bases.not_believed == {field: 1}
    assert held.base_due
    assert held.write_base()
    # That of a newer program is left to it.
    assert (path in table.bases()) == (name == "newer")
    again = table.opened()
    assert answers(again.view()) == of_log(table)
    assert again.bases.not_believed == {}


def test_a_base_of_another_table_is_not_used() -> None:
    """Its commit may have the same size and time."""
    other, table = small(), Table()
    for version in range(2):
        text = other.store.get(listing.commit_path(version))
        text = text.replace(b'"id":"t"', b'"id":"u"').replace(b'"g"', b'"e"')
        table.store.put(listing.commit_path(version), text)
    path = other.write()
    table.store.put(path, other.store.get(path))
    of_base = head_of(other.store.get(path)).position
    mine = table.store.head(listing.commit_path(1))
    assert (of_base.modified_ms, of_base.size) == (mine.modified_ms, mine.size)
    held = table.opened()
    assert answers(held.view()) == of_log(table)
    assert held.view().head.metadata.id == "u"
    assert held.bases.not_believed == {"commit": 1}


def test_a_base_is_not_used_after_the_log_was_replaced() -> None:
    table = small()
    table.write()
    for version in range(2):
        table.store.delete([listing.commit_path(version)])
    table.version = -1
    table.commit(PROTOCOL, replace(METADATA, id="again"), add("new", 5))
    table.commit(add("newer", 6))
    held = table.opened()
    assert answers(held.view()) == of_log(table)
    assert held.view().head.metadata.id == "again"
    assert held.bases.not_believed == {"commit": 1}


def test_a_base_far_behind_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_, "MOST_COMMITS", 2)
    table = small()
    table.write()
    for n in range(3):
        table.commit(add(f"h{n}", n))
    held = table.opened()
    assert answers(held.view()) == of_log(table)
    assert held.bases.not_believed == {"commit": 1}


def test_a_broken_commit_after_a_base_is_met_as_without_it(tmp_path: Path) -> None:
    """A checkpoint after it still tells the version."""
    root = tmp_path / "lake"
    for first in range(3):
        write_deltalake(root, pa.table({"id": range(first, first + 3)}), mode="append")
    log = DeltaLog(open_store(root.as_uri()))
    held = FollowedTable(log)
    assert held.view().total == 9
    assert held.write_base()
    write_deltalake(root, pa.table({"id": range(3)}), mode="append")
    write_deltalake(root, pa.table({"id": range(3)}), mode="append")
    DeltaTable(root).create_checkpoint()
    (root / listing.commit_path(3)).write_bytes(b"{no json")
    assert FollowedTable(log).view().total == 15


def test_a_base_is_due_when_a_tenth_has_changed_or_another_column_was_named() -> None:
    table = Table()
    table.commit(PROTOCOL, METADATA, *(add(f"f{n}", n) for n in range(40)))
    held = table.opened()
    view = held.view()
    assert held.base_due
    assert held.write_base()
    assert not held.base_due
    table.clock.now += 3_600
    assert not held.base_due
    for n in range(5):
        table.commit(add(f"g{n}", n))
        table.clock.now += 1
        held.view()
        assert held.base_due == (n == 4)
    assert held.write_base()
    certain_count(view, SOME[0])
    assert not held.base_due
    assert len(table.bases()) == 2


def test_a_base_that_cannot_be_written_is_not_tried_at_once() -> None:
    table = small()
    held = table.opened()
    total = held.view().total

    def refused(call: Call) -> None:
        if call.name == "put" and call.when == "before":
            raise AccessDenied("no right to write", resource=call.path)

    table.store.fault = refused
    with pytest.raises(AccessDenied):
        held.write_base()
    assert not held.base_due
    assert held.view().total == total
    table.clock.now += 3_600
    assert held.base_due


def test_bases_that_cannot_be_read_are_not_needed() -> None:
    table = small()
    table.write()
    expected = of_log(table)

    def refused(call: Call) -> None:
        if call.path.startswith(FOLDER):
            raise AccessDenied("no right", resource=call.path)

    table.store.fault = refused
    assert answers(table.opened().view()) == expected


def test_few_bases_are_left() -> None:
    table = small()
    for n in range(4):
        table.commit(add(f"h{n}", n))
        table.write()
    assert [int(path[len(FOLDER) + 1 :][:20]) for path in table.bases()] == [4, 5]


def base_of(table: Table) -> Base:
    return unpack(table.store.get(table.write()))


def with_header(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Another header, and the checksum that belongs to it."""
    _, version, zero, size, body = PREFIX.unpack_from(data)
    header = json.loads(data[PREFIX.size : PREFIX.size + size])
    change(header)
    text = json.dumps(header).encode()
    whole = PREFIX.pack(FORM.magic, version, zero, len(text), body) + text
    whole += data[PREFIX.size + size : -32]
    return whole + hashlib.sha256(whole).digest()


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no files": lambda header: header.update(files=0),
    "more files": lambda header: header.update(files=10**12),
    "negative": lambda header: header.update(files=-1),
    "a truth value": lambda header: header.update(files=True),
    "no protocol": lambda header: header.update(protocol=None),
    "another table id": lambda header: header.update(tableId="x"),
    "an unknown column": lambda header: header.update(held=["path", "size", "x"]),
    "no path": lambda header: header.update(held=[]),
    "a column of no type": lambda header: header["columns"].append(["i", "map"]),
    "a column of another type": lambda header: header["columns"][0].__setitem__(1, "string"),
    "no sections": lambda header: header.update(sections=[]),
    "a section of everything": lambda header: header["sections"][0].__setitem__(0, 10**15),
    "a negative section": lambda header: header["sections"][0].__setitem__(0, -5),
    "a section of texts": lambda header: header["sections"].__setitem__(0, "x"),
    "a huge section": lambda header: header["sections"][0].__setitem__(1, 10**14),
    "a longer section": lambda header: header["sections"][0].__setitem__(1, 1 << 20),
    "texts of no number": lambda header: header["texts"][0].__setitem__(0, -1),
    "fewer texts than files": lambda header: header["texts"].clear(),
    "texts of another size": lambda header: header["texts"][0].__setitem__(1, 10**10),
    "one section more": lambda header: header["sections"].append([0, 0]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_content_that_does_not_fit_together_is_refused(name: str) -> None:
    table = small()
    data = table.store.get(table.write())
    assert unpack(with_header(data, lambda _: None)).head.files == 9
    with pytest.raises(FactsRefused):
        unpack(with_header(data, HOSTILE[name]))


@cache
def sample() -> bytes:
    table = small()
    return table.store.get(table.write())


@settings(deadline=None, max_examples=few(75, 2_000))
@given(st.data())
def test_bytes_of_another_writer_are_a_base_or_refused(data: st.DataObject) -> None:
    whole = bytearray(sample())
    for at in data.draw(st.lists(st.integers(PREFIX.size, len(whole) - 33), max_size=4)):
        whole[at] = data.draw(st.integers(0, 255))
    content = bytes(whole[:-32])
    try:
        found = unpack(content + hashlib.sha256(content).digest())
    except FactsRefused:
        return
    assert found.files.num_rows == found.head.files == len(found.statistics)
    assert sum(map(len, found.statistics.texts())) == found.head.files


def test_a_base_larger_than_the_limit_is_neither_written_nor_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = small()
    base = base_of(table)
    [path] = table.bases()
    monkeypatch.setattr(base_, "LIMIT", 100)
    assert pack(base) is None
    with pytest.raises(FactsRefused):
        unpack(table.store.get(path), limit=100)
    held = table.opened()
    held.view()
    assert not held.write_base()


def test_the_head_of_a_base_is_read_by_its_beginning() -> None:
    table = small()
    data = table.store.get(table.write())
    head = head_of(data[:BEGINNING])
    assert (head.version, head.files, head.metadata.id) == (1, 9, "t")


def test_a_server_writes_a_base_which_the_next_one_begins_with(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    for first in range(3):
        write_deltalake(root, pa.table({"id": range(first, first + 3)}), mode="append")
    question = json.dumps({"table": "lake", "where": "id < 2"}).encode()

    def served() -> tuple[IndexService, list[TableIndex]]:
        opened: list[TableIndex] = []

        def opener() -> TableIndex:
            opened.append(open_index(str(root)))
            return opened[-1]

        return IndexService({"lake": opener}, AnswerFiles(None)), opened

    service, _ = served()
    before = service.ask("GetCount", question).message
    await_that(lambda: list((root / FOLDER).glob("*.base")), "no base was written")
    service.close()
    again, [*_] = served()
    assert again.ask("GetCount", question).message == before
    index = open_index(str(root))
    assert index.certain_count(Query("id < 2")).version == 2
    assert not index.table.base_due
    again.close()
