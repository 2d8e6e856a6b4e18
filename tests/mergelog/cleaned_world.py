"""Cleaning of the log of a `World`: the pure modules decide, as in `tandem.operations.clean`; what
they delete is checked against the world's own history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mergelog.world import MergePlan, World
from tandem.errors import BaseHistoryGap
from tandem.mergelog.base_history import current_at
from tandem.mergelog.boundaries import RestoredTo
from tandem.mergelog.versions import BlockRun
from tandem.planning.cleaning import (
    DAY_MS,
    CleaningFacts,
    CleaningRules,
    FileCategory,
    ListedFile,
    Tombstone,
    decide,
    uploads_to_roll_back,
)

FILES_MS, LOG_MS = 4 * DAY_MS, 6 * DAY_MS


@dataclass
class Cleaner:
    """Cleans the log of a world. An upload of a writer is its own session."""

    world: World
    rolled_back: dict[str, int] = field(default_factory=dict)

    def clean(
        self,
        stitching: Sequence[tuple[tuple[BlockRun, ...], int]],
        merging: Sequence[MergePlan],
        *,
        catch_up: bool,
    ) -> None:
        """Args: what is planned, and not committed; whether the log first records what the base
        table says. What may be deleted does not depend on that."""
        world = self.world
        caught_up = world.fold(len(world.log) - 1, world.base)
        before = world.log[-1]
        if catch_up and (caught_up.mark, caught_up.live) != (before.mark, before.live):
            world.commit_log(caught_up)
        planned = {block.path for runs, _ in stitching for run in runs for block in run.blocks}
        planned |= {path for plan in merging for path in plan.blocks}
        reads = [at for _, at in stitching] + [plan.instant for plan in merging]
        found = [
            ListedFile(path, 1, time, FileCategory.BLOCK, session=path, upload=1)
            for path, time in world.block_times.items()
            if path in world.contents
        ]
        rules = CleaningRules(FILES_MS)
        facts = self._facts(reads, planned)
        void = uploads_to_roll_back(found, facts, rules)
        if void:
            world.commit_log(world.log[-1])
            self.rolled_back |= void
            facts = self._facts(reads, planned)
        for garbage in decide(found, facts, rules).garbage:
            path = garbage.file.path
            assert path not in planned, f"{path} is planned"
            self._check_old(path)
            del world.contents[path]
        self._archive(reads)

    def _facts(self, reads: Sequence[int], planned: set[str]) -> CleaningFacts:
        world = self.world
        stones = [
            Tombstone(path, "", world.log_times[version + 1], version + 1)
            for version, (before, after) in enumerate(pairwise(world.log))
            if version >= world.archived
            for path in before.live.keys() - after.live.keys()
        ]
        needed = self._needed(world.now - FILES_MS)[0]
        return CleaningFacts(
            world.now,
            frozenset(world.log[-1].live),
            stones,
            reads=tuple(reads),
            inputs=frozenset(planned) | needed,
            known_from_ms=world.log_times[world.archived] if world.archived else -LOG_MS,
            known_from_version=world.archived,
            rolled_back=self.rolled_back,
        )

    def _needed(self, since: int) -> tuple[frozenset[str], int]:
        """As `tandem.mergelog.base_history`."""
        world = self.world
        first = current_at(dict(enumerate(world.base_times)), since)
        restores = [
            version
            for version in range(first + 1, world.base + 1)
            if isinstance(world.effects[version], RestoredTo)
        ]
        world.read.clear()
        paths = frozenset[str]()
        for version in (first, *restores):
            try:
                paths |= world.state_at(version).live.keys()
            except BaseHistoryGap:
                continue
        return paths, min(world.read, default=len(world.log) - 1)

    def _archive(self, reads: Sequence[int]) -> None:
        world = self.world
        cutoff = world.now - LOG_MS
        old = [v for v, time in enumerate(world.log_times) if time <= cutoff]
        if old:
            needed = self._needed(cutoff)[1]
            world.archived = max(world.archived, min(old[-1], needed, *reads, len(world.log) - 1))

    def _check_old(self, path: str) -> None:
        """By the history alone."""
        world = self.world
        live = [version for version, state in enumerate(world.log) if path in state.live]
        if live:
            assert live[-1] < len(world.log) - 1, f"{path} is live"
            assert world.log_times[live[-1] + 1] <= world.now - FILES_MS, f"{path} is young"
        else:
            assert world.block_times[path] <= world.now - DAY_MS, f"{path} is young"
            assert path in self.rolled_back, f"{path} may yet be committed"
