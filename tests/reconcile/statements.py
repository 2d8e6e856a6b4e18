"""Our operations in `reconcile.world`: each begins, tries, and commits by the rules under test.

Jobs are played here in a few lines: a rewrite lays rows out again and says where they went, a
statement matches rows and writes what they become.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyroaring import BitMap64

from reconcile.obvious import Place
from reconcile.world import Entry, Row, Rows, Serial, World
from tandem.reconcile import rewrite as rewrites
from tandem.reconcile import statement as statements
from tandem.reconcile.matches import KEPT, FileMatches, InsertFile, RoundResult
from tandem.reconcile.merge_sources import matched_sources
from tandem.reconcile.model import ChangeKind, NewRows, RowMaps
from tandem.rowmap.rowmap import MapOutput, RowMap, RowMapBuilder, RowMapIdentity
from tandem.spec.update import Isolation

# --- Rewrites: compaction in any layout, segment rewrite ----------------------------------------

Layout = Callable[[Row], int]
"""The key by which a sort or a z-order arranges the rows of a bin."""


@dataclass(frozen=True)
class Rewrite:
    """A compaction in flight. `places`: what its row map must say."""

    inputs: tuple[rewrites.RewriteInput, ...]
    row_map: RowMap
    vectors: bool = True
    places: tuple[Place, ...] = ()


def start_rewrite(
    world: World,
    paths: Sequence[str],
    per_output: int,
    *,
    layout: Layout | None = None,
    each: bool = False,
    vectors: bool = True,
    takes: Callable[[Row], bool] | None = None,
) -> Rewrite:
    """Rewrite these files of the latest version into outputs of at most `per_output` rows.

    `layout` permutes the rows of a bin; without one they keep their order. `each`: a bin for
    each file, as a segment rewrite has, else one for all. `vectors`: see `rewrites.rewrite`.
    `takes`: the files are cut, and lose the rows of which it is true.
    """
    version = world.latest
    inputs = tuple(
        rewrites.RewriteInput(
            path, world.views[version][path], len(world.files[path]), takes is not None
        )
        for path in paths
    )
    builder = RowMapBuilder(RowMapIdentity("t", "0" * 16, 1, version))
    for file in inputs:
        stays = [p for p, row in enumerate(world.files[file.path]) if takes and not takes(row)]
        builder.add_input(file.path, file.rows, file.dead_at_read | BitMap64(stays))
    obvious: list[Place] = []
    for members in [[path] for path in paths] if each else [list(paths)]:
        rows = [(path, p) for path in members for p in world.live(path, version)]
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
    return Rewrite(inputs, builder.build(), vectors, tuple(obvious))


def _in_order(
    builder: RowMapBuilder, inputs: Sequence[rewrites.RewriteInput], places: Sequence[Place]
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
            _array([inputs.index(place.input) for place in places]),
            _array([place.position for place in places]),
        ),
        destinations=(
            _array([outputs.index(place.output) for place in places]),
            _array([place.output_position for place in places]),
        ),
    )


def try_rewrite(world: World, job: Rewrite) -> rewrites.RewriteDecision:
    view = world.view(world.latest)
    assert view is not None
    more = {} if job.vectors else {"deletion_vectors": False}
    decision: rewrites.RewriteDecision = world.rules.rewrite(job.inputs, view, job.row_map, **more)
    return decision


def finish_rewrite(world: World, job: Rewrite) -> rewrites.RewriteDecision:
    decision = try_rewrite(world, job)
    if decision.superseded:
        return decision
    if decision.masks and not job.vectors:
        world.broken = f"a table without deletion vectors gets some: {decision.masks}"
    view = {p: d for p, d in world.views[-1].items() if p not in decision.removes}
    view.update({path: cut.dead for path, cut in decision.cuts.items()})
    for path in decision.outputs:
        view[path] = decision.masks.get(path, BitMap64())
        world.maps[path] = job.row_map
    world.commit(
        Entry(
            ChangeKind.MAPPED_REWRITE if decision.outputs else ChangeKind.CHANGE,
            frozenset((*decision.removes, *decision.cuts, *decision.outputs)),
            Serial("compaction", lambda rows: rows, passable_from=-1),
            decision.outputs,
        ),
        view,
    )
    return decision


# --- Statements: update, delete, merge ----------------------------------------------------------


@dataclass(frozen=True)
class Statement:
    """`matches(x)`; `change(x, token)` is the new x, None deletes the row; no `change` at all
    deletes every match. The token is that of an execution; only a non-deterministic statement
    looks at it."""

    name: str
    matches: Callable[[int], bool]
    change: Callable[[int, int], int | None] | None = None
    isolation: Isolation = Isolation.WRITE_SERIALIZABLE
    deterministic: bool = True

    def become(self, x: int, token: int) -> int | None:
        return None if self.change is None else self.change(x, token)

    def apply(self, rows: Rows, token: int) -> Rows:
        """The plain meaning of the statement: one row after the other."""
        result = []
        for identity, x in rows:
            if not self.matches(x):
                result.append((identity, x))
            elif (new := self.become(x, token)) is not None:
                result.append((identity, new))
        return result


@dataclass(frozen=True)
class Merge(Statement):
    """Source rows are identified by their `keys`, and match rows whose x is one; what is done
    with a match, and with rows of no key, is what `matches` and `change` say. A key that no row
    has is inserted, if it `inserts`. The token numbers the inserted rows, in every execution.
    `records`: its jobs report the key that each row matched. `small`: rounds are evaluated
    without a job, and so is what it inserts, if other keys match than before."""

    keys: tuple[int, ...] = ()
    inserts: bool = True
    records: bool = True
    small: bool = False

    def missing(self, known: set[int], token: int) -> Rows:
        """What it inserts where rows have these values."""
        missing = [(token + i, key) for i, key in enumerate(self.keys) if key not in known]
        return missing if self.inserts else []

    def apply(self, rows: Rows, token: int) -> Rows:
        return super().apply(rows, token) + self.missing({x for _, x in rows}, token)


@dataclass(frozen=True)
class Running:
    """A statement of ours in flight."""

    statement: Statement
    read_version: int
    token: int
    progress: statements.StatementProgress
    rounds: int = 1


def run_round(
    world: World,
    statement: Statement,
    rows: Mapping[str, Sequence[int]],
    token: int,
    *,
    part: bool = False,
) -> RoundResult:
    """What the job does: match rows, write what they become to files of at most two rows. Of a
    merge, rows of a key that stay are reported, too, and each row's key; a part inserts nothing."""
    records = isinstance(statement, Merge) and statement.records
    keys = statement.keys if isinstance(statement, Merge) and statement.records else ()
    matches: dict[str, FileMatches] = {}
    written: Rows = []
    for path in sorted(rows):
        there = [(p, *world.files[path][p]) for p in rows[path]]
        there = [(p, i, x) for p, i, x in there if statement.matches(x) or x in keys]
        if not there:
            continue
        outputs, places = [], []
        for _, identity, x in there:
            if not statement.matches(x):
                outputs.append(KEPT)
                places.append(-1)
                continue
            new = statement.become(x, token)
            outputs.append(-1 if new is None else len(written) // 2)
            places.append(-1 if new is None else len(written) % 2)
            if new is not None:
                written.append((identity, new))
        sources = np.array([(x, 1) if x in keys else (0, 0) for _, _, x in there], np.int64)
        matches[path] = FileMatches(
            _array([p for p, _, _ in there]),
            _array(outputs),
            _array(places),
            sources if records else None,
        )
    inserts = tuple(_write(world, written))
    if not isinstance(statement, Merge):
        return RoundResult(matches, inserts)
    known = {world.files[path][p][1] for path, found in rows.items() for p in found}
    fresh = () if part else tuple(_write(world, statement.missing(known, token)))
    return RoundResult(matches, inserts, fresh, merged=True, recorded=records)


def _array(values: Sequence[int]) -> np.typing.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def _write(world: World, rows: Rows) -> list[InsertFile]:
    parts = [rows[begin : begin + 2] for begin in range(0, len(rows), 2)]
    return [InsertFile(world.write(part, "u"), len(part)) for part in parts]


def start_statement(world: World, statement: Statement, version: int | None = None) -> Running:
    at = world.latest if version is None else version
    token = len(world.files)
    if isinstance(statement, Merge):
        token, world.next_id = world.next_id, world.next_id + len(statement.keys)
    rows = {path: world.live(path, at) for path in world.views[at]}
    result = run_round(world, statement, rows, token)
    return Running(statement, at, token, statements.start(at, result))


def decide(world: World, running: Running) -> statements.Outcome:
    row_maps: RowMaps = world.maps
    outcome: statements.Outcome = world.rules.decide(
        running.progress,
        world.summaries(running.progress.evaluated_at),
        view=world.view,
        row_maps=row_maps,
        policy=statements.Policy(
            running.statement.isolation,
            running.statement.deterministic,
            max_attempts=99,
            inserts=isinstance(running.statement, Merge) and running.statement.inserts,
        ),
        small=isinstance(running.statement, Merge) and running.statement.small,
    )
    return outcome


def step_statement(world: World, running: Running) -> Running | statements.ReadyToCommit | None:
    """One decision and, if it asks for one, one round. None if the operation failed."""
    outcome = decide(world, running)
    if isinstance(outcome, statements.Evaluate):
        rows = {path: list(wanted) for path, wanted in outcome.rows.items()}
        # Another round is another execution: a random statement draws other numbers.
        result = run_round(world, running.statement, rows, len(world.files), part=True)
        progress = statements.absorb(outcome, result)
        return replace(running, progress=progress, rounds=running.rounds + 1)
    if isinstance(outcome, statements.Reinsert):
        assert isinstance(running.statement, Merge)
        known = {int(key) for key, _ in matched_sources(outcome.progress.matches)}
        missing = _write(world, running.statement.missing(known, running.token))
        progress = statements.inserted(outcome.progress, missing)
        return replace(running, progress=progress, rounds=running.rounds + 1)
    if isinstance(outcome, statements.Reexecute):
        fresh = start_statement(world, running.statement, outcome.at)
        return replace(fresh, read_version=running.read_version, rounds=running.rounds + 1)
    return outcome if isinstance(outcome, statements.ReadyToCommit) else None


def finish_statement(world: World, running: Running) -> statements.ReadyToCommit | None:
    """Rounds until the commit, without a commit in between."""
    while True:
        outcome = step_statement(world, running)
        if outcome is None:
            return None
        if isinstance(outcome, statements.ReadyToCommit):
            commit_statement(world, running, outcome)
            return outcome
        running = outcome


def commit_statement(world: World, running: Running, commit: statements.ReadyToCommit) -> None:
    view = dict(world.views[-1])
    for path, deleted in commit.deletes.items():
        if deleted.is_whole:
            del view[path]
        else:
            view[path] = deleted.dead
    for path in (*commit.inserts, *commit.fresh):
        view[path] = commit.masks.get(path, BitMap64())
    statement, token = running.statement, running.token
    # It read every append up to the version that it was last evaluated at.
    passable: int | None = commit.progress.evaluated_at
    if statement.isolation is Isolation.SERIALIZABLE:
        passable = None
    is_merge = isinstance(statement, Merge)
    if not commit.rows_matched and not is_merge:
        # It is executed all the same in every order, and must match no row there either.
        passable = -1
    world.commit(
        Entry(
            ChangeKind.CHANGE if commit.rows_matched or is_merge else ChangeKind.NEUTRAL,
            frozenset((*commit.deletes, *commit.inserts, *commit.fresh)),
            Serial(
                statement.name,
                lambda rows: statement.apply(rows, token),
                passable_from=passable,
            ),
            new_rows=(
                NewRows.TAKEN
                if not is_merge
                else NewRows.UNKNOWN
                if commit.deletes
                else NewRows.ARRIVED
            ),
        ),
        view,
    )
