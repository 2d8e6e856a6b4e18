"""Our rewrites in `reconcile.world`: compaction in any layout, segment rewrite, cut.

A job is played here in a few lines: it lays rows out again and says where they went.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from pyroaring import BitMap64

from reconcile.attempt import JOBS_MAP, Attempt, carry, heirs_of, put
from reconcile.obvious import Place
from reconcile.world import Entry, Row, Serial, View, Working, World
from tandem.delta.actions import AddFile
from tandem.jobs.formats import InputFile
from tandem.operations.kinds.job_files import changes_of, input_file
from tandem.operations.model import CommitContent, OutputFileChange
from tandem.reconcile import rewrite as rule
from tandem.reconcile.model import ChangeKind
from tandem.reconcile.published import CommittedRewrite
from tandem.rowmap.rowmap import MapOutput, RowMap, RowMapBuilder, RowMapIdentity
from tandem.spark.jobs.edits import ReplacedRows

Layout = Callable[[Row], int]
"""The key by which a sort or a z-order arranges the rows of a bin."""


@dataclass(frozen=True)
class Rewrite:
    """A compaction in flight that read version `since`. `places`: what its row map must say.
    `splits`: each of its edited outputs becomes two files."""

    inputs: tuple[rule.RewriteInput, ...]
    row_map: RowMap
    attempt: Attempt
    since: int
    places: tuple[Place, ...] = ()
    splits: bool = False
    moved: rule.Moved = field(default_factory=dict)
    decision: rule.RewriteDecision | None = None
    is_done: bool = False


def start_rewrite(
    world: World,
    paths: Sequence[str],
    per_output: int,
    *,
    layout: Layout | None = None,
    each: bool = False,
    takes: Callable[[Row], bool] | None = None,
    copies: bool = False,
    splits: bool = False,
) -> Rewrite:
    """Rewrite these files of the latest version into outputs of at most `per_output` rows.

    `layout` permutes the rows of a bin; without one they keep their order. `each`: a bin for
    each file, as a segment rewrite has, else one for all. `takes`: the files are cut, and lose the
    rows of which it is true. `copies`: deleted rows are copied with the others, if the table has
    deletion vectors on.
    """
    version = world.latest
    dead = {path: world.views[version][path] for path in paths}
    kept = dead if copies and world.vectors else {}
    inputs = tuple(
        rule.RewriteInput(
            path,
            BitMap64() if path in kept else dead[path],
            len(world.files[path]),
            takes is not None,
            kept.get(path, BitMap64()),
        )
        for path in paths
    )
    builder = RowMapBuilder(RowMapIdentity("t", "0" * 16, 1, version))
    for file in inputs:
        stays = [p for p, row in enumerate(world.files[file.path]) if takes and not takes(row)]
        builder.add_input(file.path, file.rows, file.dead_at_read | BitMap64(stays))
    obvious: list[Place] = []
    left_out = {file.path: file.dead_at_read for file in inputs}
    for members in [[path] for path in paths] if each else [list(paths)]:
        rows = [
            (path, p)
            for path in members
            for p in range(len(world.files[path]))
            if p not in left_out[path]
        ]
        if takes is not None:
            rows = [(path, p) for path, p in rows if takes(world.files[path][p])]
        if layout is not None:
            rows.sort(key=lambda at: layout(world.files[at[0]][at[1]]))
        places: list[Place] = []
        for begin in range(0, len(rows), per_output):
            part = rows[begin : begin + per_output]
            written = world.write([world.files[path][p] for path, p in part], "o")
            places += [Place(path, p, written, i) for i, (path, p) in enumerate(part)]
        if layout is None:
            _in_order(builder, [file for file in inputs if file.path in members], places)
        elif places:
            _permuted(builder, members, places)
        obvious += places
    row_map = builder.build()
    attempt = Attempt(world.next_file, row_map)
    return Rewrite(inputs, row_map, attempt, version, tuple(obvious), splits)


def _in_order(
    builder: RowMapBuilder, inputs: Sequence[rule.RewriteInput], places: Sequence[Place]
) -> None:
    """Runs as a task writes them: one for each stretch that stays together."""
    for file in inputs:
        mine = [place for place in places if place.input == file.path]
        starts = [i for i, place in enumerate(mine) if i == 0 or mine[i - 1].output != place.output]
        for start, end in zip(starts, [*starts[1:], len(mine)], strict=bool(mine)):
            first = 0 if start == 0 else mine[start].position
            last = file.rows if end == len(mine) else mine[end].position
            builder.add_run(file.path, first, last, mine[start].output)


def _permuted(builder: RowMapBuilder, inputs: Sequence[str], places: Sequence[Place]) -> None:
    """As the driver makes it from what the job says of each row."""
    outputs = list(dict.fromkeys(place.output for place in places))
    rows = [sum(1 for place in places if place.output == output) for output in outputs]
    builder.add_sorted(
        inputs,
        [MapOutput(path, count) for path, count in zip(outputs, rows, strict=True)],
        origins=(
            np.array([inputs.index(place.input) for place in places]),
            np.array([place.position for place in places]),
        ),
        destinations=(
            np.array([outputs.index(place.output) for place in places]),
            np.array([place.output_position for place in places]),
        ),
    )


def decide_rewrite(world: World, job: Rewrite) -> Rewrite:
    """What it commits on top of the latest version, with the edits for that."""
    view = world.view(world.latest)
    assert view is not None
    gone = [file.path for file in job.inputs if not file.cut and view.get(file.path) is None]
    files = {
        file.path: InputFile(logged_path=file.path, size=file.rows, rows=file.rows)
        for file in job.inputs
    }
    attempt, heirs = heirs_of(world, job.attempt, files, job.since, gone)
    moved = dict(job.moved)
    decision: rule.RewriteDecision = rule.rewrite(
        job.inputs,
        view,
        job.row_map,
        deletion_vectors=world.vectors,
        moved=moved,
        heirs=heirs,
    )
    job = replace(job, attempt=attempt, moved=moved, decision=decision)
    if decision.superseded:
        require_complete(world, job, world.views[-1])
        return replace(job, is_done=True)
    return replace(job, attempt=carry(world, attempt, _content(view, job, decision)))


def _content(view: Working, job: Rewrite, decision: rule.RewriteDecision) -> CommitContent:
    """The commit of a decision, as `RewriteKind` makes it."""
    outputs = []
    for path in decision.outputs:
        rows = job.row_map.output(path).rows
        new = tuple(
            ReplacedRows(input_file(cast(Any, view), each.heir, None), each.positions, each.rows)
            for each in decision.new_rows.get(path, ())
        )
        add = AddFile(path, {}, rows, 0, data_change=False)
        cut_at = _borders(job.row_map, path) if job.splits else ()
        outputs.append(
            OutputFileChange(add, rows, decision.masks.get(path), None, new, None, cut_at)
        )
    removes = (view.add(path) for path in decision.removes)
    return CommitContent(
        "OPTIMIZE",
        {},
        tuple(outputs),
        tuple(add for add in removes if add is not None),
        changes_of(cast(Any, view), decision.cuts).marked,
        data_change=False,
        row_map=JOBS_MAP if outputs else b"",
        rewrite=CommittedRewrite(job.row_map, decision, view),
    )


def _borders(row_map: RowMap, path: str) -> tuple[int, ...]:
    """The middle one of the borders of inputs in an output."""
    number = row_map.output_number(path)
    found = sorted(run.out_start for run in row_map.runs if run.output == number and run.out_start)
    return (found[len(found) // 2],) if found else ()


def put_rewrite(world: World, job: Rewrite) -> Rewrite:
    before = world.views[-1]
    serial = Serial("compaction", lambda rows: rows, passable_from=-1)
    put(world, job.attempt, Entry(ChangeKind.CHANGE, frozenset(), serial), rewrites=True)
    require_complete(world, job, before)
    return replace(job, is_done=True)


def step_rewrite(world: World, job: Rewrite) -> Rewrite:
    """Put what was decided, if no commit has been made since; else decide again."""
    if job.is_done:
        return job
    return put_rewrite(world, job) if job.attempt.may_put(world) else decide_rewrite(world, job)


def finish_rewrite(world: World, job: Rewrite) -> rule.RewriteDecision:
    """What is left to do, without a commit in between: two steps at most."""
    for _ in range(2):
        job = step_rewrite(world, job)
    if not job.is_done:
        world.break_with("a rewrite does not end")
    assert job.decision is not None
    return job.decision


def require_complete(world: World, job: Rewrite, before: View) -> None:
    """No input stays that could go, and, without deletion vectors, no heir of one by row maps;
    except of a group of which only one of several is left, with nothing to purge."""
    after = world.views[-1]
    if world.first_in_log > job.since + 1:
        return  # what became of an input is not known any more
    taken = {(place.input, place.position) for place in job.places}
    for members, _ in job.row_map.bins():
        left = {}
        for file in job.inputs:
            if file.path not in members or file.cut:
                continue
            if file.path in before:
                if before[file.path] >= file.dead_at_read:
                    left[file.path] = file.path
                continue
            for path in () if world.vectors else before:
                rows = _heir_rows(world, path, file.path)
                if rows is None:
                    continue
                alive = {origin for p, origin in rows.items() if p not in before[path]}
                if alive and {(file.path, origin) for origin in alive} <= taken:
                    left[file.path] = path
        alone = not world.vectors and len(members) > 1 and len(left) == 1
        if alone and all(not before[path] or path not in members for path in left.values()):
            continue
        for path in left.values():
            if path in after:
                world.break_with(f"{path} stays, and could go")


def _heir_rows(world: World, path: str, source: str) -> dict[int, int] | None:
    """The rows of a file by their origin in another one, from which our statements edited it; None
    if they did not, or if that is not known any more."""
    places = np.arange(len(world.files[path]))
    rows = places
    while path != source:
        row_map = world.maps.get(path)
        if row_map is None or path not in world.edited:
            return None
        _, rows = row_map.trace(path, rows)
        path = world.edited[path]
    return dict(zip(places.tolist(), rows.tolist(), strict=True))
