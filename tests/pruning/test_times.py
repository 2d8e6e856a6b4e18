"""Times as writers log them in statistics."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from tandem.pruning.scope import micros, moments


def ms(text: str) -> int:
    return micros(dt.datetime.fromisoformat(text))


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        ("timestamp", "2021-06-17T12:00:00.123-07:00", ms("2021-06-17T19:00:00.123Z")),
        ("timestamp", "2021-06-17T19:00:00Z", ms("2021-06-17T19:00:00Z")),
        ("timestamp", "2021-06-17 19:00:00", ms("2021-06-17T19:00:00Z")),
        ("timestamp", "2021-06-17T19:00:00.123456789Z", ms("2021-06-17T19:00:00.123456Z")),
        ("timestamp", "never", None),
        ("timestamp", "9999-12-31T23:59:59-10:00", None),
        ("timestamp", "0000-01-01T00:00:00Z", None),
        ("timestamp_ntz", "2021-06-17 19:00:00.5", ms("2021-06-17T19:00:00.5")),
        ("timestamp_ntz", "2021-06-17 19:00:00Z", ms("2021-06-17T19:00:00")),
        ("timestamp_ntz", "2021-06-17 19:00:00+01:00", None),
        ("date", "2021-06-17", ms("2021-06-17")),
        ("date", "2021-06-31", None),
        ("date", None, None),
    ],
)
def test_a_time_is_parsed_alike_alone_and_in_bulk(
    type_: str, text: str | None, expected: int | None
) -> None:
    assert moments(pa.array([text], pa.string()), type_).to_pylist() == [expected]
    usual = "2021-01-01" if type_ == "date" else "2021-01-01T00:00:00.000Z"
    for other in (usual, usual.removesuffix("Z"), "soon", None):
        found = moments(pa.array([other, text, other], pa.string()), type_).to_pylist()
        assert found[1] == expected
