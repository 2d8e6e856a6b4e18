"""The assignment of shards, step by step and in lists: slow, and simple enough to be read against
the rules. The model of `test_assignment_histories.py`; it shares nothing with what it judges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Name = tuple[str, str]
"""Table and key of a shard."""
Process = tuple[int, str]
"""Slot and id of an executor."""


@dataclass
class Held:
    """A shard that has an executor."""

    name: Name
    process: Process


@dataclass
class Model:
    """What the coordinator knows."""

    live: list[Process] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    estimates: dict[Name, int] = field(default_factory=dict)
    reported: dict[Name, int] = field(default_factory=dict)
    last_of_round: Process | None = None

    def ask(self, shards: Mapping[Name, int | None]) -> None:
        """A request for these shards, with the sizes that the log estimates."""
        for name, size in shards.items():
            if size is not None:
                self.estimates[name] = size
        if not self.live:
            return
        new = [name for name in shards if self.process_of(name) is None]
        while new:
            name = self._first(new)
            new.remove(name)
            self.held.append(Held(name, self._choose(name)))

    def report(self, process: Process, sizes: Mapping[Name, int]) -> None:
        for name, size in sizes.items():
            if self.process_of(name) == process:
                self.reported[name] = size

    def join(self, process: Process) -> None:
        if process not in self.live:
            self.live.append(process)

    def die(self, process: Process) -> None:
        self.live = [each for each in self.live if each != process]
        self.held = [each for each in self.held if each.process != process]

    def drop(self, names: Iterable[Name]) -> None:
        for name in list(names):
            self.held = [each for each in self.held if each.name != name]
            self.estimates.pop(name, None)
            self.reported.pop(name, None)

    def process_of(self, name: Name) -> Process | None:
        for each in self.held:
            if each.name == name:
                return each.process
        return None

    def size_of(self, name: Name) -> int | None:
        if name in self.reported:
            return self.reported[name]
        return self.estimates.get(name)

    def bytes_of(self, process: Process) -> int:
        return sum(self.size_of(each.name) or 0 for each in self.held if each.process == process)

    def _first(self, new: list[Name]) -> Name:
        """The largest one, that of the smallest name among several; unknown sizes come last."""
        sizes = [size for name in new if (size := self.size_of(name)) is not None]
        if not sizes:
            return min(new)
        return min(name for name in new if self.size_of(name) == max(sizes))

    def _choose(self, name: Name) -> Process:
        """An executor without load, else by bytes, or in turn where the size is unknown."""
        in_order = sorted(self.live)
        chosen = None
        for process in in_order:
            if not any(each.process == process for each in self.held):
                chosen = process
                break
        if self.size_of(name) is not None:
            if chosen is None:
                least = min(self.bytes_of(process) for process in in_order)
                chosen = next(each for each in in_order if self.bytes_of(each) == least)
            return chosen
        if chosen is None:
            later = [p for p in in_order if self.last_of_round and p > self.last_of_round]
            chosen = later[0] if later else in_order[0]
        self.last_of_round = chosen
        return chosen
