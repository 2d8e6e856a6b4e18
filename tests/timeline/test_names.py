"""Names, numbers and lineage (S25, Z16)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.present import present
from tandem.delta.actions import Txn
from tandem.timeline import lineage
from tandem.timeline.lineage import Lineage, format_lineage, parse_lineage
from tandem.timeline.names import (
    HIGH_WATER_APP,
    NameRequest,
    SegmentNumbers,
    derived_name,
    foreign_name,
    output_names,
    parse_name,
)

names = st.one_of(
    st.integers(0, 200).map(str),
    st.builds("{}.{}".format, st.integers(0, 99), st.integers(1, 9)),
    st.text("0123456789abcdef", min_size=12, max_size=12).map("f-{}".format),
)


@pytest.mark.parametrize(
    ("first", "level", "expected"),
    [
        ("0", 1, "0.1"),
        ("0.1", 2, "0.2"),
        ("5.1", 2, "5.2"),
        ("0", 2, "0.2"),
        ("f-" + "a" * 12, 1, None),
    ],
)
def test_names_derive_as_in_carbondata(first: str, level: int, expected: str | None) -> None:
    assert derived_name(first, level) == expected


@pytest.mark.parametrize("text", ["", "7.0", "07", "-1", "1.", ".1", "1.2.3", "f-", "F-" + "a" * 12,
                                  "f-" + "a" * 13, "../7", "7\n", "9" * 40, "١"])  # fmt: skip
def test_invalid_segment_names_are_rejected(text: str) -> None:
    assert parse_name(text) is None


@given(st.text(max_size=40))
def test_foreign_files_have_a_name_that_is_one(path: str) -> None:
    parsed = present(parse_name(foreign_name(path)))
    assert parsed.foreign
    assert parsed.level == 0


def test_foreign_first_input_gets_a_fresh_number_with_the_level() -> None:
    numbers = SegmentNumbers(6)
    first = foreign_name("part-0.parquet")

    assert output_names([NameRequest(first, 1)], {first}, numbers) == ("7.1",)
    assert output_names([NameRequest(first, 2)], {first}, numbers) == ("8.2",)
    assert numbers.txn(1).version == 8


def test_name_that_is_live_already_gives_way_to_a_fresh_number() -> None:
    numbers = SegmentNumbers(3)
    taken = {"0", "0.1", "4.1"}  # 4.1: carried over from another table, without its txn

    assert output_names([NameRequest("0", 1)], taken, numbers) == ("5.1",)


@given(st.lists(st.builds(NameRequest, names, st.integers(1, 4)), max_size=20), st.sets(names),
       st.integers(-1, 50))  # fmt: skip
def test_output_names_are_new_and_apart(
    requests: list[NameRequest], taken: set[str], highest: int
) -> None:
    numbers = SegmentNumbers(highest)
    given_out = output_names(requests, taken, numbers)

    assert len(set(given_out)) == len(requests)
    assert not taken.intersection(given_out)
    for request, name in zip(requests, given_out, strict=True):
        parsed = present(parse_name(name))
        assert parsed.level == request.level
        assert name == derived_name(request.first, request.level) or parsed.number > highest  # type: ignore[operator]
    # The loop starts again when the put loses: same version, same names.
    assert output_names(requests, taken, SegmentNumbers(highest)) == given_out


def test_S25_numbers_are_taken_in_the_commit_and_taken_again_when_it_loses() -> None:
    txns: dict[str, Txn] = {}
    first, second = SegmentNumbers.at(txns), SegmentNumbers.at(txns)
    assert (first.take(), second.take()) == (0, 0)

    txns[HIGH_WATER_APP] = first.txn(10)  # the first put won

    second = SegmentNumbers.at(txns)
    assert second.take() == 1
    assert second.txn(20) == Txn(HIGH_WATER_APP, 1, 20)


def test_Z16_number_whose_segments_are_all_gone_is_not_used_again() -> None:
    numbers = SegmentNumbers.at({})
    assert [numbers.take() for _ in range(4)] == [0, 1, 2, 3]
    txns = {HIGH_WATER_APP: numbers.txn(1)}

    # Segments 2 and 3 are deleted: no tag mentions them any longer.
    assert SegmentNumbers.at(txns, ["0", "1"]).take() == 4


def test_Z16_numbers_that_tags_carry_are_taken_without_a_high_water_mark() -> None:
    # A clone carries tags over, not txns; parents count too.
    assert SegmentNumbers.at({}, ["7.2", "3", "f-" + "0" * 12]).take() == 8


@given(st.sets(names))
def test_lineage_round_trips_as_text(parents: set[str]) -> None:
    made = lineage.of(parents)
    text = format_lineage(made, limit=1 << 20)

    assert parse_lineage(text) == made
    assert set(made) == parents
    assert len(made) == len(parents)
    assert all(parent in made for parent in parents)
    assert "201" not in made


@given(st.sets(names), st.integers(30, 300))
def test_lineage_text_is_bounded_and_counts_what_it_leaves_out(
    parents: set[str], limit: int
) -> None:
    text = format_lineage(lineage.of(parents), limit)
    back = parse_lineage(text)

    assert len(text) <= limit
    assert len(back) == len(parents)
    assert set(back) <= parents
    assert format_lineage(back, limit) == text


def test_lineage_of_many_loads_is_short_and_of_many_foreign_files_bounded() -> None:
    assert format_lineage(lineage.of(map(str, range(1_000_000)))) == "0-999999"
    assert format_lineage(lineage.of(["0.1", "4.1", "8.1"])) == "0.1,4.1,8.1"
    assert format_lineage(lineage.of(["0", "1", "2", "3", "5.1"])) == "0-3,5.1"

    foreign = [foreign_name(str(n)) for n in range(10_000)]
    text = format_lineage(lineage.of(["3", *foreign]))
    assert len(text) <= lineage.MAX_LENGTH
    assert text.startswith("3,f-")
    assert len(parse_lineage(text)) == 10_001


@given(st.text("0123456789-,.+f abc", max_size=60))
def test_lineage_never_fails_on_tags_of_other_writers(text: str) -> None:
    assert isinstance(parse_lineage(text), Lineage)
