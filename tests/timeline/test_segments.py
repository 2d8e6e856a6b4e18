"""Segments: from the log, their names and marks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.lake.segments import MIB, add_file, segments
from support.present import present
from tandem.delta.actions import AddFile, Commit, RemoveFile, Txn
from tandem.delta.log.files import from_adds
from tandem.delta.stats import MOST_ROWS
from tandem.spec.table import Granularity
from tandem.timeline import lineage
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.file_columns import TAG_CHUNK
from tandem.timeline.lineage import Lineage, format_lineage, parse_lineage
from tandem.timeline.names import (
    HIGH_WATER_APP,
    NameRequest,
    SegmentNumbers,
    derived_name,
    foreign_name,
    foreign_names,
    levels_of,
    name_files,
    output_names,
    parse_name,
)
from tandem.timeline.segments import (
    TAG_PARENTS,
    TAG_SEGMENT,
    TAG_SEQUENCE,
    TAG_TYPE,
    SegmentStatus,
    output_tags,
    read_live_tags,
    retired,
    sequence_of,
    successor_tags,
)

# Segments as a function of live files, and of the past from commits and lineage.


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


# Names, numbers and lineage (S25, Z16).


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


# Names of all files at once are those of `names`, one by one.


TAGS_COLUMNS = (
    st.none() | st.text(max_size=8) | st.from_regex(r"\A(f-[0-9a-f]{12}|\d{1,3}(\.\d{1,2})?)\n?\Z")
)
PATHS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.lists(PATHS))
def test_foreign_names(paths: list[str]) -> None:
    assert foreign_names(pa.array(paths, pa.string())).to_pylist() == list(map(foreign_name, paths))


@given(st.lists(TAGS_COLUMNS))
def test_levels(texts: list[str | None]) -> None:
    parsed = [parse_name(text) if text is not None else None for text in texts]
    levels = [name.level if name is not None else -1 for name in parsed]
    assert levels_of(pa.array(texts, pa.string())).tolist() == levels


@given(st.lists(st.tuples(TAGS_COLUMNS, PATHS)))
def test_files_have_the_names_in_their_tags_or_those_of_their_paths(
    files: list[tuple[str | None, str]],
) -> None:
    tags, paths = (pa.array([each[at] for each in files], pa.string()) for at in (0, 1))

    codes, names, levels = name_files(tags, paths)

    parsed = [parse_name(tag) if tag is not None else None for tag, _ in files]
    found = names.take(codes).to_pylist()
    assert found == [names[code] for code in codes.tolist()]
    assert found == [
        name.text if name is not None else foreign_name(path)
        for name, (_, path) in zip(parsed, files, strict=True)
    ]
    assert levels.tolist() == [name.level if name is not None else 0 for name in parsed]
    # Of some codes, in another order; and by name.
    last = codes[::-2]
    ordered = names.ordered(last)
    assert ordered.take(np.arange(len(last))).to_pylist() == found[::-2]
    for wanted in (set(found[:1]), set(found[-2:]), {"f-0123456789ab", "7"}):
        assert ordered.among(wanted).tolist() == [name in wanted for name in found[::-2]]


# Names and order by column, against the segments themselves.


NAMES = st.sampled_from(["0", "0.1", "17.2", "f-0123456789ab", "x", "", "007", "-1", "9" * 20])
SEQUENCES = st.sampled_from(["5", "-7", "123456789012345", "1234567890123456", "x", "", "5\n"])
PARENTS = st.sampled_from(["0-3", "f-0123456789ab,5.1", "x", "", "3-1", "4,+2"])

TAGS_MARKS = {TAG_SEGMENT: NAMES, TAG_SEQUENCE: SEQUENCES, TAG_PARENTS: PARENTS}


@st.composite
def working_sets(draw: st.DrawFn) -> list[AddFile]:
    adds = []
    for number in range(draw(st.integers(0, 6))):
        tags = {}
        for key, values in (
            (TAG_SEGMENT, NAMES),
            (TAG_SEQUENCE, SEQUENCES),
            (TAG_PARENTS, PARENTS),
        ):
            if draw(st.booleans()):
                tags[key] = draw(values)
        adds.append(add_file(f"{number}", tags=tags, sequence=draw(st.integers(0, 20))))
    return adds


@given(working_sets(), st.sets(st.sampled_from(["0", "1", "2"])))
def test_columns_agree_with_the_segments(adds: list[AddFile], without: set[str]) -> None:
    left = [add for add in adds if add.logged_path not in without]
    live = segments(left)
    tags = read_live_tags(from_adds(adds), without=without)

    tagged = {add.tags.get(TAG_SEGMENT, "") for add in left}
    assert tags.names == {name for name in tagged if name and parse_name(name) is not None}
    assert tags.names <= {segment.name for segment in live}
    assert tags.newest == max((sequence_of(add) for add in left), default=None)
    by_segment = {name for segment in live for name in segment.parents.mentioned()}
    assert by_segment <= tags.mentioned


def test_lineage_guards_its_numbers() -> None:
    tags = output_tags("17.1", 5, parents=lineage.of(["f-" + "0" * 12, "18", "19"]))
    assert read_live_tags(from_adds([add_file("a", tags=tags)])).mentioned == {
        "17.1",
        "19",
        "f-" + "0" * 12,
    }


@pytest.mark.parametrize(("now_ms", "expected"), [(500, 1003), (5000, 5000)])
def test_a_new_sequence_is_after_every_live_one_when_clocks_disagree(
    now_ms: int, expected: int
) -> None:
    files = from_adds([add_file(f"{n}", sequence=1000 + n) for n in range(3)])
    assert read_live_tags(files).next_sequence(now_ms) == expected


def test_the_first_sequence_is_the_time() -> None:
    assert read_live_tags(from_adds([])).next_sequence(7) == 7
