"""Footers: what is not known is kept, and a hostile one ends in an error, not in other bytes."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowgroups.writers import WRITERS, footer_of, pyarrow, rows
from tandem.delta.datafiles import footer as footers
from tandem.delta.datafiles import footer as n
from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.footer import FileFooter, FooterInvalid, parse, read_footer
from tandem.delta.datafiles.footer_edit import Placed, footer_bytes, group_at, offset_index_at
from tandem.delta.datafiles.thrift import EncodedField, struct_bytes


def _same_place(footer: FileFooter) -> list[bytes]:
    """The row groups at their own places."""
    return [
        group_at(
            group,
            [
                Placed(
                    c.data.start,
                    c.filter.start if c.filter else 0,
                    c.column_index.start if c.column_index else 0,
                    c.offset_index or c.data,
                )
                for c in group.chunks
            ],
            number,
        )
        for number, group in enumerate(footer.groups)
    ]


def _written(footer: FileFooter, groups: list[bytes]) -> bytes:
    return footer_bytes(
        version=footer.version,
        schema=footer.schema,
        rows=footer.rows,
        groups=groups,
        pairs=footer.pairs,
        creator=footer.creator,
        orders=footer.orders,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, int]]:
    """The footer of a file of each writer, and the file's size."""
    folder = tmp_path_factory.mktemp("footers")
    found = {}
    for name, write in WRITERS.items():
        path = folder / f"{name}.parquet"
        write(path, rows(1, 1_000))
        with path.open("rb") as source:
            found[name] = (read_footer(source), path.stat().st_size)
    return found


@pytest.mark.parametrize("name", WRITERS)
def test_row_groups_at_their_own_places_are_the_same(
    whole: dict[str, tuple[bytes, int]], name: str
) -> None:
    data, size = whole[name]
    footer = parse(data, size)
    again = parse(_written(footer, _same_place(footer)), size)
    assert [(g.rows, g.size) for g in again.groups] == [(g.rows, g.size) for g in footer.groups]
    for group, other in zip(footer.groups, again.groups, strict=True):
        for chunk, twin in zip(group.chunks, other.chunks, strict=True):
            assert (chunk.data, chunk.filter, chunk.column_index, chunk.offset_index) == (
                twin.data,
                twin.filter,
                twin.column_index,
                twin.offset_index,
            )
            assert (chunk.nulls, chunk.has_bounds) == (twin.nulls, twin.has_bounds)
    assert _written(again, _same_place(again)) == _written(footer, _same_place(footer))


def test_fields_that_are_not_known_are_kept(whole: dict[str, tuple[bytes, int]]) -> None:
    footer = parse(*whole["pyarrow"])
    strange = EncodedField(99, thrift.BINARY, thrift.binary_bytes(b"from the future"))
    group = footer.groups[0]
    chunks = tuple(
        replace(c, fields=(*c.fields, strange), metadata=(*c.metadata, strange))
        for c in group.chunks
    )
    later = replace(group, fields=(*group.fields, strange), chunks=chunks)
    moved = group_at(later, [Placed(c.data.start + 1_000) for c in chunks], 7)
    assert moved.count(b"from the future") == 1 + 2 * len(chunks)


def test_encrypted_and_scattered_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow()(path, rows(1, 100))
    data, size = read_footer(io.BytesIO(path.read_bytes())), path.stat().st_size
    fields, _ = thrift.fields(data, 0)
    for id_, says in ((8, "encrypted"), (20, "from a later format")):
        more = struct_bytes([*fields, EncodedField(id_, thrift.BINARY, thrift.binary_bytes(b"x"))])
        with pytest.raises(FooterInvalid, match=says):
            parse(more, size + 10)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "has no footer"),
        (b"PAR1" + b"\0" * 8 + b"\0\0\0\0PARE", "ends with b'PARE'"),
        (b"PAR1" + b"\0" * 8 + b"\xff\xff\xff\x7fPAR1", "a footer of 2147483647 bytes"),
    ],
)
def test_a_file_without_a_footer(content: bytes, says: str) -> None:
    with pytest.raises(FooterInvalid, match=says):
        read_footer(io.BytesIO(content))


@given(
    name=st.sampled_from(sorted(WRITERS)),
    edits=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 1 << 20),
)
def test_a_hostile_footer_is_refused_or_names_bytes_of_its_file(
    whole: dict[str, tuple[bytes, int]], name: str, edits: list[tuple[int, int]], cut: int
) -> None:
    data, size = whole[name]
    hostile = bytearray(data[: len(data) - cut % 3])
    for at, value in edits:
        hostile[at % len(hostile)] = value
    try:
        footer = parse(bytes(hostile), size)
    except FooterInvalid:
        return
    end = size - 8 - len(hostile)
    for group in footer.groups:
        assert group.size <= end
        for chunk in group.chunks:
            for part in (chunk.data, chunk.filter, chunk.column_index, chunk.offset_index):
                assert part is None or 4 <= part.start <= part.end <= end


MANY = 30_000
FLAGS = b"\x01\xc8\x01" + b"\x11" * MANY + b"\x00"
"""A struct of many fields without a value, from field 100 on."""


def _numbers(**fields: int) -> list[EncodedField]:
    return [EncodedField(getattr(n, name), thrift.I64, bytes([v])) for name, v in fields.items()]


def _list(id_: int, structs: Sequence[bytes]) -> EncodedField:
    return EncodedField(id_, thrift.LIST, thrift.list_bytes(structs))


def _group(columns: list[bytes]) -> bytes:
    return struct_bytes([_list(n.G_COLUMNS, columns), *_numbers(G_ROWS=0)])


def _bomb(
    groups: Sequence[bytes] = (), schema: Sequence[bytes] = (b"\x00",), pairs: Sequence[bytes] = ()
) -> bytes:
    fields = [
        *_numbers(VERSION=2),
        _list(n.SCHEMA, schema),
        *_numbers(ROWS=0),
        _list(n.GROUPS, groups),
        _list(n.PAIRS, pairs),
    ]
    return struct_bytes(sorted(fields, key=lambda field: field.id))


def _chunk() -> bytes:
    # Bytes 4 to 4: none, so that as many as there are overlap nowhere.
    numbers = _numbers(M_TYPE=2, M_CODEC=0, M_VALUES=0, M_SIZE=0, M_DATA=8)
    metadata = struct_bytes(sorted(numbers, key=lambda field: field.id))
    return struct_bytes([EncodedField(n.C_METADATA, thrift.STRUCT, metadata)])


BOMBS: dict[str, Callable[[], bytes]] = {
    "row groups": lambda: _bomb([_group([])] * MANY),
    "columns": lambda: _bomb([_group([_chunk()] * MANY)]),
    "row groups of columns": lambda: _bomb([_group([_chunk()] * 100)] * (MANY // 100)),
    "fields of a row group": lambda: _bomb([FLAGS]),
    "fields of a footer": lambda: FLAGS,
    "columns of the schema": lambda: _bomb(schema=[b"\x00"] * MANY),
    "fields of a column of the schema": lambda: _bomb(schema=[FLAGS]),
    "key-value metadata": lambda: _bomb(pairs=[b"\x18\x00\x00"] * MANY),
    "fields of key-value metadata": lambda: _bomb(pairs=[FLAGS]),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_hostile_footer_takes_no_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte of it could become a hundred in memory: 64 MiB take all that a task has."""
    monkeypatch.setattr(footers, "MOST_KEPT", 10_000)
    data = BOMBS[name]()
    tracemalloc.start()
    try:
        with pytest.raises(FooterInvalid, match=r"more than 1\d+ fields"):
            parse(data, len(data) + 100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000 + len(data)


def test_page_indexes_that_no_memory_holds_are_not_copied(
    whole: dict[str, tuple[bytes, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read whole: a hostile footer may say that all of a file is one."""
    data, size = whole["pyarrow page indexes"]
    most = max(
        sum(part.size for c in g.chunks for part in (c.column_index, c.offset_index) if part)
        for g in parse(data, size).groups
    )
    monkeypatch.setattr(footers, "MOST_INDEXES", most)
    parse(data, size)
    monkeypatch.setattr(footers, "MOST_INDEXES", most - 1)
    with pytest.raises(FooterInvalid, match=f"page indexes of {most} bytes"):
        parse(data, size)


@given(data=st.binary(max_size=200), moved=st.integers(-(1 << 40), 1 << 40))
def test_a_hostile_offset_index_is_refused_or_moved(data: bytes, moved: int) -> None:
    try:
        found = offset_index_at(data, moved)
    except FooterInvalid:
        return
    assert offset_index_at(found, -moved) == offset_index_at(data, 0)


def test_the_footer_of_a_file_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow()(path, rows(2, 1_000))
    footer = footer_of(path)
    assert footer.rows == 1_000
    assert [group.rows for group in footer.groups] == [700, 300]
