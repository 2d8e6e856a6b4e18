"""Sizes, durations, names and locations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tandem.spec.fields import (
    DnsName,
    Location,
    format_duration,
    format_quantity,
    parse_duration,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1Gi", 2**30),
        ("128Mi", 128 * 2**20),
        ("1G", 10**9),
        ("1.5Gi", 3 * 2**29),
        ("0.1", 1),  # rounded up, as Kubernetes does
        ("1e3", 1000),
        (1e9, 10**9),  # a bare 1e9 in YAML, which kubectl sends as a whole number
        ("+1Ki", 1024),
        ("2E", 2 * 10**18),
        ("0", 0),
        (1024, 1024),
    ],
)
def test_quantities_become_bytes(text: str | int, size: int) -> None:
    assert parse_quantity(text) == size


@pytest.mark.parametrize(
    "text", ["1GB", "1 Gi", "", "-1Gi", "Gi", "1m", "9Ei", True, None, 1.5, "1e99999999", "0" * 33]
)
def test_invalid_sizes_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_quantity(text)


@given(st.integers(min_value=0, max_value=2**63 - 2))
def test_a_printed_size_reads_back_the_same(size: int) -> None:
    assert parse_quantity(format_quantity(size)) == size


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("168h", 168 * 3_600_000),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1_500),
        ("250ms", 250),
        ("0", 0),
        ("0s", 0),
        ("1500us", 1),
    ],
)
def test_durations_become_milliseconds(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["7d", "1", "10 m", "", "h", "-1h", 5, True, "1h30"])
def test_invalid_durations_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**12))
def test_a_printed_duration_reads_back_the_same(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds)) == milliseconds


@pytest.mark.parametrize("name", ["a", "nightly-2", "a.b-c.d", "x" * 63])
def test_names_that_kubernetes_takes(name: str) -> None:
    assert TypeAdapter(DnsName).validate_python(name) == name


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a..b", "x" * 64, "ä", "a\n"])
def test_names_that_kubernetes_refuses(name: str) -> None:
    with pytest.raises(ValidationError, match="DNS-1123"):
        TypeAdapter(DnsName).validate_python(name)


@pytest.mark.parametrize(
    "location",
    [
        "file:///data/flights",
        "s3://bucket",
        "s3://bucket/a/b",
        "gs://bucket/a%20b",
        "abfss://container@account.dfs.core.windows.net/a",
    ],
)
def test_locations_that_are_accepted(location: str) -> None:
    assert TypeAdapter(Location).validate_python(location + "/") == location


def test_a_location_must_be_a_url() -> None:
    """Others that are refused are in `tests/crds/wrong_resources.yaml`."""
    with pytest.raises(ValidationError, match="must be a URL"):
        TypeAdapter(Location).validate_python("data")
