"""Random histories of a base table and its log, checked against the serial model after each step.

python -m mergelog.search --seeds 0:10000 [--cleaning | --cut | --expiring]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from mergelog import oracle
from mergelog.cleaned_world import FILES_MS, Cleaner
from mergelog.committed_world import CommittedWorld
from mergelog.oracle import Event, Row
from mergelog.world import MergePlan, World
from tandem.errors import BaseHistoryGap, BaseReplaced
from tandem.mergelog.base_history import current_at
from tandem.mergelog.versions import BlockRun
from tandem.planning.cleaning import DAY_MS

KEYS = range(4)
KEPT_MS = 4 * DAY_MS
ORDERS = (None, 0, 1, 2, 3)


@dataclass
class Began:
    """An append that has begun: it may look at the base from this version on. With cleaning it has
    uploaded its block."""

    looked_at: int
    events: tuple[Event, ...] = ()
    block: str = ""


@dataclass
class History:
    seed: int
    steps: int = 16
    cleaning: bool = False
    """Whether time passes and the log is cleaned."""
    expiring: bool = False
    """Whether time passes and merged deletes expire. Rows come within `KEPT_MS` then: what comes
    later may bring a deleted row back."""
    cut: bool = False
    """Whether what the base table's commits mean is read from a log, of which the beginning is cut
    off. A view may be refused then, by name, but only if something is gone that it depends on."""
    random: random.Random = field(init=False)
    world: World = field(init=False)
    trace: list[str] = field(default_factory=list)
    appending: list[Began] = field(default_factory=list)
    stitching: list[tuple[tuple[BlockRun, ...], int]] = field(default_factory=list)
    merging: list[MergePlan] = field(default_factory=list)
    named: int = 0
    refused: bool = False
    cleaner: Cleaner = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        ordered = self.expiring or self.random.random() < 0.5
        self.world = (
            CommittedWorld(ordered=ordered, seed=self.seed) if self.cut else World(ordered=ordered)
        )
        self.world.deletes_kept = KEPT_MS if self.expiring else 0
        self.cleaner = Cleaner(self.world)

    def run(self) -> None:
        """Raises: AssertionError, with the history."""
        self.world.insert(self._rows(3))
        steps = STEPS | (CLEANING if self.cleaning else {}) | (CUT if self.cut else {})
        steps |= EXPIRING if self.expiring else {}
        for _ in range(self.steps):
            step = self.random.choices(list(steps), list(steps.values()))[0]
            before = self._view()
            self.trace.append(step.__name__.strip("_"))
            try:
                unchanged = step(self)
                after = self._view()
            except (BaseHistoryGap, BaseReplaced) as error:
                self._require_uncertain(self.world.base, error)
                self.refused = True
                return  # until an owner decides (`tandem log resolve`)
            if unchanged:
                assert after == before, self._failure("the view changed")
            self._check()
        if not self.cleaning and not self.cut:
            self._check_prefixes()

    def _check_prefixes(self) -> None:
        """I-37: of each prefix of the log, with each base version that a reader of it may see. The
        model knows no stitched block."""
        world = self.world
        for instant, state in enumerate(world.log):
            known = world.prefix(instant)
            for version in range(state.base, world.base + 1):
                changes = world.changes[: version + 1]
                expected = oracle.of_prefix(changes, world.appends, instant, ordered=world.ordered)
                if expected is not None:
                    found = known.view(version)
                    assert found == expected, self._failure(
                        f"instant {instant}, version {version}: {found}, expected {expected}"
                    )

    def _require_uncertain(self, version: int, error: Exception) -> None:
        """A view of a base version is refused only if what it depends on is gone."""
        world = self.world
        if not isinstance(world, CommittedWorld) or world.is_certain(version):
            raise AssertionError(self._failure(f"version {version}: {error!r}")) from error

    def _check(self) -> None:
        world = self.world
        for version in range(world.cut if isinstance(world, CommittedWorld) else 0, world.base + 1):
            try:
                found = world.view(version)
            except (BaseHistoryGap, BaseReplaced, KeyError) as error:
                if self.cut and not isinstance(error, KeyError):
                    self._require_uncertain(version, error)
                    continue
                # A block, or what tells which blocks count, is gone.
                if version >= self._first_retained:
                    raise AssertionError(self._failure(f"version {version}: {error!r}")) from error
                continue
            state = oracle.replay(world.changes, world.appends, ordered=world.ordered, upto=version)
            expected = oracle.view(state, ordered=world.ordered)
            assert found == expected, self._failure(
                f"version {version}: found {found}, expected {expected}"
            )

    @property
    def _first_retained(self) -> int:
        return current_at(dict(enumerate(self.world.base_times)), self.world.now - FILES_MS)

    def _view(self) -> list[Row]:
        return self.world.view()

    def _failure(self, what: str) -> str:
        return f"seed {self.seed}, {self.trace}: {what}"

    # Values

    def _order(self) -> int | None:
        if self.expiring:
            return self.world.now - self.random.randint(0, KEPT_MS)
        return self.random.choice(ORDERS)

    def _value(self, order: int | None) -> str:
        self.named += 1
        return f"v{self.named}@{order}"

    def _rows(self, most: int) -> tuple[Row, ...]:
        keys = self.random.sample(KEYS, self.random.randint(0, most))
        orders = [self._order() for _ in keys]
        return tuple(
            Row(key, order, self._value(order)) for key, order in zip(keys, orders, strict=True)
        )

    def _events(self) -> tuple[Event, ...]:
        keys = self.random.sample(KEYS, self.random.randint(1, 3))
        found = []
        for key in keys:
            order = self._order()
            deletes = self.random.random() < 0.35
            found.append(Event(key, order, None if deletes else self._value(order)))
        return tuple(found)

    # Steps: each returns whether it must not change the view.

    def _insert(self) -> bool:
        self.world.insert(self._rows(2))
        return False

    def _update(self) -> bool:
        keys = frozenset(self.random.sample(KEYS, 2))
        value = None
        if self.random.random() < 0.5:
            self.named += 1
            value = f"u{self.named}@0"
        self.world.update(keys, value)
        return False

    def _rearrange(self) -> bool:
        self.world.rearrange()
        return True

    def _overwrite(self) -> bool:
        self.world.overwrite(self._rows(3))
        return False

    def _restore(self) -> bool:
        first = self._first_retained
        if isinstance(self.world, CommittedWorld):
            first = max(first, self.world.cut)
        self.world.restore(self.random.randint(first, self.world.base))
        return False

    def _cut_base(self) -> bool:
        """The history of the base table is cleaned up, by any engine."""
        assert isinstance(self.world, CommittedWorld)
        self.world.cut_base(self.random.randint(self.world.cut, self.world.base))
        return True

    def _archive(self) -> bool:
        """The first versions of the log are cleaned up, also those that restores need. What plans
        read is kept."""
        world = self.world
        reads = [at for _, at in self.stitching] + [plan.instant for plan in self.merging]
        last = min([len(world.log) - 1, *reads])
        world.archived = self.random.randint(world.archived, max(world.archived, last))
        return True

    def _append(self) -> bool:
        self.world.append(self._events(), self.world.base)
        return False

    def _begin_append(self) -> bool:
        began = Began(self.world.base)
        if self.cleaning:
            began.events = self._events()
            began.block = self.world.upload(began.events)
        self.appending.append(began)
        return True

    def _end_append(self) -> bool:
        if self.appending:
            began = self.appending.pop(self.random.randrange(len(self.appending)))
            looked_at = self.random.randint(began.looked_at, self.world.base)
            void = began.block in self.cleaner.rolled_back
            self.world.append(
                began.events or self._events(), looked_at, "" if void else began.block
            )
            return False
        return True

    def _advance(self) -> bool:
        self.world.advance_base()
        return True

    def _stitch(self) -> bool:
        runs = self.world.runs(self.random.choice(("AllBlocks", "SmallRuns")))
        self.world.stitch(runs, len(self.world.log) - 1)
        return True

    def _begin_stitch(self) -> bool:
        runs = self.world.runs("AllBlocks")
        self.stitching.append((runs, len(self.world.log) - 1))
        return True

    def _end_stitch(self) -> bool:
        if self.stitching:
            self.world.stitch(*self.stitching.pop())
        return True

    def _merge(self) -> bool:
        self.world.commit_merge(self.world.plan_merge())
        return True

    def _begin_merge(self) -> bool:
        self.merging.append(self.world.plan_merge())
        return True

    def _end_merge(self) -> bool:
        if self.merging:
            self.world.commit_merge(self.merging.pop())
        return True

    def _wait(self) -> bool:
        self.world.now += self.random.randint(1, 2 * DAY_MS)
        return True

    def _clean(self) -> bool:
        catch_up = self.random.random() < 0.5
        self.cleaner.clean(self.stitching, self.merging, catch_up=catch_up)
        return True


STEPS: dict[Callable[[History], bool], float] = {
    History._append: 5,
    History._begin_append: 1,
    History._end_append: 1,
    History._insert: 1,
    History._update: 1,
    History._rearrange: 0.5,
    History._overwrite: 0.5,
    History._restore: 1,
    History._advance: 0.5,
    History._stitch: 1.5,
    History._begin_stitch: 0.7,
    History._end_stitch: 0.7,
    History._merge: 1,
    History._begin_merge: 0.7,
    History._end_merge: 0.7,
}

CLEANING: dict[Callable[[History], bool], float] = {
    History._wait: 5,
    History._clean: 5,
    History._restore: 3,
    History._merge: 2.5,
}
"""What differs with cleaning."""

CUT: dict[Callable[[History], bool], float] = {
    History._cut_base: 1.5,
    History._archive: 0.3,
    History._overwrite: 1,
    History._restore: 2,
    History._advance: 1.5,
    History._merge: 1.5,
}
"""What differs with histories that are cut."""

EXPIRING: dict[Callable[[History], bool], float] = {
    History._wait: 3,
    History._merge: 2.5,
    History._advance: 1.5,
    History._stitch: 3,
}
"""What differs with deletes that expire."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:10000")
    parser.add_argument("--cleaning", action="store_true")
    parser.add_argument("--cut", action="store_true")
    parser.add_argument("--expiring", action="store_true")
    asked = parser.parse_args()
    first, last = (int(text) for text in asked.seeds.split(":"))
    for seed in range(first, last):
        steps = 24 if asked.cleaning or asked.expiring else 16
        History(
            seed, steps=steps, cleaning=asked.cleaning, expiring=asked.expiring, cut=asked.cut
        ).run()
    sys.stdout.write(f"{last - first} histories agree with the serial model\n")


if __name__ == "__main__":
    main()
