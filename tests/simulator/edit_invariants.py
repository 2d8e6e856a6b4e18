"""Invariants of edits (R-1 to R-10), which need to know more than the log says: what files hold,
which rows are deleted, where row maps say that rows came from, and what was asked for.

What must be true of an edit when it is made (R-1, R-3) is checked in `simulator.edits`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from simulator.invariants import Json, Seen, Violation
from simulator.job_rows import dead_rows
from simulator.rows import Row
from support.present import present
from tandem.delta import dv
from tandem.delta.actions import Commit
from tandem.jobs.formats import JobSpec, RewriteJob
from tandem.jobs.results import JobResult
from tandem.operations import attempt_files
from tandem.operations.kinds.commit_history import PublishedRowMaps
from tandem.reconcile.classify import classify
from tandem.reconcile.model import ChangeKind
from tandem.rowmap import binary_format
from tandem.rowmap.rowmap import RowMap
from tandem.spark.jobs.edits import WantedEdit
from tandem.storage.store import exists
from tandem.timeline.segments import TAG_ROW_MAP

if TYPE_CHECKING:
    from simulator.world import World

MOST_ROWS = 1_000_000


@dataclass(frozen=True)
class Evidence:
    """What is known of a commit of ours besides the log.

    `rows` of all files that a version has shown, `dead` positions in those that are live before it
    and after it. `edits` are those that were ever made, by path. `row_map` is the published one;
    None if it is lost, or of another process that does the same. `job` and `job_map` are those of
    a rewrite's attempt.
    """

    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    dead_before: Mapping[str, Set[int]] = field(default_factory=dict)
    dead_after: Mapping[str, Set[int]] = field(default_factory=dict)
    edits: Mapping[str, WantedEdit] = field(default_factory=dict)
    row_map: RowMap | None = None
    job: RewriteJob | None = None
    job_map: RowMap | None = None

    def live_before(self, path: str) -> set[Row]:
        return _without(self.rows[path], self.dead_before.get(path, frozenset()))

    def live_after(self, path: str) -> set[Row]:
        return _without(self.rows[path], self.dead_after.get(path, frozenset()))


@dataclass(frozen=True)
class Reader:
    """Reads evidence as soon as a version is there, before anything can be cleaned."""

    world: World

    def of(
        self,
        seen: Seen,
        rows: Mapping[str, Sequence[Row]],
        before: Mapping[str, Set[int]],
        after: Mapping[str, Set[int]],
    ) -> Evidence:
        """Raises: Violation if the published map does not know what the commit has added."""
        operation = str(seen.ours["operation"])
        attempt = next(
            txn["version"] for txn in seen.all("txn") if txn["appId"] == f"tandem:{operation}"
        )
        store = self.world.store
        job = JobSpec.model_validate_json(store.get(attempt_files.job(operation, attempt))).job
        job_map = None
        path = attempt_files.round_file(operation, attempt, 0, "result.json")
        # A batch that has ended cleans its attempt before it is looked at.
        said = self.world.jobs.control
        if isinstance(job, RewriteJob) and exists(said, path):
            ref = present(JobResult.model_validate_json(said.get(path)).row_map)
            job_map = binary_format.from_bytes(said.get(ref.path), resource=ref.path)
        return Evidence(
            rows,
            before,
            after,
            self.world.edits.made,
            self._published(seen, operation, attempt),
            job if isinstance(job, RewriteJob) and job_map is not None else None,
            job_map,
        )

    def _published(self, seen: Seen, operation: str, attempt: int) -> RowMap | None:
        name = attempt_files.row_map(operation, attempt)
        mine = [path for path, add in seen.new.items() if _map_of(add) == name]
        if not mine:
            return None
        maps = self.row_maps()
        commit = present(self.world.log.commit(seen.version))
        is_known = all(quoted in maps for quoted in mine)
        if seen.info["operation"] == "OPTIMIZE":
            vector = partial(dv.load, self.world.store)
            is_known = classify(commit, maps, vector).kind is ChangeKind.MAPPED_REWRITE
        if is_known:
            found = maps[mine[0]]
            assert isinstance(found, RowMap)
            return found
        if self.world.has_rivals(operation) or name in self.world.lost_maps:
            return None  # another process may have put its own in its place
        raise Violation(f"R-5, version {seen.version}: its row map does not know {mine}")

    def row_maps(self) -> PublishedRowMaps:
        return PublishedRowMaps(self.world.store, "simulated", lambda: MOST_ROWS)

    def is_lost(self, commit: Commit) -> bool:
        """Whether it is a rewrite of ours whose map is lost; an attempt that is adopted before its
        commit writes its map again."""
        named = {add.tags.get(TAG_ROW_MAP) for add in commit.adds}
        is_rewrite = commit.info is not None and commit.info.operation == "OPTIMIZE"
        return is_rewrite and any(self.world.is_lost(path) for path in named if path)


def broken(seen: Seen, found: Evidence) -> Iterator[tuple[str, object]]:
    """(invariant, what breaks it or nothing) for each that speaks of such a commit."""
    yield "R-1", r_1_other_number_of_rows(seen, found)
    if any(path in found.edits for path in seen.new):
        yield "R-4", r_4_edit_of_another_state(seen, found)
    if found.row_map is not None:
        yield "R-5", r_5_map_to_files_that_stay(seen, found)
        yield "R-6", r_6_changed_row_with_an_origin(seen, found)
    if found.job is not None:
        if heirs_of(seen, found):
            yield "R-7", r_7_rows_of_an_heir_lost(seen, found)
        yield "R-9", r_9_untouched_group_left(seen, found)
        if found.row_map is not None:
            yield "R-8", r_8_group_with_other_rows(seen, found)


def edited(seen: Seen, edits: Mapping[str, WantedEdit]) -> dict[str, str]:
    """The files that take the places of live ones, which they are edits of."""
    sources = {path: edits[path].source.logged_path for path in seen.new if path in edits}
    return {path: source for path, source in sources.items() if source in seen.live}


def heirs_of(seen: Seen, found: Evidence) -> list[str]:
    """The files that a rewrite took over in places of inputs."""
    assert found.job is not None
    inputs = {file.logged_path for file in found.job.inputs}
    return [path for path in seen.removes if path not in inputs]


def r_1_other_number_of_rows(seen: Seen, found: Evidence) -> object:
    return [
        path
        for path in seen.new
        if path in found.rows and seen.rows_of(path) != len(found.rows[path])
    ]


def r_4_edit_of_another_state(seen: Seen, found: Evidence) -> object:
    """An edit leaves out what is deleted in its file in the version before, and that file goes."""
    return [
        path
        for path, source in edited(seen, found.edits).items()
        if source not in seen.removes
        or not found.dead_before.get(source, frozenset()) <= set(found.edits[path].drops)
    ]


def r_5_map_to_files_that_stay(seen: Seen, found: Evidence) -> object:
    """A visible row comes from a live row of a file that the same commit takes it from."""
    wrong: list[object] = []
    for path, position, source, origin in _origins(seen, found):
        gone = source in seen.removes and origin not in found.dead_before.get(source, frozenset())
        if source in seen.adds:  # a cut
            gone = gone and origin in found.dead_after.get(source, frozenset())
        if not gone:
            wrong.append((path, position, source, origin))
    return wrong


def r_6_changed_row_with_an_origin(seen: Seen, found: Evidence) -> object:
    """A row has the values of its origin, but for those that the map names; they are of the same
    row."""
    assert found.row_map is not None
    wrong: list[object] = []
    for path, position, source, origin in _origins(seen, found):
        here, there = found.rows[path][position], found.rows[source][origin]
        is_changed = position in found.row_map.changed.get(path, ())
        if here != there and not (is_changed and here.rid == there.rid):
            wrong.append((path, position, here, source, origin, there))
    return wrong


def r_7_rows_of_an_heir_lost(seen: Seen, found: Evidence) -> object:
    shown = set[Row]().union(*(found.live_after(path) for path in seen.adds))
    return [
        (path, found.live_before(path) - shown)
        for path in heirs_of(seen, found)
        if not found.live_before(path) <= shown
    ]


def r_8_group_with_other_rows(seen: Seen, found: Evidence) -> object:
    """As many rows leave the files of a group as its new files show."""
    assert found.row_map is not None
    wrong: list[object] = []
    for members, outputs in found.row_map.bins():
        if not set(outputs) & seen.new.keys():
            continue
        go = Counter[Row]()
        for path in members:
            if path in seen.removes:
                stays = found.live_after(path) if path in seen.adds else set[Row]()
                go.update(found.live_before(path) - stays)
        come = Counter(
            row for path in outputs if path in seen.new for row in found.live_after(path)
        )
        if go != come:
            wrong.append((members, [*(go - come)], outputs, [*(come - go)]))
    return wrong


def r_9_untouched_group_left(seen: Seen, found: Evidence) -> object:
    assert found.job is not None
    if found.job_map is None or seen.ours["result"]["reconciled"].get("binsContended"):
        return []
    as_read = {file.logged_path: set(dead_rows(file)) for file in found.job.inputs}
    shown = set(seen.new) | {
        found.edits[path].source.logged_path for path in seen.new if path in found.edits
    }
    return [
        (members, outputs)
        for members, outputs in found.job_map.bins()
        if all(
            path in seen.live and found.dead_before.get(path, frozenset()) == as_read[path]
            for path in members
        )
        and not shown.issuperset(outputs)
    ]


def _origins(seen: Seen, found: Evidence) -> Iterator[tuple[str, int, str, int]]:
    """(file, position, origin's file, position there) of each visible row of the new files that the
    map knows."""
    row_map = present(found.row_map)
    for path in seen.new:
        if path not in row_map.output_paths:
            continue
        hidden = found.dead_after.get(path, frozenset())
        visible = [at for at in range(len(found.rows[path])) if at not in hidden]
        files, places = row_map.trace(path, np.array(visible, dtype=np.int64))
        for at, file, place in zip(visible, files.tolist(), places.tolist(), strict=True):
            yield path, at, row_map.inputs[file].path, place


def _map_of(add: Json) -> str:
    return str((add.get("tags") or {}).get(TAG_ROW_MAP, ""))


def _without(rows: Sequence[Row], dead: Set[int]) -> set[Row]:
    return {row for position, row in enumerate(rows) if position not in dead}
