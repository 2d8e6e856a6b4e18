"""How locks are written: what is read is what was written, for every name and state."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.errors import LocksUnavailable
from tandem.locks import codec
from tandem.locks.model import (
    EVERYTHING,
    WHOLE_TABLE,
    EntryState,
    LockEntry,
    LockInterval,
    LockRequest,
    LockResource,
    Mode,
    segment,
)

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_NAMES = st.one_of(_TEXT, st.sampled_from(["0", "0.1", "f-12ab", "\\u0000", "\\", '"', "a\0b"]))
_RESOURCES = st.one_of(
    st.builds(segment, _NAMES),
    st.builds(LockResource, _NAMES, st.builds(LockInterval, _TEXT, _TEXT)),
    st.just(WHOLE_TABLE),
)
_ENTRIES = st.builds(
    LockEntry,
    st.builds(
        LockRequest,
        table=_TEXT,
        operation=_TEXT,
        mode=st.sampled_from(Mode),
        resources=st.lists(_RESOURCES, max_size=5).map(tuple),
        owner=_TEXT,
        priority=st.integers(-5, 5),
        display=_TEXT,
        row_concurrency=st.booleans(),
    ),
    st.sampled_from(EntryState),
    order=st.just(codec.order(7, 3)),
    token=st.integers(1, 2**62),
    revoked_by=_TEXT,
)


@given(entry=_ENTRIES)
def test_values_round_trip(entry: LockEntry) -> None:
    if entry.state is EntryState.WAITING:
        entry = replace(entry, token=0)
    value = codec.encode(entry, 3)
    assert codec.decode(value, created=7, modified=9) == (entry, 3)


@given(entry=_ENTRIES)
def test_any_json_library_reads_the_segments(entry: LockEntry) -> None:
    found = json.loads(codec.encode(entry))
    named = [r if isinstance(r, str) else r[0] for r in found["resources"]]
    assert named == [r.segment for r in entry.request.resources]
    assert found["table"] == entry.request.table


def test_the_token_of_a_grant_is_its_revision() -> None:
    entry = LockEntry(LockRequest("t", "a", Mode.REWRITE, (segment("0"),)), EntryState.HELD, 0)
    read, _ = codec.decode(codec.encode(entry), created=5, modified=9)
    assert read.token == 9
    again, _ = codec.decode(codec.encode(read), created=5, modified=12)
    assert again.token == 9


def test_a_thousand_segments_are_a_small_value() -> None:
    resources = tuple(segment(str(number)) for number in range(1000))
    entry = LockEntry(LockRequest("t", "a", Mode.REWRITE, resources), EntryState.HELD, 0)
    value = codec.encode(entry)
    assert len(value) < 8000
    assert codec.decode(value, created=1, modified=1)[0].request.resources == resources


@given(table=_TEXT, operation=_TEXT)
def test_keys_are_within_their_table_and_name_the_operation(table: str, operation: str) -> None:
    keys = codec.LockKeys("/tandem/v1/").table(table)
    key = keys.of(operation)
    assert keys.start < keys.head < keys.end
    assert keys.operations <= key < keys.operations_end
    assert keys.operation(key) == operation
    assert keys.operation(keys.head) is None
    assert codec.LockKeys("/tandem/v1").id_of(key) == codec.table_id(table)


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"[]", b'"x"', b"{}", b'{"version":1}', b"\xff", b'{"version":1,"mode":"?"}'],
)
def test_foreign_values_are_refused(value: bytes) -> None:
    with pytest.raises(LocksUnavailable, match="cannot be read"):
        codec.decode(value, created=1, modified=1)


def test_a_later_version_is_refused() -> None:
    with pytest.raises(LocksUnavailable, match="later version"):
        codec.decode(b'{"version":2,"mode":"New"}', created=1, modified=1)


def test_an_open_interval_is_shared() -> None:
    assert segment("0").interval is EVERYTHING
