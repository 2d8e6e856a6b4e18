"""A table small enough to understand: rows with an identity, and a log of who did what.

The files, deletion vectors and row maps are real values of `tandem`, and our operations go
through its rules; what rows *should* be there is worked out separately in `serial`, by
executing the same operations one after the other on plain lists. A row is (identity, x): an
update changes x and keeps the identity, so lost, doubled and resurrected rows can be told
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pyroaring import BitMap64

from tandem.reconcile import rewrite as rewrites
from tandem.reconcile import statement as statements
from tandem.reconcile.classify import gap
from tandem.reconcile.matches import FileMatches, InsertFile, RoundResult
from tandem.reconcile.model import ChangeKind, CommitSummary, FileState, FileView, RowMaps
from tandem.reconcile.rowmap import RowMap, RowMapBuilder, RowMapIdentity
from tandem.reconcile.rules import Isolation

Row = tuple[int, int]
Rows = list[Row]


@dataclass(frozen=True)
class Statement:
    """`matches(x)`; `change(x, token)`, or None to delete. The token is that of an execution;
    only a non-deterministic statement looks at it."""

    name: str
    matches: Callable[[int], bool]
    change: Callable[[int, int], int] | None = None
    isolation: Isolation = Isolation.WRITE_SERIALIZABLE
    deterministic: bool = True

    def apply(self, rows: Rows, token: int) -> Rows:
        """The statement as everybody understands it: one row after the other."""
        result = []
        for identity, x in rows:
            if not self.matches(x):
                result.append((identity, x))
            elif self.change is not None:
                result.append((identity, self.change(x, token)))
        return result


@dataclass(frozen=True)
class Serial:
    """A commit as a serial execution sees it.

    `effect` on all rows; `append` marks a blind append; `passable_from`: a blind append of a
    later version than this may be put behind it (None: none may).
    """

    name: str
    effect: Callable[[Rows], Rows]
    append: bool = False
    passable_from: int | None = None


@dataclass(frozen=True)
class Entry:
    kind: ChangeKind
    files: frozenset[str]
    serial: Serial
    outputs: tuple[str, ...] = ()  # of a mapped rewrite
    who: str = ""


View = dict[str, BitMap64]


@dataclass(frozen=True)
class Working:
    """A `FileView` of one version."""

    files: Mapping[str, Sequence[Row]]
    dead: View

    def get(self, path: str) -> FileState | None:
        dead = self.dead.get(path)
        return None if dead is None else FileState(path, len(self.files[path]), dead)


@dataclass(frozen=True)
class Rules:
    """The rules under test. The naive ones that must be caught are in `test_search`."""

    rewrite: Callable[..., rewrites.RewriteDecision] = rewrites.rewrite
    decide: Callable[..., statements.Outcome] = statements.decide


@dataclass
class World:
    rules: Rules
    files: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    log: list[Entry] = field(default_factory=list)  # log[v] made views[v]; log[0] the table
    maps: dict[str, RowMap] = field(default_factory=dict)
    first_in_log: int = 0
    lost: frozenset[int] = frozenset()  # versions that nobody can read any more
    next_id: int = 100
    next_file: int = 0

    def copy(self) -> World:
        return World(
            self.rules,
            dict(self.files),
            list(self.views),
            list(self.log),
            dict(self.maps),
            self.first_in_log,
            self.lost,
            self.next_id,
            self.next_file,
        )

    # The log.

    @property
    def latest(self) -> int:
        return len(self.views) - 1

    def view(self, version: int) -> FileView | None:
        return None if version in self.lost else Working(self.files, self.views[version])

    def commit(self, entry: Entry, view: View) -> None:
        self.views.append(view)
        self.log.append(entry)

    def rows_at(self, version: int) -> Rows:
        return sorted(
            row
            for path, dead in self.views[version].items()
            for position, row in enumerate(self.files[path])
            if position not in dead
        )

    def write(self, rows: Sequence[Row], prefix: str = "f") -> str:
        self.next_file += 1
        path = f"{prefix}{self.next_file}"
        self.files[path] = tuple(rows)
        return path

    def live(self, path: str, version: int = -1) -> list[int]:
        dead = self.views[version][path]
        return [p for p in range(len(self.files[path])) if p not in dead]

    def summaries(self, since: int) -> list[CommitSummary]:
        found = []
        version = since + 1
        if version < self.first_in_log:
            last = self.first_in_log - 1
            old, new = self.views[since], self.views[last]
            found.append(gap(last, frozenset(p for p in {*old, *new} if old.get(p) != new.get(p))))
            version = last + 1
        for number in range(version, self.latest + 1):
            entry = self.log[number]
            kind = entry.kind
            if kind is ChangeKind.MAPPED_REWRITE and any(o not in self.maps for o in entry.outputs):
                kind = ChangeKind.CHANGE
            found.append(CommitSummary(number, kind, entry.files, entry.who))
        return found


def initial(rules: Rules) -> World:
    """Three files, five live rows, one row deleted already."""
    world = World(rules)
    a = world.write([(0, 1), (1, 2), (2, 3)])
    b = world.write([(3, 5), (4, 9), (5, 4)])
    c = world.write([(6, 6)])
    view = {a: BitMap64(), b: BitMap64([1]), c: BitMap64()}
    rows = [(0, 1), (1, 2), (2, 3), (3, 5), (5, 4), (6, 6)]
    world.commit(
        Entry(ChangeKind.CHANGE, frozenset(), Serial("create", lambda _: list(rows))), view
    )
    return world


# --- Our operations ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Rewrite:
    """A compaction in flight."""

    inputs: tuple[rewrites.RewriteInput, ...]
    row_map: RowMap


def start_rewrite(world: World, paths: Sequence[str], per_output: int) -> Rewrite:
    """Rewrite these files of the latest version into outputs of at most `per_output` rows."""
    version = world.latest
    builder = RowMapBuilder(RowMapIdentity("t", f"{len(world.files):016x}", 1, version))
    inputs = []
    written: list[Row] = []
    outputs: dict[str, list[Row]] = {}
    current = ""
    for path in paths:
        dead = world.views[version][path]
        inputs.append(rewrites.RewriteInput(path, dead, len(world.files[path])))
        builder.add_input(path, len(world.files[path]), dead)
        start = 0
        for position in world.live(path, version):
            if not current or len(outputs[current]) == per_output:
                if current and position > start:
                    builder.add_run(path, start, position, current)
                start = position
                current = world.write([], "o")
                outputs[current] = []
            outputs[current].append(world.files[path][position])
            written.append(world.files[path][position])
        if current and start < len(world.files[path]):
            builder.add_run(path, start, len(world.files[path]), current)
    for path, rows in outputs.items():
        world.files[path] = tuple(rows)
    return Rewrite(tuple(inputs), builder.build())


def try_rewrite(world: World, job: Rewrite) -> rewrites.RewriteDecision:
    view = world.view(world.latest)
    assert view is not None
    decision: rewrites.RewriteDecision = world.rules.rewrite(job.inputs, view, job.row_map)
    return decision


def finish_rewrite(world: World, job: Rewrite) -> rewrites.RewriteDecision:
    decision = try_rewrite(world, job)
    if decision.superseded:
        return decision
    view = {p: d for p, d in world.views[-1].items() if p not in decision.removes}
    for path in decision.outputs:
        view[path] = decision.masks.get(path, BitMap64())
        world.maps[path] = job.row_map
    world.commit(
        Entry(
            ChangeKind.MAPPED_REWRITE if decision.outputs else ChangeKind.CHANGE,
            frozenset((*decision.removes, *decision.outputs)),
            Serial("compaction", lambda rows: rows, passable_from=-1),
            decision.outputs,
        ),
        view,
    )
    return decision


@dataclass(frozen=True)
class Running:
    """A statement of ours in flight."""

    statement: Statement
    read_version: int
    token: int
    progress: statements.StatementProgress
    rounds: int = 1


def run_round(
    world: World, statement: Statement, rows: Mapping[str, Sequence[int]], token: int
) -> RoundResult:
    """What the job does: match rows, write what they become to files of at most two rows."""
    matches: dict[str, FileMatches] = {}
    written: Rows = []
    for path in sorted(rows):
        found = [p for p in rows[path] if statement.matches(world.files[path][p][1])]
        if not found:
            continue
        places = np.full(len(found), -1, dtype=np.int64)
        outputs = places
        if statement.change is not None:
            places = np.arange(len(written), len(written) + len(found))
            outputs, places = places // 2, places % 2
            for position in found:
                identity, x = world.files[path][position]
                written.append((identity, statement.change(x, token)))
        matches[path] = FileMatches(np.array(found, dtype=np.int64), outputs, places)
    inserts = []
    for begin in range(0, len(written), 2):
        part = written[begin : begin + 2]
        inserts.append(InsertFile(world.write(part, "u"), len(part)))
    return RoundResult(matches, tuple(inserts))


def start_statement(world: World, statement: Statement, version: int | None = None) -> Running:
    at = world.latest if version is None else version
    token = len(world.files)
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
            running.statement.isolation, running.statement.deterministic, max_attempts=99
        ),
    )
    return outcome


def step_statement(world: World, running: Running) -> Running | statements.Commit | None:
    """One decision and, if it asks for one, one round. None if the operation failed."""
    outcome = decide(world, running)
    if isinstance(outcome, statements.Evaluate):
        rows = {path: list(wanted) for path, wanted in outcome.rows.items()}
        # Another round is another execution: a random statement draws other numbers.
        result = run_round(world, running.statement, rows, len(world.files))
        progress = statements.absorb(outcome, result)
        return Running(
            running.statement, running.read_version, running.token, progress, running.rounds + 1
        )
    if isinstance(outcome, statements.Reexecute):
        fresh = start_statement(world, running.statement, outcome.at)
        return Running(
            running.statement,
            running.read_version,
            fresh.token,
            fresh.progress,
            running.rounds + 1,
        )
    return outcome if isinstance(outcome, statements.Commit) else None


def finish_statement(world: World, running: Running) -> statements.Commit | None:
    """Rounds until the commit, with nobody in between."""
    while True:
        outcome = step_statement(world, running)
        if outcome is None:
            return None
        if isinstance(outcome, statements.Commit):
            commit_statement(world, running, outcome)
            return outcome
        running = outcome


def commit_statement(world: World, running: Running, commit: statements.Commit) -> None:
    view = dict(world.views[-1])
    for path, deleted in commit.deletes.items():
        if deleted.is_whole:
            del view[path]
        else:
            view[path] = deleted.dead
    for path in commit.inserts:
        view[path] = commit.masks.get(path, BitMap64())
    statement, token = running.statement, running.token
    passable: int | None = running.read_version
    if statement.isolation is Isolation.SERIALIZABLE:
        passable = None
    if not commit.rows_matched:
        # It is executed all the same in every order, and must come to nothing there too.
        passable = -1
    world.commit(
        Entry(
            ChangeKind.CHANGE if commit.rows_matched else ChangeKind.NEUTRAL,
            frozenset((*commit.deletes, *commit.inserts)),
            Serial(
                statement.name,
                lambda rows: statement.apply(rows, token),
                passable_from=passable,
            ),
        ),
        view,
    )


# --- The reference ---------------------------------------------------------------------------


def allowed_states(log: Sequence[Entry]) -> list[Rows]:
    """Final rows of every allowed serial order.

    Non-appends in commit order; a blind append may move later, never earlier, and never past
    an operation that read it, a Serializable one, or a restore. (A statement that matched
    nothing reads nothing that anybody could tell, of whatever isolation.)
    """
    orders: list[list[Serial]] = [[]]
    # Built from the end: an append may be put before or behind each operation that it may pass.
    for version in range(len(log) - 1, -1, -1):
        serial = log[version].serial
        extended: list[list[Serial]] = []
        for order in orders:
            extended.append([serial, *order])
            if not serial.append:
                continue
            for place, other in enumerate(order):
                if other.append:
                    continue
                if other.passable_from is None or other.passable_from >= version:
                    break
                extended.append([*order[: place + 1], serial, *order[place + 1 :]])
        orders = extended
    states = []
    for order in orders:
        rows: Rows = []
        for serial in order:
            rows = serial.effect(rows)
        states.append(sorted(rows))
    return states


def problem(world: World) -> str:
    """ "" if the table's rows are those of an allowed serial order, else what is wrong."""
    found = world.rows_at(world.latest)
    states = allowed_states(world.log)
    if found in states:
        return ""
    ids = [identity for identity, _ in found]
    wanted = [identity for identity, _ in states[0]]
    doubled = sorted({i for i in ids if ids.count(i) > 1})
    missing = sorted(set(wanted) - set(ids))
    extra = sorted(set(ids) - set(wanted))
    return (
        f"rows {found} are of no serial order, such as {states[0]}; "
        f"doubled {doubled}, lost {missing}, resurrected {extra}"
    )
