"""How appended bytes and ranges become the parts of an upload."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.storage import s3
from tandem.storage.s3 import PartCutter, SourceRange, UploadPart

OBJECTS = {key: random.Random(key).randbytes(400) for key in "abc"}
LEAST, MOST = 10, 32


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s3, "LEAST", LEAST)
        patch.setattr(s3, "MOST", MOST)
        patch.setattr(s3, "_SPARE", 20)
        yield


def content(pieces: Sequence[bytes | SourceRange]) -> bytes:
    return b"".join(
        p if isinstance(p, bytes) else OBJECTS[p.key][p.start : p.start + p.size] for p in pieces
    )


def cut(pieces: list[bytes | SourceRange]) -> list[UploadPart]:
    made = PartCutter()
    return [*(part for piece in pieces for part in made.append(piece)), *made.rest()]


def of(key: str, start: int, size: int) -> SourceRange:
    return SourceRange(key, "tag", start, size)


PIECES = st.lists(
    st.binary(max_size=25)
    | st.builds(of, st.sampled_from("abc"), st.integers(0, 200), st.integers(0, 150)),
    max_size=40,
)


@given(PIECES)
def test_parts_are_the_pieces_in_order_and_none_is_too_small(
    pieces: list[bytes | SourceRange],
) -> None:
    found = cut(pieces)
    assert b"".join(content(part.pieces) for part in found) == content(pieces)
    assert all(part.size >= LEAST for part in found[:-1])
    assert all(part.size for part in found)
    for number, part in enumerate(found):
        if part.is_copied:
            assert len(part.pieces) == 1
            assert isinstance(part.pieces[0], SourceRange)
            assert (LEAST if number < 20 else MOST) <= part.size < 2 * MOST


@given(st.lists(st.integers(LEAST, 150), min_size=1, max_size=12))
def test_ranges_that_are_large_enough_are_copied_whole(sizes: list[int]) -> None:
    ranges = [of("abc"[n % 3], 1, size) for n, size in enumerate(sizes)]
    *found, last = cut([*ranges, b"footer"])
    if len(found) < 20:
        assert all(part.is_copied for part in found)
        assert last.pieces == (b"footer",)


def test_ranges_that_go_on_are_one() -> None:
    assert cut([of("a", 4, 6), of("a", 10, 6), b"x"]) == [
        UploadPart((of("a", 4, 12),), is_copied=True),
        UploadPart((b"x",)),
    ]


def test_another_version_is_another_source() -> None:
    first, second = of("a", 4, 6), SourceRange("a", "other", 10, 6)
    assert cut([first, second]) == [UploadPart((first, second))]


def test_a_gap_takes_what_it_lacks_from_the_next_range() -> None:
    assert cut([of("a", 0, 20), b"gap", of("b", 5, 27), b"x"]) == [
        UploadPart((of("a", 0, 20),), is_copied=True),
        UploadPart((b"gap", of("b", 5, 7))),
        UploadPart((of("b", 12, 20),), is_copied=True),
        UploadPart((b"x",)),
    ]


def test_a_gap_takes_all_of_a_range_whose_rest_would_be_too_small() -> None:
    assert cut([of("a", 0, 20), b"gap", of("b", 5, 16), of("c", 0, 20), b"x"]) == [
        UploadPart((of("a", 0, 20),), is_copied=True),
        UploadPart((b"gap", of("b", 5, 16))),
        UploadPart((of("c", 0, 20),), is_copied=True),
        UploadPart((b"x",)),
    ]


def test_many_small_pieces_are_each_counted_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a thousand columns has 100,000 page indexes: what waits is not added up again for
    each of them."""

    class Counted(bytes):
        asked = 0

        def __len__(self) -> int:
            Counted.asked += 1
            return super().__len__()

    monkeypatch.setattr(s3, "LEAST", 2_000)
    found = cut([of("a", 0, 20), *(Counted(b"x") for _ in range(3_000)), of("b", 0, 20)])
    assert sum(part.size for part in found) == 3_040
    assert Counted.asked < 30_000
