"""Which rows of which parts show a version, with older generations in place of parts that are
still being loaded.

The log says which parts a version has, and which rows of each are deleted. A part that is loaded
shows itself. For one that is not, a *stand-in* is shown: the rows that it was made from, in parts
that are loaded. Rows that were deleted since are carried back through the row map, so that a
stand-in shows exactly the live rows of the part. Without a valid row map only a whole group has a
stand-in, and only while nothing was deleted from it: then all rows that were live before it was
written.

What a rewrite read and wrote comes from row maps and the log, never from tags (I-56).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pyroaring import BitMap64

from tandem.timeline.serving.parts import Part

Rows = Mapping[str, BitMap64]
"""Positions of rows, by part."""


class Origins(Protocol):
    """A row map (`tandem.rowmap.rowmap.RowMap`), as this module needs it."""

    def backward(self, output: str, positions: BitMap64) -> Rows:
        """Positions of an output → the positions that its rows came from, by input."""
        ...


@dataclass(frozen=True, slots=True)
class LivePart:
    """A part of a version, and its live rows, by position."""

    part: Part
    live: BitMap64


@dataclass(frozen=True, slots=True)
class RewrittenParts:
    """A commit that wrote parts from others and changed no row, such as an `OPTIMIZE`: the live
    rows of its inputs just before it, and those of its outputs right after it."""

    inputs: Rows
    outputs: Rows


class Shown(NamedTuple):
    """The rows to show, by part, and the parts of the version of which no row is shown: to be asked
    of the table, or waited for. What is shown are all other rows of the version, each once."""

    rows: dict[str, BitMap64]
    missing: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class StandIns:
    """What is known of rewrites.

    Attributes:
        row_maps: part → the map of the rewrite that wrote it, if that is valid.
        rewrites: those without a map are used; the newest of a part counts.
    """

    row_maps: Mapping[str, Origins]
    rewrites: Iterable[RewrittenParts] = ()
    _by_output: dict[str, RewrittenParts] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for rewrite in self.rewrites:
            self._by_output.update(dict.fromkeys(rewrite.outputs, rewrite))

    def show(self, version: Iterable[LivePart], loaded: Container[str]) -> Shown:
        """A function of the version and of the set of loaded parts (a `ServingTimeline` is one)."""
        parts = {each.part.name: each for each in version}
        found: dict[str, BitMap64] = {}
        missing: list[Part] = []
        for unit in self._units(parts, loaded):
            rows = {name: parts[name].live for name in unit if parts[name].live}
            shown = self._cover(rows, loaded)
            if shown is None:
                missing += [parts[name].part for name in rows if name not in loaded]
                shown = {name: rows[name] for name in rows if name in loaded}
            _add(found, shown)
        return Shown(found, tuple(missing))

    def _units(self, parts: Mapping[str, LivePart], loaded: Container[str]) -> Iterator[list[str]]:
        """Parts that are covered together: single ones, and groups of which one is not loaded and
        has no row map."""
        done: set[str] = set()
        for name in parts:
            if name in done:
                continue
            unit = [name]
            rewrite = self._by_output.get(name)
            if rewrite is not None:
                group = [each for each in rewrite.outputs if each in parts]
                if any(each not in loaded and each not in self.row_maps for each in group):
                    unit = group
            done.update(unit)
            yield unit

    def _cover(self, rows: Rows, loaded: Container[str]) -> dict[str, BitMap64] | None:
        """The same rows in loaded parts; None if there are none."""
        found: dict[str, BitMap64] = {}
        stuck: dict[str, BitMap64] = {}
        todo = dict(rows)
        while todo:
            name, positions = todo.popitem()
            if name in loaded:
                _add(found, {name: positions})
            elif name in self.row_maps:
                _add(todo, self.row_maps[name].backward(name, positions))
            else:
                _add(stuck, {name: positions})
        while stuck:
            rewrite = self._by_output.get(next(iter(stuck)))
            if rewrite is None:
                return None
            for name, positions in rewrite.outputs.items():
                if positions != (stuck.pop(name, None) or found.pop(name, None) or BitMap64()):
                    return None  # rows were deleted since, or it is needed in part only
            before = self._cover(rewrite.inputs, loaded)
            if before is None:
                return None
            _add(found, before)
        return found


def _add(rows: dict[str, BitMap64], more: Rows) -> None:
    for name, positions in more.items():
        rows[name] = rows[name] | positions if name in rows else positions
