"""An attempt of ours in `reconcile.world`: how it carries out what it has decided.

The product's own code does that: it asks for edits where the table has deletion vectors off, keeps
them, and makes the row map of the commit. Only files are played here. What a commit does to the
table is checked against the rows alone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from reconcile.world import Entry, Row, View, Working, World
from tandem.delta.actions import (
    Action,
    AddFile,
    Commit,
    CommitInfo,
    DeletionVector,
    RemoveFile,
)
from tandem.delta.datafiles.edited_files import EditedFile
from tandem.delta.datafiles.writer import WrittenFile
from tandem.jobs.formats import InputFile
from tandem.operations.kinds.heirs import HeirSearch
from tandem.operations.model import CommitContent, Edits, Work
from tandem.operations.session import carry_out
from tandem.reconcile.classify import classify
from tandem.reconcile.model import ChangeKind, CommitSummary, RowMapLike, RowMaps
from tandem.reconcile.outcomes import Attempts
from tandem.reconcile.rewrite import Heir
from tandem.rowmap import binary_format
from tandem.rowmap.rowmap import RowMap
from tandem.spark.jobs.edits import EditMaker, WantedEdit

JOBS_MAP = b"the map of what the job wrote"
"""In place of its bytes, which no step needs."""
_INFO = CommitInfo({"operation": "OPTIMIZE", "engineInfo": "tandem/1", "tandem": {"kind": "-"}})
T = TypeVar("T")


@dataclass(frozen=True)
class Change:
    """A change set that may be put on top of version `at` alone."""

    at: int
    content: CommitContent


@dataclass(frozen=True)
class Attempt:
    """What an attempt keeps between its steps. `jobs_map` is the map of a rewrite's job."""

    number: int
    jobs_map: RowMap | None = None
    edits: Edits = field(default_factory=lambda: Edits(cast(EditMaker, None)))
    heirs: HeirSearch | None = None
    change: Change | None = None

    def may_put(self, world: World) -> bool:
        return self.change is not None and self.change.at == world.latest


# --- Files ---------------------------------------------------------------------------------------


@dataclass
class _Maker:
    """Makes edits in a world, in place of `tandem.spark.jobs.edits.EditMaker`."""

    world: World

    def make(self, wanted: Sequence[WantedEdit]) -> list[EditedFile]:
        return [EditedFile(self._make(each), 0, each.source.size) for each in wanted]

    def _make(self, wanted: WantedEdit) -> WrittenFile:
        files, source = self.world.files, wanted.source.logged_path
        rows = list(files[source])
        assert wanted.source.rows == len(rows)
        for new in wanted.new:
            for position, row in zip(new.positions.tolist(), new.rows.tolist(), strict=True):
                rows[position] = files[new.values.logged_path][row]
        left = [row for position, row in enumerate(rows) if position not in wanted.drops]
        path = self.world.write(left, "e")
        return WrittenFile(path, len(left), len(left), 0, "")


@lru_cache(100_000)
def _table(rows: tuple[Row, ...]) -> pa.Table:
    return pa.table(
        {
            "identity": pa.array([identity for identity, _ in rows], pa.int64()),
            "x": pa.array([x for _, x in rows], pa.int64()),
        }
    )


@dataclass
class _History:
    """A `CommitHistory` of a world."""

    world: World

    @property
    def row_maps(self) -> RowMaps:
        return self.world.maps

    def since(self, version: int, _latest: object) -> list[CommitSummary]:
        return self.world.summaries(version)


@dataclass(frozen=True)
class _View(Working):
    snapshot: Any = field(default_factory=lambda: SimpleNamespace(version=0))


def _forked(thing: T) -> T:
    """A copy that does not share what it remembers: another history may go on from here."""
    found = copy.copy(thing)
    names = getattr(thing, "__slots__", None) or vars(thing)
    for name in names:
        value = getattr(thing, name)
        if isinstance(value, dict):
            fork = {k: list(v) if isinstance(v, list) else v for k, v in value.items()}
            setattr(found, name, fork)
    return found


# --- Heirs ---------------------------------------------------------------------------------------


def heirs_of(
    world: World, attempt: Attempt, inputs: Mapping[str, InputFile], since: int, gone: list[str]
) -> tuple[Attempt, tuple[Heir, ...]]:
    """The heirs of the inputs that are gone at the latest version, as a rewrite looks for them."""
    if not gone:
        return attempt, ()
    assert attempt.jobs_map is not None
    history = cast(Any, _History(world))

    def read(file: InputFile, _columns: Sequence[str] | None) -> pa.Table:
        return _table(world.files[file.logged_path])

    if attempt.heirs is None:
        search = HeirSearch(read, history, since, inputs, attempt.jobs_map, lambda version: version)
    else:
        search = _forked(attempt.heirs)
        vars(search).update(_history=history, _read_file=read)
    view = _View(world.files, world.views[-1])
    found = search.of(gone, cast(Any, view), by_content=not world.vectors)
    return Attempt(attempt.number, attempt.jobs_map, attempt.edits, search, attempt.change), found


# --- Carrying out --------------------------------------------------------------------------------


def carry(world: World, attempt: Attempt, content: CommitContent) -> Attempt:
    """Make the edits that the change set needs and that do not exist, if it needs any, and keep
    what is to be put."""
    edits = _forked(attempt.edits)
    edits.maker = cast(EditMaker, _Maker(world))
    plan = SimpleNamespace(
        operation_id=f"{attempt.number:016}", attempt=1, table_id="t", read_version=0
    )
    work = cast(
        Work,
        SimpleNamespace(
            change=content,
            edits=edits,
            frozen=(plan, None),
            edit_attempts=Attempts(),
            by_edits=not world.vectors,
        ),
    )
    if world.vectors:
        content = carry_out.by_vectors(work, content)
    else:
        carry_out.make_edits(work)
        content = carry_out.by_edits(work, content)
    change = Change(world.latest, content)
    return Attempt(attempt.number, attempt.jobs_map, edits, attempt.heirs, change)


def row_map_of(attempt: Attempt, content: CommitContent) -> RowMap | None:
    """The map that a commit publishes."""
    if content.row_map == JOBS_MAP:
        return attempt.jobs_map
    return binary_format.from_bytes(content.row_map) if content.row_map else None


def put(world: World, attempt: Attempt, entry: Entry, *, rewrites: bool = False) -> None:
    """Commit a change set on top of the version that it is for. `entry` says what a serial
    execution has; a commit that `rewrites` is classified by its actions."""
    assert attempt.change is not None
    content = attempt.change.content
    before = world.views[-1]
    view = {p: d for p, d in before.items() if p not in {add.path for add in content.removes}}
    for file in (*content.marked, *content.outputs):
        view[file.add.path] = file.dead or BitMap64()
    row_map = row_map_of(attempt, content)
    added = [output.add.path for output in content.outputs]
    if row_map is not None:
        mapped = [path for path in added if path in row_map.output_paths]
        world.maps.update(dict.fromkeys(mapped, row_map))
        if not rewrites:
            world.edited.update((path, row_map.sources(path)[0]) for path in mapped)
    files = frozenset((*(add.path for add in content.removes), *added)) | {
        file.add.path for file in content.marked
    }
    kind = entry.kind
    if rewrites:
        kind = _kind(world, content, before)
    world.commit(
        Entry(
            kind,
            files,
            entry.serial,
            tuple(added) if kind is ChangeKind.MAPPED_REWRITE else (),
            new_rows=entry.new_rows,
        ),
        view,
    )
    _check_commit(world, content, row_map, before)
    if rewrites and added and kind is not ChangeKind.MAPPED_REWRITE:
        world.break_with("others take a rewrite for a change")
    if rewrites and world.rows_at(world.latest - 1) != world.rows_at(world.latest):
        world.break_with("a rewrite changed rows (I-2, R-8)")


def _kind(world: World, content: CommitContent, before: View) -> ChangeKind:
    """What others take a rewrite for: a rewrite, or a change."""
    vectors: dict[str, BitMap64] = {}

    def vector(dead: BitMap64 | None) -> DeletionVector | None:
        if not dead:
            return None
        number = str(len(vectors))
        vectors[number] = dead
        return DeletionVector("u", number, 1, len(dead))

    gone = [*(add.path for add in content.removes), *(file.add.path for file in content.marked)]
    actions: list[Action] = [
        *(
            AddFile(o.add.path, {}, 1, 0, False, deletion_vector=vector(o.dead))
            for o in (*content.outputs, *content.marked)
        ),
        *(RemoveFile(path, 0, False, deletion_vector=vector(before[path])) for path in gone),
        _INFO,
    ]
    commit = Commit(world.latest + 1, 0, tuple(actions))
    return classify(commit, world.maps, lambda dv: vectors[dv.path_or_inline]).kind


# --- What no commit may do -----------------------------------------------------------------------


def _check_commit(
    world: World, content: CommitContent, row_map: RowMapLike | None, before: View
) -> None:
    view = world.views[-1]
    for path, dead in view.items():
        if not world.vectors and dead != before.get(path, BitMap64()):
            world.break_with(f"{path} gets a deletion vector, and they are off (R-2)")
        if len(dead) == len(world.files[path]) and path not in before:
            world.break_with(f"{path} has no live row")
    if row_map is None:
        return
    for output in content.outputs:
        path = output.add.path
        if path not in row_map.output_paths:
            continue
        changed = row_map.changed.get(path, BitMap64())
        live = world.live(path)
        numbers, origins = row_map.trace(path, np.array(live, np.int64))
        sources = [row_map.inputs[number].path for number in numbers.tolist()]
        for position, source, origin in zip(live, sources, origins.tolist(), strict=True):
            if not _leaves(source, origin, before, view):
                what = f"row {position} of {path} comes from row {origin} of {source}"
                world.break_with(f"{what}, which does not leave it in this commit (R-5)")
            same = world.files[path][position] == world.files[source][origin]
            if position not in changed and not same:
                world.break_with(f"row {position} of {path} has new values unnoticed (R-6)")


def _leaves(path: str, position: int, before: View, after: View) -> bool:
    was_live = path in before and position not in before[path]
    return was_live and (path not in after or position in after[path])
