"""How long a request of a store may take: by its options, and by the ceiling of the operator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.hanging_server import hanging_server
from tandem.errors import InvalidSpec, StorageError
from tandem.storage import open_store
from tandem.storage.options import settings
from tandem.storage.time_limits import seconds_of, time_limits


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("1m 30s", 90.0),
        ("1m30sec", 90.0),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("2 hours", 7200.0),
        ("366d", 366 * 86_400.0),
        *(
            (bad, None)
            for bad in ("", "30", "s", "-1s", "0s", "1ns", "1e3s", "\u0663s", "9fortnights")
        ),
        *((bad, None) for bad in ("367d", "999999999999999w", "1s\n", "30s; 5")),
    ],
)
def test_durations_are_read_as_the_client_reads_them(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@given(
    st.floats(1.0, 3600.0),
    st.none() | st.floats(0.001, 1.0),
)
def test_a_request_takes_no_longer_than_the_ceiling(ceiling_s: float, share: float | None) -> None:
    client = {} if share is None else {"timeout": f"{max(1, int(ceiling_s * share * 1000))}ms"}
    limits = time_limits(client, ceiling_s)
    assert limits.total_s <= ceiling_s + 1e-5
    assert limits.one_try.total_seconds() > 0
    assert limits.connect <= limits.one_try


def test_without_a_ceiling_the_options_decide() -> None:
    limits = time_limits({"timeout": "5m"})
    assert limits.one_try.total_seconds() == 300
    assert limits.retries.total_seconds() == 60
    assert settings("s3", {"timeout": "5m"}).client == {"timeout": "5m"}


@pytest.mark.parametrize("option", ["timeout", "connect_timeout", "AWS_TIMEOUT"])
def test_a_duration_beyond_the_ceiling_is_refused_by_the_name_as_typed(option: str) -> None:
    settings("s3", {option: "60s"}, ceiling_s=60)
    with pytest.raises(InvalidSpec) as refused:
        settings("s3", {option: "61s"}, ceiling_s=60)
    assert refused.value.field == f"spec.storage.options.{option}"
    assert "60s" in refused.value.expected
    with pytest.raises(InvalidSpec, match="not a duration"):
        settings("s3", {option: "soon"})


def test_a_store_that_never_answers_ends_each_kind_of_call_with_an_error() -> None:
    with hanging_server() as server:
        store = open_store("s3://bucket/t", server.options, ceiling_s=0.5)
        calls = (
            lambda: store.get("a"),
            lambda: store.get_range("a", 0, 1),
            lambda: store.head("a"),
            lambda: list(store.list("a")),
            lambda: store.put("a", b""),
            lambda: store.put_if_absent("a", b""),
            lambda: store.delete(["a"]),
        )
        for call in calls:
            with pytest.raises(StorageError):
                call()
        assert len(server.connections) >= len(calls)
