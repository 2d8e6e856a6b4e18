"""`tandem timeline`: the pictures of the Druid analysis, of tables that others and we wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64

from cli.invoke import Tandem
from support.foreign.tables import TABLES
from support.lake.vectors import encode_inline
from tandem.cli.timeline import MOST_LINES, draw
from tandem.cli.timeline_model import Picture, PieceState, SegmentLine, SegmentPiece, short
from tandem.delta.actions import Action, CommitInfo, RemoveFile
from tandem.delta.log.delta_log import DeltaLog
from tandem.intervals import ALWAYS, IntervalSet, TimeInterval
from tandem.storage.local import LocalStore
from tandem.timeline.chunks import TAG_MASKED, format_masked
from tandem.timeline.segments import TAG_SEGMENT

HOUR, DAY = 3_600_000, 86_400_000
MARCH = round(datetime(2013, 3, 1, tzinfo=UTC).timestamp() * 1000)


def days(first: int, end: int) -> TimeInterval:
    """From a day of March to another, which is not included."""
    return TimeInterval(MARCH + (first - 1) * DAY, MARCH + (end - 1) * DAY)


class Visits:
    """A table with three rows a day, at 1, 12 and 23 hours, of several engines."""

    def __init__(self, folder: Path) -> None:
        self.path = folder

    def load(self, *of: int, mode: str = "append", **options: Any) -> None:
        times = [f"2013-03-{day:02}T{hour:02}:00:00Z" for day in of for hour in (1, 12, 23)]
        rows = pa.table({
            "id": pa.array(range(len(times)), pa.int64()),
            "at": pa.array(times, pa.string()).cast(pa.timestamp("us", "UTC")),
            "day": pa.array([time[:10] for time in times], pa.string()).cast(pa.date32()),
        })  # fmt: skip
        properties = {"delta.enableDeletionVectors": "true"}
        write_deltalake(self.path, rows, mode=mode, configuration=properties, **options)  # type: ignore[call-overload]

    def change(self, dead: set[int], masked: IntervalSet | None = None, *, name: str = "") -> None:
        """Delete rows of the only file, by position; note what that masks, or name its segment."""
        log = DeltaLog(LocalStore(str(self.path)))
        snapshot = log.snapshot()
        (add,) = snapshot.adds()
        tags = {TAG_SEGMENT: name} if name else {}
        if masked is not None:
            tags[TAG_MASKED] = format_masked(masked, len(dead))
        vector = encode_inline(BitMap64(dead)) if dead else None
        new = replace(add, deletion_vector=vector, tags={**add.tags, **tags})
        gone = RemoveFile(add.logged_path, 0, True, add.deletion_vector)
        actions: list[Action] = [CommitInfo({"operation": "DELETE"}), gone, new]
        log.put_commit(snapshot.version + 1, actions, token=f"{snapshot.version}")


@pytest.fixture
def visits(tmp_path: Path) -> Visits:
    return Visits(tmp_path / "visits")


def picture(text: str) -> list[str]:
    """The lines of a picture without the names of segments."""
    return [
        line[: line.index(" f-")].rstrip() if " f-" in line else line for line in text.splitlines()
    ]


BY_TIME = ("--time-column", "at")


def test_D27_D28_loads_a_compaction_and_holes_as_the_seed_draws_them(
    tandem: Tandem, visits: Visits
) -> None:
    visits.load(2)
    visits.load(3)
    DeltaTable(visits.path).optimize.compact()
    visits.load(5)

    found = tandem("timeline", visits.path, *BY_TIME)

    assert picture(found.stdout) == [
        "                                 |----------|",
        "|---------------------|",
        "           |xxxxxxxxxx|",
        "|xxxxxxxxxx|",
        "|..........|..........|          |..........|",
        "2013-03-02 2013-03-03 2013-03-04 2013-03-05",
        "Holes: 2013-03-04",
    ]
    ends = [line[line.index("(") :] for line in found.stdout.splitlines() if "(" in line]
    assert ends == ["(v3)", "(v2)", "(v1 to v2)", "(v0 to v2)"]
    assert found.stderr == (
        "Version 3: 2 live segments, 2 that the last 4 commits removed. "
        "- visible, x hidden, n masked\n"
    )


def test_a_window_in_a_hole_shows_the_hole(tandem: Tandem, visits: Visits) -> None:
    visits.load(2)
    visits.load(5)
    found = tandem("timeline", visits.path, *BY_TIME, "--from", "2013-03-03", "--to", "2013-03-05")
    assert found.stdout == "Holes: 2013-03-03/2013-03-05\n"
    assert found.stderr.startswith("Version 1: 0 live segments.")


def test_the_same_as_data(tandem: Tandem, visits: Visits) -> None:
    visits.load(2)
    visits.load(4, 5)
    found = json.loads(tandem("timeline", visits.path, *BY_TIME, "-o", "json").stdout)
    (new, old) = found.pop("segments")
    assert found == {"version": 1, "granularity": "Day", "holes": [str(days(3, 4))]}
    assert new["pieces"] == [{"interval": str(days(4, 6)), "state": "visible", "files": 1}]
    assert (new["addedIn"], new["removedIn"], old["addedIn"]) == (1, None, 0)
    yaml = tandem("timeline", visits.path, *BY_TIME, "-o", "yaml", "--version", "0").stdout
    assert "version: 0\n" in yaml
    assert yaml.count("name: f-") == 1


def test_D42_D58_masks_within_a_file_are_drawn_at_their_own_grain(
    tandem: Tandem, visits: Visits
) -> None:
    visits.load(3)
    start = days(3, 4).start_ms
    noon = IntervalSet([TimeInterval(start + 12 * HOUR, start + 20 * HOUR)])
    visits.change({1}, noon)

    assert picture(tandem("timeline", visits.path, *BY_TIME).stdout) == [
        "|-----------------|nnnnnnnnnnnnnnnnn|-----------------|",
        "|.................|                 |.................|",
        "2013-03-03        2013-03-03T12:00Z 2013-03-03T20:00Z",
        "Holes: 2013-03-03T12:00Z/2013-03-03T20:00Z",
    ]
    shown = json.loads(tandem("timeline", visits.path, *BY_TIME, "-o", "json").stdout)
    (segment,) = shown["segments"]
    assert [piece["state"] for piece in segment["pieces"]] == ["visible", "masked", "visible"]
    name = segment["name"]
    changes = tandem("timeline", visits.path, *BY_TIME, "--changes").stdout.splitlines()
    assert changes == [
        f"v1: (-{name}[2013-03-03T12:00Z/2013-03-03T20:00Z)) [{name}]",
        f"v0: (+{name}) [{name}]",
    ]
    # Without a time column there is one chunk, and the hint, about times, divides it in no way.
    assert picture(tandem("timeline", visits.path).stdout) == ["|---|", "|...|", "all"]
    # The hint is for so many deleted rows; with fewer it says nothing.
    visits.change(set())
    assert "n" not in picture(tandem("timeline", visits.path, *BY_TIME).stdout)[0]
    restored = tandem("timeline", visits.path, *BY_TIME, "--changes").stdout.splitlines()
    assert restored[0] == f"v2: (+{name}[1 row]) [{name}]"
    # All rows are deleted: it is not in the working set.
    visits.change({0, 1, 2})
    assert picture(tandem("timeline", visits.path, *BY_TIME).stdout)[0] == "|nnnnnnnnnn|"
    gone = tandem("timeline", visits.path, *BY_TIME, "--changes").stdout.splitlines()
    assert gone[0] == f"v3: (-{name}) []"


def test_deletion_vectors_and_parts_of_segments_in_the_notation(
    tandem: Tandem, visits: Visits
) -> None:
    visits.load(3)
    visits.change(set(), name="7")
    visits.change({0})
    DeltaTable(visits.path).restore(0)
    visits.load(5)
    foreign = tandem("timeline", visits.path, "--changes").stdout.splitlines()[-1].split()[-1][1:-1]
    lines = tandem("timeline", visits.path, "--changes").stdout.splitlines()
    assert lines[1:] == [
        f"v3: (-7 +{foreign}) [{foreign}]",
        "v2: (-7[1 row]) [7]",
        f"v1: (-{foreign} +7) [7]",
        f"v0: (+{foreign}) [{foreign}]",
    ]


def test_a_part_of_a_segment_in_the_notation(tandem: Tandem, visits: Visits) -> None:
    """Three files of one segment, of which two are rewritten by another writer."""
    visits.load(2, 3, 4, partition_by=["day"])
    log = DeltaLog(LocalStore(str(visits.path)))
    named = [replace(add, tags={TAG_SEGMENT: "0"}) for add in log.snapshot().adds()]
    log.put_commit(1, [CommitInfo({"operation": "WRITE"}), *named], token="named")
    DeltaTable(visits.path).delete("at >= '2013-03-03T12:00:00Z'")

    newest, *_ = tandem("timeline", visits.path, "--changes").stdout.splitlines()
    found = json.loads(tandem("timeline", visits.path, "--changes", "-o", "json").stdout)[0]

    assert newest.startswith("v2: (-0[2 of 3 files] +f-")
    by_name = {each["segment"]: each for each in found["changes"]}
    assert (by_name["0"]["filesBefore"], by_name["0"]["filesRemoved"]) == (3, 2)
    drawn = tandem("timeline", visits.path, "--time-column", "day").stdout.splitlines()
    assert "|----------|xxxxxxxxxx|xxxxxxxxxx| 0 (v0)" in drawn


def test_D48_to_D52_versions_in_the_notation_of_the_seed(tandem: Tandem, visits: Visits) -> None:
    visits.load(2)
    visits.load(3)
    visits.load(4, mode="overwrite")

    names = [
        segment["name"]
        for segment in reversed(
            json.loads(tandem("timeline", visits.path, "-o", "json").stdout)["segments"]
        )
    ]
    s1, s2, sr = names
    assert tandem("timeline", visits.path, "--changes").stdout.splitlines() == [
        f"v2: (-{s1} -{s2} +{sr}) [{sr}]",
        f"v1: (+{s2}) [{s1}, {s2}]",
        f"v0: (+{s1}) [{s1}]",
    ]
    window = tandem("timeline", visits.path, *BY_TIME, "--changes", "--to", "2013-03-03").stdout
    assert window.splitlines() == [f"v2: (-{s1}) []", f"v1: () [{s1}]", f"v0: (+{s1}) [{s1}]"]
    recent = tandem("timeline", visits.path, "--changes", "--limit", "1").stdout.splitlines()
    assert recent == [f"v2: (-{s1} -{s2} +{sr}) [{sr}]"]
    older = tandem("timeline", visits.path, "--changes", "--version", "0").stdout.splitlines()
    assert older == [f"v0: (+{s1}) [{s1}]"]


def test_D55_the_oldest_version_left_is_a_whole_working_set(tandem: Tandem, visits: Visits) -> None:
    for day in (2, 3, 4):
        visits.load(day)
    DeltaTable(visits.path).create_checkpoint()
    visits.load(5)
    for version in range(3):
        (visits.path / "_delta_log" / f"{version:020}.json").unlink()

    lines = tandem("timeline", visits.path, "--changes").stdout.splitlines()

    assert [line.split(" ")[0] for line in lines] == ["v3:", "v2:"]
    assert lines[0].startswith("v3: (+f-")
    assert lines[1].startswith("v2: [f-")
    assert lines[1].count("f-") == 3
    data = json.loads(tandem("timeline", visits.path, "--changes", "-o", "json").stdout)
    assert data[-1]["changes"] is None
    drawn = tandem("timeline", visits.path, *BY_TIME)
    assert drawn.stdout.count("(v") == 1
    assert len(drawn.stdout.splitlines()) == 6
    # Nothing is left but the checkpoint.
    alone = tandem("timeline", visits.path, "--changes", "--version", "2").stdout.splitlines()
    assert alone == lines[1:]


def test_a_window_of_time(tandem: Tandem, visits: Visits) -> None:
    visits.load(2, 3, 4)
    visits.load(7)
    found = tandem("timeline", visits.path, *BY_TIME, "--from", "2013-03-03", "--to", "2013-03-06")
    assert picture(found.stdout) == [
        "|----------|",
        "|..........|          |",
        "2013-03-03 2013-03-05",
        "Holes: 2013-03-05",
    ]
    assert found.stdout.count("f-") == 1
    nothing = tandem("timeline", visits.path, *BY_TIME, "--from", "2014")
    assert nothing.stdout == ""
    assert "0 live segments" in nothing.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--from", "yesterday"), "not a date or a time"),
        (("--from", "2013-03", "--to", "2013-03-01"), "the interval is empty"),
        (("--time-column", "id"), "the table has no such time column"),
        (("--time-column", ""), "the table has no such time column"),
        (("--granularity", "Day"), "a granularity without a time column"),
        (("--time-column", "at", "--granularity", "Fortnight"), "'Fortnight' is not one of"),
        (("--version", "9"), "there is no version 9"),
    ],
)
def test_options_that_are_wrong(
    tandem: Tandem, visits: Visits, options: tuple[str, ...], words: str
) -> None:
    visits.load(2)
    found = tandem("timeline", visits.path, *options)
    assert found.exit_code in (1, 2)
    assert words in found.stderr
    assert found.stdout == ""


def test_the_time_column_of_an_adoption(tandem: Tandem, visits: Visits, tmp_path: Path) -> None:
    visits.load(2, 3)
    visits.load(3)
    file = tmp_path / "table.yaml"
    file.write_text(
        "apiVersion: tandem.dev/v1alpha1\nkind: LakeTable\nmetadata: {name: visits}\n"
        f"spec: {{location: '{visits.path.as_uri()}', time: {{column: at, granularity: Month}}}}\n"
    )
    lake = ("timeline", "visits", "-f", file)
    assert picture(tandem(*lake).stdout)[-2:] == ["|.......|", "2013-03"]
    by_day = picture(tandem(*lake, "--granularity", "day").stdout)
    assert by_day[-1].split() == ["2013-03-02", "2013-03-03"]
    assert picture(tandem(*lake, "--time-column", "day").stdout) == by_day


def test_a_partitioned_table(tandem: Tandem, visits: Visits) -> None:
    visits.load(2, 3, partition_by=["day"])
    by_partition = tandem("timeline", visits.path, "--time-column", "day")
    *bars, cells, labels = picture(by_partition.stdout)
    assert sorted(bars) == ["           |----------|", "|----------|"]
    assert (cells, labels) == ("|..........|..........|", "2013-03-02 2013-03-03")
    assert picture(tandem("timeline", visits.path).stdout) == ["|---|", "|---|", "|...|", "all"]


def test_an_empty_table(tandem: Tandem, tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"at": pa.array([], pa.timestamp("us", "UTC"))}))
    for options in ((), BY_TIME):
        found = tandem("timeline", tmp_path, *options)
        assert (found.exit_code, found.stdout) == (0, "")
        assert "0 live segments" in found.stderr
    assert tandem("timeline", tmp_path, "--changes").stdout == "v0: () []\n"


def test_rows_without_a_time_are_in_a_column_of_their_own(tandem: Tandem, visits: Visits) -> None:
    visits.load(2)
    none = pa.table({
        "id": pa.array([1], pa.int64()),
        "at": pa.array([None], pa.timestamp("us", "UTC")),
        "day": pa.array([None], pa.date32()),
    })  # fmt: skip
    write_deltalake(visits.path, none, mode="append")
    assert picture(tandem("timeline", visits.path, *BY_TIME).stdout) == [
        "           |----------|",
        "|----------|",
        "|..........|..........|",
        "2013-03-02 ?",
    ]
    found = json.loads(tandem("timeline", visits.path, *BY_TIME, "-o", "json").stdout)
    assert found["segments"][0]["pieces"][0]["interval"] is None
    write_deltalake(visits.path, none, mode="overwrite")
    alone = tandem("timeline", visits.path, *BY_TIME, "--limit", "1", "--from", "2014").stdout
    assert picture(alone)[-1] == "?"
    every = tandem("timeline", visits.path, *BY_TIME, "--granularity", "All", "-o", "json").stdout
    assert json.loads(every)["segments"][0]["pieces"][0]["interval"] == "all"


def test_a_time_column_that_was_renamed(tandem: Tandem, visits: Visits) -> None:
    """Files keep the physical name under column mapping."""
    visits.load(2)
    visits.load(3)
    before = tandem("timeline", visits.path, *BY_TIME).stdout
    log = DeltaLog(LocalStore(str(visits.path)))
    snapshot = log.snapshot()
    schema = json.loads(snapshot.metadata.schema_string)
    for number, field in enumerate(schema["fields"], 1):
        field["metadata"] = {
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": field["name"],
        }
    schema["fields"][1]["name"] = "when"
    mapped = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}
    new = replace(
        snapshot.metadata,
        schema_string=json.dumps(schema),
        configuration={**snapshot.metadata.configuration, **mapped},
    )
    features = snapshot.protocol.reader_features | {"columnMapping"}
    protocol = replace(snapshot.protocol, reader_features=features, writer_features=features)
    log.put_commit(2, [CommitInfo({"operation": "RENAME COLUMN"}), protocol, new], token="rename")

    assert tandem("timeline", visits.path, "--time-column", "when").stdout == before
    assert "no such time column" in tandem("timeline", visits.path, *BY_TIME).stderr


@pytest.mark.parametrize("name", ["plain", "mapped by name", "mapped by id", "without files"])
def test_tables_of_other_writers(tandem: Tandem, tmp_path: Path, name: str) -> None:
    TABLES[name].make(tmp_path)
    found = tandem("timeline", tmp_path)
    assert found.exit_code == 0, found.stderr
    assert tandem("timeline", tmp_path, "--changes").exit_code == 0


def line(name: str, *pieces: tuple[TimeInterval, PieceState]) -> SegmentLine:
    return SegmentLine(name, tuple(SegmentPiece(*piece) for piece in pieces))


def drawn(shown: Picture, width: int) -> list[str]:
    return draw(shown, width, short)


def test_D41_a_day_that_24_hours_replace_is_hidden_below_them() -> None:
    day = days(3, 4)
    hours = [
        TimeInterval(day.start_ms + at * HOUR, day.start_ms + (at + 1) * HOUR) for at in range(24)
    ]
    new = line("sr", *((each, PieceState.VISIBLE) for each in hours))
    shown = Picture((new, line("s1", (day, PieceState.HIDDEN))), ())
    above, below, *_ = drawn(shown, 80)
    assert above == f"|{'--|' * 24} sr"
    assert below == f"|{'x' * 71}| s1"


def test_many_chunks_share_columns_and_every_state_stays_visible() -> None:
    many = tuple(line(f"{n}", (days(n, n + 1), PieceState.VISIBLE)) for n in range(2, MOST_LINES))
    wide = line("w", (days(1, 1_000), PieceState.HIDDEN))
    masked = line("m", (days(500, 501), PieceState.MASKED))
    found = drawn(Picture((masked, wide, *many), ()), 60)
    assert len(found) == MOST_LINES + 2
    assert max(map(len, found)) <= 60 + 10
    assert found[0].count("n") == 1
    assert all("-" in each for each in found[2:MOST_LINES])


def test_of_many_segments_the_newest_are_drawn_and_their_time() -> None:
    lines = tuple(
        line(f"{n}", (days(n, n + 1), PieceState.VISIBLE)) for n in range(2 * MOST_LINES, 0, -1)
    )
    found = drawn(Picture(lines, (days(3, 4), days(MOST_LINES + 5, MOST_LINES + 6))), 300)
    assert len(found) == MOST_LINES + 2
    assert found[-1].startswith("2013-04-10")
    # Day 45 is a hole; day 3 is before the first that is drawn.
    assert found[-2].count(" ") == found[-2].split("|")[1].count(".")


def test_a_narrow_terminal_still_draws() -> None:
    shown = Picture(
        (line("0.1", (days(1, 2), PieceState.VISIBLE), (ALWAYS, PieceState.MASKED)),), ()
    )
    assert drawn(shown, 5) == ["|--|nn| 0.1", "|..|..|", "2013-03-01/2013-03-02"]


def test_intervals_in_short() -> None:
    assert short(days(2, 5)) == "2013-03-02/2013-03-05"
    start = days(2, 3).start_ms
    assert short(TimeInterval(start + 90_000, start + HOUR)) == (
        "2013-03-02T00:01:30Z/2013-03-02T01:00Z"
    )
    assert short(ALWAYS) == "all"
