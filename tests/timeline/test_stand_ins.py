"""What a loader shows of a version against a model of rows: random loads, deletes, compactions with
and without row maps, announcements and withdrawals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64
from serving import (
    LivePart,
    Part,
    RewrittenParts,
    RootRange,
    ServingTimeline,
    Shown,
    StandIns,
)

from support.some import few


@dataclass
class Map:
    """A row map that knows each row: output → position → (input, position)."""

    origins: Mapping[str, list[tuple[str, int]]]

    def backward(self, output: str, positions: BitMap64) -> dict[str, BitMap64]:
        found: dict[str, BitMap64] = {}
        for position in positions:
            input_, place = self.origins[output][position]
            found.setdefault(input_, BitMap64()).add(place)
        return found


@dataclass
class Table:
    """A table as the rows of its parts: `rows[part][position]` is a row's identity."""

    rows: dict[str, list[int]] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    live: dict[str, set[int]] = field(default_factory=dict)  # part → live positions
    maps: dict[str, Map] = field(default_factory=dict)
    rewrites: list[RewrittenParts] = field(default_factory=list)
    count: int = 0

    def append(self, rows: int) -> str:
        name = f"l{len(self.parts)}"
        load = sum(not part.minor for part in self.parts.values())
        self._write(Part(name, load, load + 1), range(self.count, self.count + rows))
        self.count += rows
        return name

    def delete(self, rows: set[int]) -> None:
        for name in list(self.live):
            self.live[name] -= {at for at in self.live[name] if self.rows[name][at] in rows}
            if not self.live[name]:
                del self.live[name]

    def compact(self, inputs: list[str], sizes: list[int], *, mapped: bool) -> list[str]:
        """The live rows of the inputs, in reverse order, in outputs of these sizes (the last one
        takes the rest)."""
        moved = [(name, at) for name in inputs for at in sorted(self.live[name])][::-1]
        cuts = [*sizes, len(moved)]
        outputs: dict[str, list[tuple[str, int]]] = {}
        for size in cuts:
            if moved:
                outputs[f"c{len(self.parts) + len(outputs)}"], moved = moved[:size], moved[size:]
        minor = 1 + max(self.parts[name].minor for name in inputs)
        first = min(self.parts[name].first for name in inputs)
        end = max(self.parts[name].end for name in inputs)
        before = {name: BitMap64(self.live.pop(name)) for name in inputs}
        for name, origins in outputs.items():
            rows = [self.rows[input_][at] for input_, at in origins]
            self._write(Part(name, first, end, minor, len(outputs)), rows)
            if mapped:
                self.maps[name] = Map({name: origins})
        after = {name: BitMap64(range(len(self.rows[name]))) for name in outputs}
        self.rewrites.append(RewrittenParts(before, after))
        return list(outputs)

    def _write(self, part: Part, rows: range | list[int]) -> None:
        self.parts[part.name], self.rows[part.name] = part, list(rows)
        self.live[part.name] = set(range(len(rows)))

    @property
    def version(self) -> list[LivePart]:
        return [LivePart(self.parts[name], BitMap64(live)) for name, live in self.live.items()]

    def show(self, loaded: set[str] | ServingTimeline) -> Shown:
        return StandIns(self.maps, self.rewrites).show(self.version, loaded)

    def ids(self, shown: Mapping[str, BitMap64]) -> list[int]:
        return sorted(self.rows[name][at] for name, rows in shown.items() for at in rows)

    def check(self, loaded: set[str]) -> Shown:
        """What is shown are exactly the rows of the version, without those of missing parts."""
        shown = self.show(loaded)
        lost = {part.name for part in shown.missing}
        assert set(shown.rows) <= loaded
        assert not lost & loaded
        wanted = [self.rows[n][at] for n, live in self.live.items() if n not in lost for at in live]
        assert self.ids(shown.rows) == sorted(wanted)
        for name in lost:
            assert not self._has_stand_in(name, loaded), f"{name} has a stand-in"
        return shown

    def _has_stand_in(self, name: str, loaded: set[str]) -> bool:
        """Slow: whether each live row can be traced by maps alone to a loaded part."""
        for at in self.live[name]:
            here, place = name, at
            while here not in loaded:
                if here not in self.maps:
                    return False
                here, place = self.maps[here].origins[here][place]
        return True


def compacted() -> tuple[Table, list[str]]:
    table = Table()
    loads = [table.append(3) for _ in range(3)]
    return table, loads


def test_a_stand_in_carries_later_deletes_back() -> None:
    table, loads = compacted()
    [output] = table.compact(loads, [], mapped=True)
    table.delete({1, 5})

    shown = table.check(set(loads))

    assert not shown.missing
    assert table.ids(shown.rows) == [0, 2, 3, 4, 6, 7, 8]
    assert shown.rows["l0"] == BitMap64([0, 2])
    assert table.check({*loads, output}).rows.keys() == {output}


def test_an_append_is_shown_before_the_output_of_a_compaction() -> None:
    table, loads = compacted()
    [output] = table.compact(loads, [], mapped=True)
    fresh = table.append(2)
    table.delete({4, 9})

    shown = table.check({*loads, fresh})

    assert table.ids(shown.rows) == [0, 1, 2, 3, 5, 6, 7, 8, 10]
    assert [part.name for part in table.check({fresh}).missing] == [output]


def test_without_a_row_map_an_unchanged_group_has_a_stand_in_and_a_changed_one_none() -> None:
    table, loads = compacted()
    table.delete({0})
    first, second = table.compact(loads, [4], mapped=False)

    whole = table.check({*loads, first})
    assert not whole.missing
    assert whole.rows.keys() == set(loads), "the group appears at once"
    table.delete({8})

    assert {part.name for part in table.check(set(loads)).missing} == {first, second}
    assert [part.name for part in table.check({*loads, first}).missing] == [second]
    assert table.show({*loads, first}).missing[0] == Part(second, 0, 3, 1, 2)


def test_stand_ins_of_stand_ins() -> None:
    table, loads = compacted()
    inner = table.compact(loads[:2], [2], mapped=False)
    table.delete({7})
    [outer] = table.compact([*inner, loads[2]], [], mapped=True)
    assert not table.check(set(loads)).missing
    table.delete({2})
    # The inner group is needed in part only, and nothing says which rows of the loads these are.
    assert [part.name for part in table.show(set(loads)).missing] == [outer]
    assert not table.check({*inner, loads[2]}).missing


def test_S22_a_new_version_of_a_chunk_hides_everything_of_the_lower_one() -> None:
    """Also before it is loaded: nothing of a replaced generation stands in for it."""
    table, loads = compacted()
    [output] = table.compact(loads, [], mapped=True)
    table.delete(set(range(9)))
    new = table.append(2)
    shown = table.check({*loads, output})
    assert shown.rows == {}
    assert [part.name for part in shown.missing] == [new]
    assert table.check({*loads, output, new}).rows.keys() == {new}


def test_S13_with_deletes_every_order_of_announcements_ends_the_same() -> None:
    """The eight parts of the example, as a table: 4 is made of 2 and 3, {6, 7} of 4 and 5."""
    table = Table()
    one, two, three = (table.append(2) for _ in range(3))
    [four] = table.compact([two, three], [], mapped=True)
    five = table.append(2)
    table.delete({3})
    six, seven = table.compact([four, five], [2], mapped=True)
    eight = table.append(1)
    table.delete({7})
    every = (one, two, three, four, five, six, seven, eight)
    stand_ins = StandIns(table.maps, table.rewrites)
    version = table.version
    by_set: dict[frozenset[str], list[int]] = {}
    ends = set()
    for order in permutations(every):
        loaded = ServingTimeline()
        for name in order:
            loaded.announce(table.parts[name])
        shown = stand_ins.show(version, loaded)
        ends.add((frozenset(shown.rows), shown.missing))
    assert ends == {(frozenset([one, six, seven, eight]), ())}
    for number in range(256):
        some = {name for at, name in enumerate(every) if number >> at & 1}
        by_set[frozenset(some)] = table.ids(table.check(some).rows)
    assert by_set[frozenset(every)] == [0, 1, 2, 4, 5, 6, 8]
    # Without the new group the older one stands in, and then the loads, each without the deletes.
    assert by_set[frozenset([one, four, five, six, eight])] == [0, 1, 2, 4, 5, 6, 8]
    assert by_set[frozenset([one, two, three, five, eight])] == [0, 1, 2, 4, 5, 6, 8]


@settings(max_examples=few(38, 300), deadline=None)
@given(st.data())
def test_I58_what_is_shown_are_rows_of_the_version_or_their_part_is_reported(
    data: st.DataObject,
) -> None:
    table = Table()
    loaded: set[str] = set()
    timeline = ServingTimeline()
    table.append(3)
    for _ in range(data.draw(st.integers(1, 12))):
        act = data.draw(st.sampled_from(["append", "delete", "compact", "announce", "withdraw"]))
        if act == "append":
            table.append(data.draw(st.integers(1, 4)))
        elif act == "delete":
            table.delete(data.draw(st.sets(st.integers(0, table.count), max_size=3)))
        elif act == "compact" and table.live:
            names = sorted(table.live)
            some = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
            sizes = data.draw(st.lists(st.integers(1, 3), max_size=2))
            table.compact(some, sizes, mapped=data.draw(st.integers(0, 3)) > 0)
        elif act == "announce":
            some = data.draw(st.lists(st.sampled_from(sorted(table.parts)), unique=True))
            for name in some:
                timeline.announce(table.parts[name])
            loaded.update(some)
        elif loaded:
            name = data.draw(st.sampled_from(sorted(loaded)))
            timeline.withdraw(table.parts[name])
            loaded.discard(name)
        shown = table.check(loaded)
        assert table.show(timeline) == shown, "a function of the set"


@given(st.data())
def test_stand_ins_show_what_the_timeline_of_announcements_does(data: st.DataObject) -> None:
    """Without deletes, and with adjacent compactions: the rows of one part are shown all or
    none, so that less is shown where only some of its loads are there."""
    table = Table()
    live = [[table.append(2)] for _ in range(data.draw(st.integers(1, 6)))]
    for _ in range(data.draw(st.integers(0, 4))):
        low = data.draw(st.integers(0, len(live) - 1))
        high = data.draw(st.integers(low + 1, len(live)))
        inputs = [name for group in live[low:high] for name in group]
        sizes = data.draw(st.lists(st.integers(1, 3), max_size=1))
        live[low:high] = [table.compact(inputs, sizes, mapped=True)]
    timeline = ServingTimeline()
    for name in data.draw(st.sets(st.sampled_from(sorted(table.parts)))):
        timeline.announce(table.parts[name])
    shown = table.show(timeline)
    loads = max(part.end for part in table.parts.values())
    if not timeline.missing([RootRange("", 0, loads)]):
        assert not shown.missing
    whole = {row for part in timeline.visible() for row in table.rows[part.name]}
    lost = {row for part in shown.missing for row in table.rows[part.name]}
    assert whole - lost <= set(table.ids(shown.rows))
