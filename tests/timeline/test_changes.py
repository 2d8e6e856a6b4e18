"""The algebra of versions: the Druid analysis' scenarios D48 to D54, a model of single moments,
and the logs of real tables."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from support.lake.vectors import encode_inline
from support.present import present
from tandem.delta.actions import Action, CommitInfo, RemoveFile
from tandem.delta.log.delta_log import DeltaLog
from tandem.intervals import IntervalSet, TimeInterval
from tandem.spec.table import Granularity
from tandem.storage.local import LocalStore
from tandem.timeline.chunks import TAG_MASKED, TimeColumn, format_masked, parse_masked
from tandem.timeline.working_set import (
    ChangeSet,
    LiveFile,
    Mask,
    WorkingSet,
    apply,
    change_of,
    commutes,
    depends,
    garbage,
    live_files,
    replay,
)

DAY = IntervalSet([TimeInterval(0, 24)])
FILE = LiveFile(DAY)

ONE = ChangeSet(1, {"s1": FILE})
REPLACE = ChangeSet(2, {"sr": FILE}, frozenset({"s1"}))
INGEST = ChangeSet(3, {"sj": FILE})


def moments(start: int, end: int) -> Mask:
    return Mask(IntervalSet([TimeInterval(start, end)]))


def sets(*changes: ChangeSet) -> list[set[str]]:
    """The names of each working set."""
    return [set(live) for _, live in replay(changes)]


def test_D48_replacement_first_and_finishes_first() -> None:
    assert sets(ONE, REPLACE, INGEST) == [{"s1"}, {"sr"}, {"sr", "sj"}]


def test_D49_replacement_first_and_ingest_finishes_first() -> None:
    assert sets(ONE, INGEST, REPLACE) == [{"s1"}, {"s1", "sj"}, {"sr", "sj"}]
    assert commutes(INGEST, REPLACE)
    assert not depends(REPLACE, INGEST)
    assert depends(REPLACE, ONE)


@pytest.mark.parametrize(
    ("failed", "final"), [("replacement", {"s1", "sj"}), ("ingest", {"sr"}), ("both", {"s1"})]
)
def test_D50_either_fails_and_what_was_between_is_final(failed: str, final: set[str]) -> None:
    done = [
        change
        for change, name in [(REPLACE, "replacement"), (INGEST, "ingest")]
        if failed not in (name, "both")
    ]
    for order in permutations(done):
        assert sets(ONE, *order)[-1] == final
    assert garbage([ONE, *done], [1 + len(done) + 1]) == {"s1"} - final


def test_D51_ingest_starts_first() -> None:
    """The labels are swapped: the ingest is version 2, and the replacement 3."""
    ingest, replacement = replace(INGEST, version=2), replace(REPLACE, version=3)
    finals = [sets(ONE, *order)[-1] for order in permutations([ingest, replacement])]
    assert finals == [{"sr", "sj"}] * 2


def test_D52_one_segment_is_rewritten_and_its_sibling_stays() -> None:
    both = ChangeSet(1, {"s1": FILE, "s2": FILE})
    rewrite = ChangeSet(2, {"s1'": FILE}, frozenset({"s1"}))
    assert sets(both, rewrite) == [{"s1", "s2"}, {"s1'", "s2"}]
    assert garbage([both, rewrite], [2]) == {"s1"}
    assert garbage([both, rewrite], [1, 2]) == set()


def test_D53_two_masks_combine_and_the_file_leaves_the_working_set() -> None:
    first = ChangeSet(2, masks={"s1": moments(0, 10)})
    second = ChangeSet(3, masks={"s1": moments(8, 24)})
    for order in permutations([first, second]):
        (_, begun), (_, half), (_, end) = replay([ONE, *order])
        assert begun["s1"].visible == DAY
        assert half["s1"].visible == DAY - order[0].masks["s1"].intervals
        assert end == {}
    by_rows = LiveFile(rows=5)
    mask = ChangeSet(2, masks={"s1": Mask(rows=3)})
    half = apply({"s1": by_rows}, mask)
    assert half["s1"].visible == by_rows.covers
    assert apply(half, replace(mask, masks={"s1": Mask(rows=2)})) == {}


def test_D58_two_masks_leave_three_pieces() -> None:
    first = ChangeSet(2, masks={"s1": moments(6, 8)})
    second = ChangeSet(3, masks={"s1": moments(12, 15)})
    *_, (_, live) = replay([ONE, first, second])
    assert [(each.start_ms, each.end_ms) for each in live["s1"].visible] == [
        (0, 6),
        (8, 12),
        (15, 24),
    ]


def test_I3_no_file_is_changed_in_two_ways_by_one_version() -> None:
    with pytest.raises(ValueError, match="version 7"):
        ChangeSet(7, {"a": FILE}, frozenset({"a"}))
    with pytest.raises(ValueError, match="version 7"):
        ChangeSet(7, {"a": FILE}, masks={"a": moments(1, 2)})
    with pytest.raises(ValueError, match="version 7"):
        ChangeSet(7, removes=frozenset({"a"}), masks={"a": moments(1, 2)})


NAMES = st.sampled_from("abcdef")
PIECES = st.lists(st.builds(TimeInterval, st.integers(0, 12), st.integers(0, 12)), max_size=3)
SOME = PIECES.map(IntervalSet).filter(bool)


@st.composite
def change_sets(draw: st.DrawFn) -> ChangeSet:
    concerned = draw(st.lists(NAMES, unique=True, max_size=4))
    adds: dict[str, LiveFile] = {}
    masks: dict[str, Mask] = {}
    removes: set[str] = set()
    for name in concerned:
        how = draw(st.sampled_from(["add", "remove", "mask", "mask"]))
        if how == "add":
            adds[name] = LiveFile(draw(SOME))
        elif how == "mask":
            masks[name] = Mask(draw(SOME))
        else:
            removes.add(name)
    return ChangeSet(0, adds, frozenset(removes), masks)


def numbered(changes: list[ChangeSet]) -> list[ChangeSet]:
    return [replace(change, version=n) for n, change in enumerate(changes, 1)]


HISTORIES = st.lists(change_sets(), max_size=10).map(numbered)


def ticks(intervals: IntervalSet) -> set[int]:
    return {at for each in intervals for at in range(each.start_ms, each.end_ms)}


def stored(changes: list[ChangeSet]) -> Iterator[dict[str, set[int]]]:
    """The visible moments of each file, as a store would keep them for each version."""
    live: dict[str, set[int]] = {}
    for change in changes:
        live = {name: set(seen) for name, seen in live.items() if name not in change.removes}
        live |= {name: ticks(file.covers) for name, file in change.adds.items()}
        for name, mask in change.masks.items():
            if name in live:
                live[name] -= ticks(mask.intervals)
        live = {name: seen for name, seen in live.items() if seen}
        yield live


def visible(live: WorkingSet) -> dict[str, set[int]]:
    return {name: ticks(file.visible) for name, file in live.items()}


@given(HISTORIES)
def test_D54_replay_of_the_log_equals_the_stored_working_set(changes: list[ChangeSet]) -> None:
    kept = list(stored(changes))
    assert [visible(live) for _, live in replay(changes)] == kept
    # Also from the middle, where the first version is a whole old working set (D55).
    middle = len(changes) // 2
    found = [live for _, live in replay(changes[:middle])]
    start = found[-1] if found else {}
    assert [visible(live) for _, live in replay(changes[middle:], start)] == kept[middle:]


@given(HISTORIES, change_sets(), change_sets())
def test_I4_two_versions_without_a_common_file_commute(
    before: list[ChangeSet], a: ChangeSet, b: ChangeSet
) -> None:
    live = [{}, *(found for _, found in replay(before))][-1]
    if commutes(a, b):
        assert apply(apply(live, a), b) == apply(apply(live, b), a)
        assert not depends(a, b)
    assert commutes(a, b) == commutes(b, a)
    assert depends(b, a) == any(name in b.files for name in a.adds)


@given(HISTORIES, st.data())
def test_garbage_is_what_no_retained_version_shows(
    changes: list[ChangeSet], data: st.DataObject
) -> None:
    retained = data.draw(st.sets(st.integers(0, len(changes) + 2)))
    kept = [{}, *stored(changes)]
    shown = set().union(*(kept[min(version, len(changes))] for version in retained), set())
    added = set().union(*(change.adds for change in changes), set())
    assert garbage(changes, retained) == added - shown


def test_masks_as_tags() -> None:
    hidden = IntervalSet([TimeInterval(0, 3_600_000), TimeInterval(7_200_000, 7_200_001)])
    tag = format_masked(hidden, 120)
    assert tag == (
        "120 1970-01-01T00:00:00Z/1970-01-01T01:00:00Z,"
        "1970-01-01T02:00:00Z/1970-01-01T02:00:00.001Z"
    )
    assert parse_masked(tag, 120) == parse_masked(tag, 500) == hidden
    # Rows were restored: which ones is not known.
    assert parse_masked(tag, 119) == IntervalSet()
    for nonsense in ("", "120", "0 all", "x 1/2", "-1 1970-01-01/1970-01-02", "5 a/b,,"):
        assert parse_masked(nonsense, 1 << 40) == IntervalSet()


# Real tables.


class Table:
    """A table of `deltalake`, of which we read the log."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder)
        self.log = DeltaLog(LocalStore(self.path))
        self.loads = 0

    def load(self, mode: str = "append") -> None:
        day = f"2013-03-{self.loads % 28 + 1:02}T"
        rows = pa.table({
            "id": pa.array(range(self.loads * 10, self.loads * 10 + 10), pa.int64()),
            "t": pa.array([f"{day}{hour:02}:00:00Z" for hour in range(10)]).cast(
                pa.timestamp("us", "UTC")
            ),
        })  # fmt: skip
        properties = {"delta.enableDeletionVectors": "true"}
        write_deltalake(self.path, rows, mode=mode, configuration=properties)  # type: ignore[call-overload]
        self.loads += 1

    def mask(self, path: str, dead: set[int], tags: Mapping[str, str] | None = None) -> None:
        """Delete rows of a file by its positions, in addition to those that are deleted; with no
        more of them than before, rows come back."""
        snapshot = self.log.snapshot()
        add = present(snapshot.file(path))
        vector = encode_inline(BitMap64(dead))
        gone = RemoveFile(path, 0, True, add.deletion_vector, size=add.size)
        new = replace(
            add, deletion_vector=vector, data_change=True, tags={**add.tags, **(tags or {})}
        )
        actions: list[Action] = [CommitInfo({"operation": "DELETE"}), gone, new]
        self.log.put_commit(snapshot.version + 1, actions, token=f"{snapshot.version}")

    def changes(self, time: TimeColumn | None = None) -> list[ChangeSet]:
        first, last = self.log.versions()
        return [change_of(commit, time) for commit in self.log.commits(first, last)]

    def rows(self, version: int) -> int:
        return int(pa.table(DeltaTable(self.path, version=version).scan()).num_rows)


@pytest.mark.parametrize("seed", range(3))
def test_D54_and_garbage_on_a_real_table(tmp_path: Path, seed: int) -> None:
    """Every version as `deltalake` and its own snapshot show it, whatever was done to the table;
    what no version needs is what `vacuum` would delete."""
    luck = random.Random(seed)
    table = Table(tmp_path)
    table.load()
    for _ in range(12):
        theirs = DeltaTable(table.path)
        act = luck.choice(["load", "load", "delete", "mask", "mask", "compact", "restore", "over"])
        paths = sorted(add.logged_path for add in table.log.snapshot().adds())
        if act == "delete":
            theirs.delete(f"id % 7 = {luck.randrange(7)}")
        elif act == "mask" and paths:
            path = luck.choice(paths)
            dead = set(luck.sample(range(10), luck.randint(1, 9)))
            file = present(table.log.snapshot().file(path))
            if file.stats is not None and '"numRecords":10' in file.stats:
                table.mask(path, dead)
        elif act == "compact":
            theirs.optimize.compact()
        elif act == "restore" and theirs.version():
            theirs.restore(luck.randrange(theirs.version()))
        else:
            table.load("overwrite" if act == "over" else "append")

    changes = table.changes()
    assert len(changes) == DeltaTable(table.path).version() + 1
    for change, live in replay(changes):
        snapshot = table.log.snapshot(change.version)
        assert live == live_files(snapshot.files)
        uris = DeltaTable(table.path, version=change.version).file_uris()
        assert set(live) == {uri.rsplit("/", 1)[-1] for uri in uris}
        left = [file.rows - file.masked.rows for file in live.values() if file.rows is not None]
        assert len(left) == len(live)
        assert sum(left) == table.rows(change.version)

    last = len(changes) - 1
    unneeded = DeltaTable(table.path).vacuum(0, dry_run=True, enforce_retention_duration=False)
    assert garbage(changes, [last]) == {path for path in unneeded if path.endswith(".parquet")}
    assert garbage(changes, range(last + 1)) == set()


def test_a_mask_of_a_real_file_by_interval(tmp_path: Path) -> None:
    """D53 and D58 on a table: the hint in the tag gives the pieces, the vector decides."""
    time = TimeColumn(("t",), Granularity.DAY)
    table = Table(tmp_path)
    table.load()
    (path,) = (add.logged_path for add in table.log.snapshot().adds())
    hour = 3_600_000
    begin = live_files(table.log.snapshot().files, time)[path].covers.pieces[0].start_ms
    hidden = IntervalSet([TimeInterval(begin + 2 * hour, begin + 5 * hour)])
    table.mask(path, {2, 3, 4}, {TAG_MASKED: format_masked(hidden, 3)})
    more = hidden | IntervalSet([TimeInterval(begin + 8 * hour, begin + 9 * hour)])
    table.mask(path, {2, 3, 4, 8}, {TAG_MASKED: format_masked(more, 4)})
    table.mask(path, {1, 2}, {})  # as a restore of a smaller vector
    table.mask(path, set(range(10)), {})

    first, *masked, restored, gone = table.changes(time)

    assert [(set(c.adds), set(c.masks)) for c in masked] == [(set(), {path})] * 2
    assert [c.masks[path].rows for c in masked] == [3, 1]
    *_, (_, live) = replay([first, *masked])
    assert live[path].visible == first.adds[path].covers - more
    assert set(restored.adds) == {path}
    assert apply(live, restored)[path].visible == first.adds[path].covers
    assert not commutes(masked[0], masked[1])
    assert depends(masked[0], first)
    assert apply(apply(live, restored), gone) == {}
    assert table.rows(4) == 0
