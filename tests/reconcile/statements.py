"""Our statements in `reconcile.world`: update, delete, merge.

A job is played here in a few lines: it matches rows and writes what they become.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from pyroaring import BitMap64

from reconcile.attempt import Attempt, carry, put
from reconcile.world import Entry, Row, Rows, Serial, Working, World
from support.present import present
from tandem.delta.actions import AddFile
from tandem.delta.change_feed import ChangeType
from tandem.jobs.formats import InputFile
from tandem.operations.kinds.job_files import changes_of
from tandem.operations.model import CommitContent, OutputFileChange
from tandem.reconcile import feed
from tandem.reconcile import statement as rule
from tandem.reconcile.matches import KEPT, FileMatches, InsertFile, RoundResult, matched_sources
from tandem.reconcile.model import ChangeKind, NewRows, RowMaps
from tandem.reconcile.outcomes import UpdatedRows
from tandem.spark.jobs.edits import ReplacedRows
from tandem.spec.update import Isolation


@dataclass(frozen=True)
class Statement:
    """`matches(x)`; `change(x, token)` is the new x, None deletes the row; no `change` at all
    deletes every match. The token is that of an execution; only a non-deterministic statement
    looks at it. `moves`: updated rows leave their partition."""

    name: str
    matches: Callable[[int], bool]
    change: Callable[[int, int], int | None] | None = None
    isolation: Isolation = Isolation.WRITE_SERIALIZABLE
    deterministic: bool = True
    moves: bool = False

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
    """Source rows are identified by their `keys`, and match rows whose key (`key_of` x) is one;
    what is done with a match, and with rows of no key, is what `matches` and `change` say. A key
    that no row has is inserted, if it `inserts`. The token numbers the inserted rows, in every
    execution. `records`: its jobs report the key that each row matched. `small`: rounds are
    evaluated without a job, and so is what it inserts, if other keys match than before."""

    keys: tuple[int, ...] = ()
    key_of: Callable[[int], int] = lambda x: x
    inserts: bool = True
    records: bool = True
    small: bool = False

    def missing(self, known: set[int], token: int) -> Rows:
        """What it inserts where rows have these values."""
        missing = [(token + i, key) for i, key in enumerate(self.keys) if key not in known]
        return missing if self.inserts else []

    def apply(self, rows: Rows, token: int) -> Rows:
        known = {self.key_of(x) for _, x in rows}
        return super().apply(rows, token) + self.missing(known, token)


@dataclass(frozen=True)
class Running:
    """A statement of ours in flight. `agreed` is the outcome of its latest decision, if that was
    to commit; `committed` what it did in the end."""

    statement: Statement
    read_version: int
    token: int
    progress: rule.StatementProgress
    rounds: int = 1
    attempt: Attempt = field(default_factory=lambda: Attempt(0))
    agreed: rule.ReadyToCommit | None = None
    committed: rule.ReadyToCommit | None = None
    is_done: bool = False


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
    key_of = statement.key_of if isinstance(statement, Merge) else int
    matches: dict[str, FileMatches] = {}
    written: Rows = []
    for path in sorted(rows):
        there = [(p, *world.files[path][p]) for p in rows[path]]
        there = [(p, i, x) for p, i, x in there if statement.matches(x) or key_of(x) in keys]
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
        found = [key_of(x) for _, _, x in there]
        sources = np.array([(key, 1) if key in keys else (0, 0) for key in found], np.int64)
        matches[path] = FileMatches(
            _array([p for p, _, _ in there]),
            _array(outputs),
            _array(places),
            sources if records else None,
        )
    inserts = tuple(_write(world, written))
    if not isinstance(statement, Merge):
        return RoundResult(matches, inserts)
    known = {key_of(world.files[path][p][1]) for path, found in rows.items() for p in found}
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
    attempt = Attempt(world.next_file)
    return Running(statement, at, token, rule.start(at, result), attempt=attempt)


def decide(world: World, running: Running) -> rule.Outcome:
    row_maps: RowMaps = world.maps
    outcome: rule.Outcome = rule.decide(
        running.progress,
        world.summaries(running.progress.evaluated_at),
        view=world.view,
        row_maps=row_maps,
        policy=rule.Policy(
            running.statement.isolation,
            running.statement.deterministic,
            max_attempts=99,
            inserts=isinstance(running.statement, Merge) and running.statement.inserts,
        ),
        small=isinstance(running.statement, Merge) and running.statement.small,
    )
    return outcome


def step_statement(world: World, running: Running) -> Running | rule.ReadyToCommit | None:
    """One decision and, if it asks for one, one round. None if the operation failed."""
    outcome = decide(world, running)
    if isinstance(outcome, rule.Evaluate):
        rows = {path: list(wanted) for path, wanted in outcome.rows.items()}
        # Another round is another execution: a random statement draws other numbers.
        result = run_round(world, running.statement, rows, len(world.files), part=True)
        progress = rule.absorb(outcome, result)
        return replace(running, progress=progress, rounds=running.rounds + 1)
    if isinstance(outcome, rule.Reinsert):
        assert isinstance(running.statement, Merge)
        known = {int(key) for key, _ in matched_sources(outcome.progress.matches)}
        missing = _write(world, running.statement.missing(known, running.token))
        progress = rule.inserted(outcome.progress, missing)
        return replace(running, progress=progress, rounds=running.rounds + 1)
    if isinstance(outcome, rule.Reexecute):
        fresh = start_statement(world, running.statement, outcome.at)
        return replace(fresh, read_version=running.read_version, rounds=running.rounds + 1)
    return outcome if isinstance(outcome, rule.ReadyToCommit) else None


def advance_statement(world: World, running: Running) -> Running:
    """Put what was agreed on, if no commit has been made since; else decide again, with all the
    rounds and edits that this takes."""
    if running.is_done:
        return running
    if running.attempt.may_put(world):
        return _put_statement(world, running)
    while True:
        outcome = step_statement(world, running)
        if outcome is None:
            return replace(running, is_done=True)
        if isinstance(outcome, rule.ReadyToCommit):
            return carry_statement(world, running, outcome)
        running = outcome


def finish_statement(world: World, running: Running) -> rule.ReadyToCommit | None:
    """What is left to do, without a commit in between: two steps at most."""
    for _ in range(2):
        running = advance_statement(world, running)
    if not running.is_done:
        world.break_with("a statement does not end")
    return running.committed


def carry_statement(world: World, running: Running, agreed: rule.ReadyToCommit) -> Running:
    """What it agreed to commit on top of the latest version, with the edits for that."""
    content = _content_of_statement(world, running.statement, agreed)
    if running.statement.moves and any(file.new for file in content.marked):
        world.break_with("a row with a new partition value stays in its file")
    return replace(running, agreed=agreed, attempt=carry(world, running.attempt, content))


def _content_of_statement(
    world: World, statement: Statement, agreed: rule.ReadyToCommit
) -> CommitContent:
    """As `statement_run` makes it."""
    view = Working(world.files, world.views[-1])
    removes, marked = [], []
    outputs = [(path, agreed.masks.get(path)) for path in (*agreed.inserts, *agreed.fresh)]
    if world.vectors:
        changed = changes_of(cast(Any, view), agreed.deletes)
        removes, marked = list(changed.removes), list(changed.marked)
    else:
        edits, moved = rule.in_place(agreed, lambda *_: not statement.moves)
        outputs = [*((path, hidden or None) for path, hidden in moved.items())]
        outputs += [(path, None) for path in agreed.fresh]
        for edit in edits:
            add = present(view.add(edit.path))
            if edit.is_whole:
                removes.append(add)
                continue
            new = tuple(_replacement(world, each) for each in edit.new)
            marked.append(OutputFileChange(add, edit.rows, edit.dead, None, new))
    return CommitContent(
        "UPDATE",
        {},
        tuple(
            OutputFileChange(
                AddFile(path, {}, 1, 0, data_change=True), len(world.files[path]), dead
            )
            for path, dead in outputs
        ),
        tuple(removes),
        tuple(marked),
    )


def _added(world: World, path: str, dead: BitMap64 | None) -> OutputFileChange:
    return OutputFileChange(AddFile(path, {}, 1, 0, data_change=True), len(world.files[path]), dead)


def _replacement(world: World, new: UpdatedRows) -> ReplacedRows:
    rows = len(world.files[new.insert])
    values = InputFile(logged_path=new.insert, size=rows, rows=rows)
    return ReplacedRows(values, new.positions, new.rows)


def _put_statement(world: World, running: Running) -> Running:
    commit = present(running.agreed)
    statement, token = running.statement, running.token
    # It read every append up to the version that it was last evaluated at.
    passable: int | None = commit.progress.evaluated_at
    if statement.isolation is Isolation.SERIALIZABLE:
        passable = None
    is_merge = isinstance(statement, Merge)
    if not commit.rows_matched and not is_merge:
        # It is executed all the same in every order, and must match no row there either.
        passable = -1
    entry = Entry(
        ChangeKind.CHANGE if commit.rows_matched or is_merge else ChangeKind.NEUTRAL,
        frozenset(),
        Serial(statement.name, lambda rows: statement.apply(rows, token), passable_from=passable),
        new_rows=(
            NewRows.TAKEN
            if not is_merge
            else NewRows.UNKNOWN
            if commit.deletes
            else NewRows.ARRIVED
        ),
    )
    before = Counter(world.rows_at(world.latest))
    put(world, running.attempt, entry)
    _check_feed(world, commit, before)
    return replace(running, committed=commit, is_done=True)


def _check_feed(world: World, commit: rule.ReadyToCommit, before: Counter[Row]) -> None:
    """R-14: the rows of the change files are the difference of the versions, and both images of a
    row are of one row."""
    images: dict[ChangeType, Counter[Row]] = {change: Counter() for change in ChangeType}
    for each in feed.of_statement(commit):
        images[each.change].update(world.files[each.path][p] for p in each.rows)
    gone = images[ChangeType.BEFORE] + images[ChangeType.DELETE]
    new = images[ChangeType.AFTER] + images[ChangeType.INSERT]
    if gone - before or before - gone + new != Counter(world.rows_at(world.latest)):
        world.break_with("the change files are not the difference of the versions")
    ids = [sorted(identity for identity, _ in images[c].elements()) for c in _IMAGES]
    if ids[0] != ids[1]:
        world.break_with("the images of updated rows are not of the same rows")


_IMAGES = (ChangeType.BEFORE, ChangeType.AFTER)
