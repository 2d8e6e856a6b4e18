"""`python -m simulator --seeds 0:300`: play histories, print the story of one that fails.

PYTHONPATH=operator:tests python -m simulator --seeds 0:3000 --processes 2   # make matrix
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from simulator.checker import Violation
from simulator.history import History

AT_ONCE = 20


@dataclass
class Played:
    """What some histories came to. `failed` has the story of the first that was wrong."""

    histories: int = 0
    versions: int = 0
    every_order: int = 0  # histories small enough for that
    checked: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    failed: str = ""
    stories: list[str] = field(default_factory=list)

    def add(self, other: Played) -> None:
        self.histories += other.histories
        self.versions += other.versions
        self.every_order += other.every_order
        self.checked += other.checked
        self.ended += other.ended
        self.failed = self.failed or other.failed
        self.stories += other.stories


def play(
    seeds: Sequence[int], *, tell: bool = False, logged: bool = False, managed: bool = False
) -> Played:
    """Play these, until one fails."""
    played = Played()
    for seed in seeds:
        history = History(seed, merge_on_read=logged, managed=managed)
        try:
            history.run()
        except Violation as violation:
            played.failed = str(violation)
            return played
        played.histories += 1
        played.versions += history.checker.version
        played.every_order += history.checker.is_small
        played.checked += history.checker.invariants.checked
        for actor in history.actors:
            assert actor.ended is not None
            played.ended[f"{actor.resource.kind_name} {actor.ended.reason}"] += 1
        if tell:
            played.stories.append(history.story())
    return played


def parts(
    seeds: range, processes: int, *, tell: bool, logged: bool, managed: bool
) -> Iterator[Played]:
    """A few seeds at a time, in as many processes."""
    if processes == 1:
        for seed in seeds:
            yield play([seed], tell=tell, logged=logged, managed=managed)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(
            partial(play, logged=logged, managed=managed),
            [seeds[at : at + AT_ONCE] for at in range(0, len(seeds), AT_ONCE)],
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__)
    parser.add_argument("--seeds", default="0:300", help="FIRST:END, or one seed")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long; 0: never")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--story", action="store_true", help="print the story of every seed")
    parser.add_argument("--logged", action="store_true", help="merge-on-read tables only")
    parser.add_argument("--managed", action="store_true", help="tables of a catalog only")
    asked = parser.parse_args()
    first, _, end = asked.seeds.partition(":")
    seeds = range(int(first), int(end) if end else int(first) + 1)
    began = time.monotonic()
    played = Played()
    how = {"tell": asked.story, "logged": asked.logged, "managed": asked.managed}
    for part in parts(seeds, asked.processes, **how):
        played.add(part)
        if played.failed:
            sys.stdout.write(f"{played.failed}\n")
            return 1
        for story in part.stories:
            sys.stdout.write(story + "\n")
        if asked.seconds and time.monotonic() - began > asked.seconds:
            break
    sys.stdout.write(
        f"{played.histories:,} histories in {time.monotonic() - began:.0f} s:"
        f" {played.versions:,} versions compared with the model,"
        f" {played.every_order:,} histories with every serial order\n"
    )
    for what, counts in (("checked", played.checked), ("ended", played.ended)):
        summary = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
        sys.stdout.write(f"{what}: {summary}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
