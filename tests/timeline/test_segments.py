"""Segments as a function of live files, and of the past from commits and lineage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.lake.segments import MIB, add_file, segments
from tandem.delta.actions import AddFile, Commit, RemoveFile
from tandem.delta.stats import MOST_ROWS
from tandem.spec.table import Granularity
from tandem.timeline import lineage
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.file_columns import TAG_CHUNK
from tandem.timeline.history import retired
from tandem.timeline.names import foreign_name
from tandem.timeline.segments import (
    TAG_PARENTS,
    TAG_SEGMENT,
    TAG_SEQUENCE,
    TAG_TYPE,
    SegmentStatus,
    output_tags,
    successor_tags,
)


def test_foreign_files_are_one_segment_each_in_order_of_time_then_path() -> None:
    adds = [add_file("b", sequence=5), add_file("c", sequence=1), add_file("a", sequence=5)]

    found = segments(adds)

    assert [segment.name for segment in found] == [foreign_name(path) for path in "cab"]
    assert [segment.level for segment in found] == [0, 0, 0]


def test_tagged_files_are_one_segment_whatever_the_order_of_the_log() -> None:
    adds = [
        add_file("x2", segment="0.1", sequence=100, rows=10, deleted=4, size=2 * MIB),
        add_file("y", segment="4", sequence=104),
        add_file("x1", segment="0.1", sequence=100, rows=20),
    ]

    first, second = segments(adds)

    assert (first.name, first.level, first.sequence) == ("0.1", 1, 100)
    assert [file.path for file in first.files] == ["x1", "x2"]
    assert (first.size_bytes, first.rows, first.deleted_rows) == (3 * MIB, 30, 4)
    assert first.live_bytes == MIB + 2 * MIB * 6 // 10
    assert first.status is SegmentStatus.MARKED_FOR_UPDATE
    assert (second.name, second.status) == ("4", SegmentStatus.SUCCESS)


SIZES = st.integers(0, 1 << 62) | st.integers(0, 1000)


@given(
    st.lists(
        st.tuples(SIZES, st.none() | st.integers(0, MOST_ROWS) | st.integers(0, 20), SIZES),
        min_size=1,
        max_size=6,
    )
)
def test_live_bytes_and_deleted_shares_are_exact(
    drawn: list[tuple[int, int | None, int]],
) -> None:
    adds = [
        add_file(f"f{at}", size=size, rows=rows, deleted=deleted)
        for at, (size, rows, deleted) in enumerate(drawn)
    ]
    files = segments(adds).files
    for file in files:
        size, rows, deleted = drawn[int(file.path.removeprefix("f"))]
        assert file.rows == rows
        assert file.live_bytes == (size * max(rows - deleted, 0) // rows if rows else size)
        share = min(1.0, deleted / rows) if rows else float(deleted > 0)
        assert file.deleted_share == pytest.approx(share)
    assert files.live_bytes.tolist() == [file.live_bytes for file in files]


def test_rewrite_keeps_the_place_of_its_first_input() -> None:
    # 0.1 was committed last (its files are the youngest) and still comes first.
    adds = [
        add_file("z", tags=output_tags("0.1", 1000), sequence=9000),
        add_file("y", tags=output_tags("4", 1004), sequence=1004),
    ]
    assert [segment.name for segment in segments(adds)] == ["0.1", "4"]


TAGS = st.sampled_from([TAG_SEGMENT, TAG_SEQUENCE, TAG_PARENTS, TAG_CHUNK, TAG_TYPE])


@given(st.dictionaries(TAGS, st.text(max_size=20)))
def test_tags_of_others_never_make_a_table_unreadable(tags: dict[str, str]) -> None:
    (segment,) = segments([add_file("a", tags=tags)], TimeColumn(("t",), Granularity.DAY))
    assert segment.name in (foreign_name("a"), tags.get("tandem.segment"))


@given(st.permutations([add_file(f"{n}", segment=str(n // 2), sequence=n // 2) for n in range(6)]))
def test_order_of_actions_does_not_matter(adds: list[AddFile]) -> None:
    assert [segment.name for segment in segments(adds)] == ["0", "1", "2"]


def test_lineage_tag_comes_back_and_guards_its_numbers() -> None:
    tags = output_tags("17.1", 5, parents=lineage.of(["f-" + "0" * 12, "18", "19"]), row_map="m",
                       major=True)  # fmt: skip
    (segment,) = segments([add_file("a", tags=tags)])

    assert list(segment.parents) == ["18", "19", "f-" + "0" * 12]
    assert segment.major


@pytest.mark.parametrize(
    ("stats", "rows"),
    [
        ('{"numRecords":7}', 7),
        ('{ "numRecords" : 7 , "minValues":{"numRecords":3}}', 7),
        ('{"minValues":{"numRecords":3},"numRecords":7}', 7),
        ('{"minValues":{"numRecords":3}}', None),
        ('{"numRecords":-1}', None),
        ('{"numRecords":"7"}', None),
        ('{"numRecords":7', None),
        ("", None),
        (None, None),
    ],
)
def test_rows_are_those_of_the_file_not_of_a_column_of_that_name(
    stats: str | None, rows: int | None
) -> None:
    (segment,) = segments([replace(add_file("a"), stats=stats)])
    assert segment.rows == rows


def test_interval_from_the_tag_where_statistics_are_gone() -> None:
    month = TimeColumn(("t",), Granularity.MONTH)
    (made,) = segments([add_file("a", times=("2013-02-01", "2013-02-28"))], month)
    tags = output_tags("1", 5, interval=made.interval)

    (segment,) = segments([add_file("b", tags=tags, rows=None)], month)

    assert segment.interval == made.interval
    assert not segment.files[0].spans
    assert segment.rows is None


# --- the past -----------------------------------------------------------------------------


def removal(add: AddFile, *, data_change: bool) -> RemoveFile:
    return RemoveFile(add.logged_path, 1, data_change, size=add.size)


def commit(version: int, *actions: AddFile | RemoveFile) -> Commit:
    return Commit(version, version, actions)


def test_compacted_and_deleted_segments_are_distinguished() -> None:
    files = [add_file(f"p{n}", segment=str(n), sequence=n) for n in range(6)]
    output = add_file(
        "q",
        tags=output_tags("0.1", 0, parents=lineage.of("0123")),
        data_change=False,
    )
    commits = [
        *(commit(n, file) for n, file in enumerate(files)),
        commit(6, *(removal(file, data_change=False) for file in files[:4]), output),
        commit(7, removal(files[5], data_change=True)),
    ]
    live = segments([output, files[4]])

    past = retired(live, commits)

    assert [(s.name, s.status) for s in past] == [
        ("0", SegmentStatus.COMPACTED),
        ("1", SegmentStatus.COMPACTED),
        ("2", SegmentStatus.COMPACTED),
        ("3", SegmentStatus.COMPACTED),
        ("5", SegmentStatus.MARKED_FOR_DELETE),
    ]
    assert past[0].size_bytes == MIB

    # After log clean-up the lineage still names what was compacted.
    later = retired(live, commits[7:])
    assert {s.name: s.status.value for s in later if s.name in "0123"} == dict.fromkeys(
        "0123", "Compacted"
    )


def test_compaction_by_a_foreign_writer_counts_too() -> None:
    files = [add_file(f"p{n}", sequence=n) for n in range(2)]
    output = add_file("q", sequence=9, data_change=False)
    commits = [
        commit(0, *files),
        commit(1, *(removal(file, data_change=False) for file in files), output),
    ]

    past = retired(segments([output]), commits)

    assert [s.name for s in past] == [foreign_name("p0"), foreign_name("p1")]
    assert {s.status for s in past} == {SegmentStatus.COMPACTED}


def test_update_in_place_retires_nothing_and_a_restore_brings_back() -> None:
    file = add_file("p", segment="0")
    updated = add_file("p", segment="0", deleted=3)
    output = add_file("q", tags=output_tags("0.1", 0, parents=lineage.of("0")), data_change=False)
    commits = [
        commit(0, file),
        commit(1, removal(file, data_change=True), updated),
        commit(2, removal(updated, data_change=False), output),
    ]
    assert not retired(segments([updated]), commits[:2])

    restored = [*commits, commit(3, removal(output, data_change=True), updated)]
    assert [(s.name, s.status) for s in retired(segments([updated]), restored)] == [
        ("0.1", SegmentStatus.MARKED_FOR_DELETE)
    ]


def test_a_rewritten_segment_counts_once_when_it_is_removed() -> None:
    file = add_file("p", segment="0", sequence=3)
    renewed = add_file("p2", tags=successor_tags(file, row_map="m"), data_change=False)
    output = add_file("q", tags=output_tags("0.1", 3, parents=lineage.of("0")), data_change=False)
    commits = [
        commit(0, file),
        commit(1, removal(file, data_change=False), renewed),
        commit(2, removal(renewed, data_change=False), output),
    ]
    assert not retired(segments([renewed]), commits[:2])
    (gone,) = retired(segments([output]), commits)
    assert (gone.name, gone.status, gone.size_bytes) == ("0", SegmentStatus.COMPACTED, MIB)
    assert gone.sequence == 3


def test_a_segment_that_lost_its_files_one_by_one_has_the_fate_of_the_last_file() -> None:
    files = [add_file(f"p{n}", segment="0") for n in range(2)]
    output = add_file("q", tags=output_tags("1.1", 0, parents=lineage.of("0")), data_change=False)
    commits = [
        commit(0, *files),
        commit(1, removal(files[0], data_change=False), output),
        commit(2, removal(files[1], data_change=True)),
    ]
    assert not retired(segments([files[1], output]), commits[:2])
    (gone,) = retired(segments([output]), commits)
    assert (gone.status, gone.size_bytes) == (SegmentStatus.MARKED_FOR_DELETE, 2 * MIB)


def test_names_of_removed_files_come_from_their_own_tags() -> None:
    tags = {"tandem.segment": "7", "tandem.sequence": "--5"}
    remove = RemoveFile("p", 1, True, extra={"tags": tags})
    assert [(s.name, s.sequence) for s in retired((), [commit(5, remove)])] == [("7", 0)]
