"""Chunks that are due, also of an indexed table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planning.automatic import FLIGHTS, HOUR, MINUTE, NIGHTLY, NOON, created, ended, policy, since
from support.lake.segments import MIB, add_file
from support.some import few
from tandem.delta.actions import AddFile
from tandem.delta.log import files as files_
from tandem.planning.auto.decide import decide
from tandem.planning.auto.facts import ChildCompaction, ChildState, chunks_in
from tandem.planning.auto.indexed_table import IndexedTable, TableFacts
from tandem.planning.compaction import plan_compaction
from tandem.planning.plans import CompactionRequest
from tandem.spec.compaction import CompactionType, TableCompactionSpec
from tandem.spec.table import AutomaticCompaction, Granularity
from tandem.timeline.chunks import TAG_MASKED, TimeColumn
from tandem.timeline.segments import segments

# `compaction.chunks`: which chunks are due, in which order, beside what, and after failures.


DAYS = TimeColumn(("t",), Granularity.DAY)
FOUR = {"minUncompacted": {"segments": 4}}


def in_day(day: int, number: int, size: int = MIB, last: int | None = None, **more: Any) -> AddFile:
    more.setdefault("segment", str(number))
    times = (f"2026-01-{day:02}T01:00:00Z", f"2026-01-{last or day:02}T02:00:00Z")
    path = f"{more['segment']}-{day}-{number}.parquet"
    return add_file(path, sequence=number, size=size, times=times, **more)


def table(adds: Iterable[AddFile]) -> TableFacts:
    files = files_.from_adds(list(adds))
    return TableFacts(FLIGHTS, segments(files, DAYS), Granularity.DAY)


def days(*loads: int, size: int = MIB) -> list[AddFile]:
    """So many loads in each day, from the first on."""
    return [
        in_day(day, 100 * day + number, size)
        for day, count in enumerate(loads, 1)
        for number in range(count)
    ]


def chunks(**fields: Any) -> AutomaticCompaction:
    others = {name: fields.pop(name) for name in list(fields) if name in _OF_POLICY}
    return policy(chunks={**FOUR, **fields}, **others)


_OF_POLICY = ("minor", "schedules", "skipOffsetFromLatest", "history", "minInterval")


def running(child: ChildCompaction, *, planned: Iterable[str] | None = ()) -> ChildState:
    return ChildState(
        child.name,
        child.line,
        "Running",
        created_ms=NOON,
        segments=None if planned is None else frozenset(planned),
        chunks=chunks_in(child.spec),
        retries=child.retries,
    )


def chosen(child: ChildCompaction) -> list[str]:
    found: list[str] = child.spec["semiMajor"]["chunks"]
    return found


def test_a_chunk_is_due_when_enough_of_it_is_uncompacted() -> None:
    waits = decide(chunks(), table(days(3, 2)), (), NOON)
    assert (waits.create, waits.due, waits.wake_ms) == ((), (), None)
    assert waits.why == (
        "No chunk has 4 segments uncompacted; most has 2026-01-01: 3 segments, 3,145,728 bytes, "
        "100 %."
    )

    child = created(decide(chunks(), table(days(4, 2)), (), NOON))
    assert child.spec == {
        "tableRef": {"name": "flights"},
        "type": "SemiMajor",
        "semiMajor": {"chunks": ["2026-01-01"]},
    }
    assert child.what == "SemiMajor of chunk 2026-01-01"


@pytest.mark.parametrize(
    ("least", "is_due"),
    [
        ({"segments": 3}, True),
        ({"segments": 4}, False),
        ({"bytes": "3Mi"}, True),
        ({"bytes": "4Mi"}, False),
        ({"percent": 3}, True),
        ({"percent": 4}, False),
        ({"segments": 9, "bytes": "1Gi", "percent": 3}, True),
    ],
)
def test_any_measure_is_enough_and_what_was_compacted_does_not_count(
    least: dict[str, Any], is_due: bool
) -> None:
    adds = [in_day(1, 1, 90 * MIB, segment="1.1"), *(in_day(1, n) for n in (2, 3, 4))]
    decision = decide(chunks(minUncompacted=least), table(adds), (), NOON)
    assert decision.due == (("2026-01-01",) if is_due else ())


def test_a_chunk_that_was_just_laid_out_is_not_due() -> None:
    at_once = {"minUncompacted": {"segments": 1, "bytes": "1", "percent": 1}}
    # Two outputs that came out smaller than estimated could be packed again.
    halves = [replace(in_day(1, 1, segment="1.1"), logged_path=f"{n}.parquet") for n in "ab"]
    assert decide(chunks(**at_once), table(halves), (), NOON).due == ()
    in_order = [replace(add, tags={**add.tags, "tandem.layout": "Sort:a"}) for add in halves]
    layout = {"layout": {"strategy": "Sort", "columns": ["a"]}}
    assert decide(chunks(**at_once, **layout), table(in_order), (), NOON).due == ()
    # A single load has nothing to be merged with.
    assert decide(chunks(**at_once), table(days(1)), (), NOON).due == ()
    # With a layout it has to be sorted.
    assert decide(chunks(**at_once, **layout), table(days(1)), (), NOON).due == ("2026-01-01",)


def test_A4_chunks_that_end_after_the_skip_offset_are_not_due() -> None:
    decision = decide(chunks(skipOffsetFromLatest="48h"), table(days(4, 4, 4, 4)), (), NOON)
    assert decision.due == ("2026-01-02", "2026-01-01")
    assert created(decision).spec["skipOffsetFromLatest"] == "48h"
    waits = decide(chunks(skipOffsetFromLatest="48h"), table(days(1, 4, 4)), (), NOON)
    assert waits.why == "No chunk that ends 48h before the newest has 4 segments uncompacted."


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("NewestFirst", [4, 3, 1]),
        ("OldestFirst", [1, 3, 4]),
        ("MostFragmentedFirst", [3, 4, 1]),
    ],
)
def test_the_order_of_chunks(order: str, expected: list[int]) -> None:
    decision = decide(chunks(order=order), table(days(5, 1, 7, 5)), (), NOON)
    assert decision.due == tuple(f"2026-01-{day:02}" for day in expected)
    assert chosen(created(decision)) == list(decision.due)


def test_one_child_takes_max_bytes_of_chunks_and_one_at_least() -> None:
    lake = table(days(4, 4, 4))
    two = decide(chunks(maxBytes="8Mi"), lake, (), NOON)
    assert chosen(created(two)) == ["2026-01-03", "2026-01-02"]
    assert two.due == ("2026-01-03", "2026-01-02", "2026-01-01")
    assert chosen(created(decide(chunks(maxBytes="1"), lake, (), NOON))) == ["2026-01-03"]


def test_chunks_that_a_file_spans_go_together() -> None:
    lake = table([*days(2, 2, 4), in_day(1, 50, last=2)])
    assert decide(chunks(), lake, (), NOON).due == (
        "2026-01-03",
        "2026-01-01T00:00:00Z/2026-01-03T00:00:00Z",
    )


def test_A5_two_schedulers_make_one_child() -> None:
    seen = table(days(4, 4))
    sees_more = table([*days(4, 4), in_day(2, 950), in_day(1, 960)])
    first, other = (
        created(decide(chunks(maxBytes="9Mi"), lake, (), NOON + wait))
        for lake, wait in ((seen, 0), (sees_more, HOUR))
    )
    assert first.name == other.name
    # Another state of the chunk, another chunk, and another layout are other children.
    again = table([in_day(2, 200, 4 * MIB, segment="200.1"), *days(4), *(
        in_day(2, 900 + n) for n in range(4))])  # fmt: skip
    layout = {"layout": {"strategy": "Sort", "columns": ["a"]}}
    others = {
        created(decide(chunks(), again, (), NOON)).name,
        created(decide(chunks(), table(days(4)), (), NOON)).name,
        created(decide(chunks(**layout), seen, (), NOON)).name,
    }
    assert first.name not in others
    assert len(others) == 3


def test_parallel_compactions_are_of_different_chunks() -> None:
    wanted, lake = chunks(maxBytes="1", parallel=2), table(days(4, 4, 4))
    first = created(decide(wanted, lake, (), NOON))
    children = [running(first, planned=None)]
    second = created(decide(wanted, lake, children, NOON))
    assert chosen(first) + chosen(second) == ["2026-01-03", "2026-01-02"]

    full = decide(wanted, lake, [*children, running(second)], NOON)
    assert full.create == ()
    assert full.why == "3 chunks are due, and 2 of parallel (2) are at work."


def test_one_stuck_chunk_holds_up_no_other() -> None:
    # It does not even plan; nor does a minor compaction beside it wait for it for ever.
    wanted = chunks(maxBytes="1", parallel=2, minor={})
    lake = table(days(4, 4, 4))
    stuck = replace(running(created(decide(chunks(maxBytes="1"), lake, (), NOON)), planned=None),
                    phase="Pending")  # fmt: skip
    seen = set()
    children: list[ChildState] = [stuck]
    for day in (2, 1):
        child = created(decide(wanted, lake, children, NOON))
        assert chosen(child) == [f"2026-01-{day:02}"]
        seen.add(child.name)
        children.append(ended(running(child), NOON + day))
    # Suspended, it does not even count as one of `parallel`; its chunk is still its own.
    alone = chunks(maxBytes="1")
    asleep = decide(alone, lake, [replace(stuck, phase="Suspended")], NOON)
    assert chosen(created(asleep)) == ["2026-01-02"]


def test_one_chunk_that_fails_holds_up_no_other() -> None:
    wanted, lake = chunks(maxBytes="1"), table(days(4, 4))
    first = created(decide(wanted, lake, (), NOON))
    failed = ended(running(first), NOON, "Failed", "A file is broken.")
    other = created(decide(wanted, lake, [failed], NOON))
    assert chosen(other) == ["2026-01-01"]

    waits = decide(wanted, table([*days(0, 4)]), [failed], NOON)
    assert waits.create == ()
    assert waits.next_ms == NOON + MINUTE
    assert "failed: A file is broken. Next attempt after 1m" in waits.why
    again = created(decide(wanted, table(days(0, 4)), [failed], NOON + MINUTE))
    assert (again.retries, again.line, again.name == first.name) == (1, first.line, False)


def test_many_chunks_that_fail_in_a_row_make_all_wait() -> None:
    wanted, lake = chunks(maxBytes="1"), table(days(*[4] * 9))
    children: list[ChildState] = []
    for _ in range(3):
        child = created(decide(wanted, lake, children, NOON))
        children.append(ended(running(child), NOON, "Failed", "The cluster is full."))
    waits = decide(wanted, lake, children, NOON)
    assert (waits.create, waits.next_ms) == ((), NOON + MINUTE)
    assert "3 different chunks failed" in waits.why
    well = ended(running(created(decide(wanted, lake, children, NOON + MINUTE))), NOON + MINUTE)
    assert created(decide(wanted, lake, [*children, well], NOON + MINUTE + 1))


def test_one_that_changed_nothing_is_not_made_again_at_once() -> None:
    wanted, lake = chunks(), table(days(4))
    first = created(decide(wanted, lake, (), NOON))
    waits = decide(wanted, lake, [ended(running(first), NOON)], NOON)
    assert (waits.create, waits.next_ms) == ((), NOON + MINUTE)
    assert "did not change its chunks" in waits.why


def test_it_starts_beside_minor_compactions_in_other_chunks_only() -> None:
    wanted, lake = chunks(minor={}), table(days(4, 4))
    minor = ChildState("m", "minor", "Running", NOON, segments=frozenset(["200", "201"]))
    assert chosen(created(decide(wanted, lake, [minor], NOON))) == ["2026-01-01"]
    unplanned = decide(wanted, lake, [replace(minor, segments=None)], NOON)
    assert unplanned.why == "Waits for TableCompaction/m. TableCompaction/m is at work."
    everywhere = replace(minor, segments=frozenset(["200", "100"]))
    busy = decide(wanted, lake, [everywhere], NOON)
    assert "2 chunks are due, and others are at work there." in busy.why


def test_a_schedule_waits_for_it_and_goes_next() -> None:
    wanted, lake = chunks(maxBytes="1", schedules=[NIGHTLY]), table(days(4, 4))
    begun = decide(wanted, lake, (), NOON)
    child = running(created(begun))
    night = begun.schedules[0].next_ms
    assert night is not None
    waits = decide(wanted, lake, [replace(child, created_ms=night)], night, since(begun))
    assert waits.create == ()
    done = ended(replace(child, created_ms=night), night + 1)
    following = created(decide(wanted, lake, [done], night + 2, since(begun)))
    assert following.spec["type"] == "SemiMajor"
    assert "semiMajor" not in following.spec


def test_the_last_child_of_a_chunk_that_is_due_stays() -> None:
    wanted = chunks(maxBytes="1", history={"succeeded": 0, "failed": 0})
    lake = table(days(4, 4))
    failed = ended(running(created(decide(wanted, lake, (), NOON))), NOON, "Failed", "x")
    assert decide(wanted, lake, [failed], NOON).delete == ()
    assert decide(wanted, table(days(4)), [failed], NOON).delete == (failed.name,)


# Against a slow and obvious model


def slowly(adds: Sequence[AddFile], least: int) -> list[str]:
    """Days in which that many segments lie that no compaction wrote, beside the largest one that
    one did. All files are small, and each lies in one day."""
    due = []
    for day in range(31, 0, -1):
        here = [add for add in adds if f"-{day}-" in add.logged_path]
        compacted = [add for add in here if "." in add.tags["tandem.segment"]]
        largest = max(compacted, default=None, key=lambda add: (add.size, -add.modified_ms))
        if len(here) > 1 and len(here) - (largest is not None) >= least:
            due.append(f"2026-01-{day:02}")
    return due


@settings(deadline=None, max_examples=40)
@given(
    loads=st.lists(
        st.tuples(st.integers(1, 5), st.booleans(), st.integers(1, 3)), min_size=1, max_size=25
    ),
    least=st.integers(1, 5),
)
def test_due_chunks_are_those_of_a_slow_model(
    loads: list[tuple[int, bool, int]], least: int
) -> None:
    adds = [
        in_day(day, n, size * MIB, segment=f"{n}.1" if compacted else str(n))
        for n, (day, compacted, size) in enumerate(loads)
    ]
    decision = decide(chunks(minUncompacted={"segments": least}), table(adds), (), NOON)
    assert list(decision.due) == slowly(adds, least)


@settings(deadline=None, max_examples=15)
@given(data=st.data(), parallel=st.integers(1, 3))
def test_all_chunks_are_compacted_once_and_never_two_at_once(
    data: st.DataObject, parallel: int
) -> None:
    """Children run for a while each, in any order, and merge what their own plan takes."""
    adds = {add.logged_path: add for add in days(*data.draw(
        st.lists(st.integers(1, 5), min_size=1, max_size=6)))}  # fmt: skip
    wanted = chunks(parallel=parallel, maxBytes="9Mi", minUncompacted={"segments": 2})
    expected = set(decide(wanted, table(adds.values()), (), NOON).due)
    at_work: dict[str, ChildCompaction] = {}
    states: dict[str, ChildState] = {}
    compacted: list[str] = []
    for now in range(NOON, NOON + 100):
        decision = decide(wanted, table(adds.values()), list(states.values()), now)
        if decision.create:
            child = created(decision)
            at_work[child.name] = child
            states[child.name] = running(child, planned=_planned(child, adds).segments)
            assert len(at_work) <= parallel
            held = [day for each in at_work.values() for day in chosen(each)]
            assert len(held) == len(set(held))
        elif not at_work:
            break
        else:
            name = data.draw(st.sampled_from(sorted(at_work)), "ends")
            child = at_work.pop(name)
            for run in _planned(child, adds).runs:
                for file in run.files:
                    del adds[file.path]
                day = int(run.files[0].path.split("-")[1])
                merged = in_day(day, run.sequence, run.input_bytes, segment=run.output)
                adds[merged.logged_path] = merged
            compacted += chosen(child)
            states[name] = ended(states[name], now)
    assert sorted(compacted) == sorted(expected)


def _planned(child: ChildCompaction, adds: dict[str, AddFile]) -> Any:
    spec = TableCompactionSpec.model_validate(child.spec)
    assert spec.type is CompactionType.SEMI_MAJOR
    live = table(adds.values()).segments
    return plan_compaction(live, CompactionRequest.of(spec), granularity=Granularity.DAY)


# What is kept from version to version gives the decisions of the list of all segments.


@dataclass
class Lake:
    """A table that changes by chance, and what is known of its changes."""

    random: Random
    live: dict[str, AddFile] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)

    @property
    def files(self) -> Any:
        return files_.from_adds(list(self.live.values()))

    def put(self, number: int) -> None:
        """A file of a segment or a foreign one, in one day, in several, or at an unknown time."""
        choice: Any = self.random.choice
        first = choice(range(1, 6))
        last = first + choice([0, 0, 0, 0, 1, 3])
        times = (f"2026-01-{first:02}T01:00:00Z", f"2026-01-{last:02}T02:00:00Z")
        name = choice([None, str(number), f"{number}.1", f"{number}.2", "7", "3.1", "bad name"])
        add = add_file(
            f"part-{number:03}.parquet",
            segment=name,
            sequence=choice([number, number, 5]),
            size=choice([MIB, 3 * MIB, 60 * MIB, 130 * MIB]),
            rows=choice([1000, 1000, None]),
            deleted=choice([0, 0, 0, 30, 500]),
            times=choice([*[times] * 9, None]),
            partition=choice([{}, {}, {"c": "UA"}]),
            major=choice([False] * 9 + [True]),
            layout=choice(["", "", "Sort:a"]),
        )
        if choice([False] * 9 + [True]):
            hint = "1 2026-01-01T00:00:00Z/2026-01-02T00:00:00Z"
            add = replace(add, tags={**add.tags, TAG_MASKED: hint})
        self.live[add.logged_path] = add
        self.changed.add(add.logged_path)

    def change(self, turn: int) -> None:
        """Files come, go, and are added again in another form."""
        for number in range(self.random.choice(range(4))):
            paths = sorted(self.live)
            if paths and self.random.random() < 0.5:
                gone = self.random.choice(paths)
                del self.live[gone]
                self.changed.add(gone)
            if paths and self.random.random() < 0.5:
                self.put(int(self.random.choice(paths)[5:8]))
            self.put(100 + 10 * turn + number)

    def follow(self, kept: IndexedTable) -> None:
        files, changed = self.files, self.changed
        kept.follow(files, changed, files_.with_paths(files, changed))
        self.changed = set()

    def listed(self) -> TableFacts:
        return TableFacts(FLIGHTS, segments(self.files, DAYS), Granularity.DAY)


def a_policy(random: Random) -> dict[str, Any]:
    choice = random.choice
    fields: dict[str, Any] = {"skipOffsetFromLatest": choice(["0s", "24h", "72h"])}
    kinds = choice([("minor",), ("chunks",), ("minor", "chunks")])
    if "minor" in kinds:
        fields["minor"] = {
            "thresholds": choice([[2], [2, 2], [3, 2]]),
            "preserve": choice([0, 0, 1, 4]),
            "adjacentOnly": choice([False, False, False, True]),
        }
    if "chunks" in kinds:
        fields["chunks"] = {
            "layout": choice([{}, {"strategy": "Sort", "columns": ["a"]}]),
            "minUncompacted": choice([{"segments": 2}, {"percent": 30}, {"bytes": "50Mi"}]),
            "order": choice(["NewestFirst", "MostFragmentedFirst", "OldestFirst"]),
            "maxBytes": choice(["1Ki", "100Mi", "64Gi"]),
        }
    return fields


def a_child(held: frozenset[str]) -> ChildState:
    return ChildState("t-minor-1", "other", "Running", created_ms=NOON, segments=held)


@settings(deadline=None, max_examples=few(30, 2_000))
@given(seed=st.integers(0, 1 << 32))
def test_decisions_are_those_of_the_list_of_all_segments(seed: int) -> None:
    random = Random(seed)
    lake = Lake(random)
    for number in range(random.choice(range(15))):
        lake.put(number)
    kept = IndexedTable(FLIGHTS, lake.files, DAYS)
    lake.changed = set()
    wanted = policy(**a_policy(random))
    for turn in range(4):
        lake.change(turn)
        lake.follow(kept)
        listed = lake.listed()
        names = sorted({segment.name for segment in listed.segments})
        held = frozenset(random.choices([*names, "gone"], k=random.choice(range(4))))
        children = [a_child(held)] if random.choice([True, False]) else []

        assert decide(wanted, kept, children, NOON) == decide(wanted, listed, children, NOON)
        assert kept.times_of(names[::3]) == listed.times_of(names[::3])
        if random.choice([True, False, False]):
            wanted = policy(**a_policy(random))


def test_segments_that_are_no_longer_held_are_planned_again() -> None:
    lake = Lake(Random(1))
    for number in range(14):
        lake.put(number)
    kept = IndexedTable(FLIGHTS, lake.files, DAYS)
    lake.changed = set()
    listed = lake.listed()
    wanted = policy(skipOffsetFromLatest="0s", minor={"thresholds": [2]})
    free = decide(wanted, listed, [], NOON)
    child = a_child(frozenset(segment.name for segment in listed.segments))
    for children in ([], [child], []):
        assert decide(wanted, kept, children, NOON) == decide(wanted, listed, children, NOON)
    assert free != decide(wanted, listed, [child], NOON)
