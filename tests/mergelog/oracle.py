"""A slow, obvious model of merge-on-read: one order of all that happened, replayed from the start.

Knows no blocks, no stitching and no marks of commits: an append is a list of records, and what a
merge moves is decided by instant. It shares no code with `tandem.mergelog`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Order = int | None
"""The value of the ordering column; None is NULL, and the least."""


@dataclass(frozen=True)
class Row:
    key: int
    order: Order
    value: str


@dataclass(frozen=True)
class Event:
    """A record of an append: `value` None deletes."""

    key: int
    order: Order
    value: str | None


@dataclass(frozen=True)
class Append:
    """An instant, and the base version that it names."""

    instant: int
    base: int
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Insert:
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Update:
    """Statements of others, on the base table alone: a new value for some keys, or none."""

    keys: frozenset[int]
    value: str | None


@dataclass(frozen=True)
class Become:
    """Any statement of others, by the rows that the base table has after it."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Rearranged:
    """Compaction, vacuum, table properties: no row changes."""


@dataclass(frozen=True)
class Merge:
    upto: int


@dataclass(frozen=True)
class Overwrite:
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Restore:
    version: int


Change = Insert | Update | Become | Rearranged | Merge | Overwrite | Restore


@dataclass
class State:
    rows: list[Row] = field(default_factory=list)
    pending: list[Append] = field(default_factory=list)
    deleted: dict[int, Order] = field(default_factory=dict)
    """With an ordering column: the greatest delete of each key that was merged."""

    def copy(self) -> State:
        return State(list(self.rows), list(self.pending), dict(self.deleted))


def replay(
    changes: Sequence[Change], appends: Sequence[Append], *, ordered: bool, upto: int | None = None
) -> State:
    """The state after base version `upto`, and all instants that name it or an earlier one."""
    last = len(changes) - 1 if upto is None else upto
    state = State()
    saved: list[State] = []
    for version in range(last + 1):
        state = after(state, changes[version], saved, ordered=ordered)
        state.pending += [append for append in appends if append.base == version]
        saved.append(state.copy())
    return state


def of_prefix(
    changes: Sequence[Change], appends: Sequence[Append], instant: int, *, ordered: bool
) -> list[Row] | None:
    """The view of the newest of these base versions for a reader that knows the log up to an
    instant; None if the base table holds later ones, which a reader must know."""
    if any(isinstance(change, Merge) and change.upto > instant for change in changes):
        return None
    known = [append for append in appends if append.instant <= instant]
    return view(replay(changes, known, ordered=ordered), ordered=ordered)


def after(state: State, change: Change, saved: Sequence[State], *, ordered: bool) -> State:
    """The state after the next base version. `saved` are those after earlier ones."""
    match change:
        case Insert(rows):
            return State([*state.rows, *rows], state.pending, state.deleted)
        case Update(keys, value):
            kept = [row for row in state.rows if row.key not in keys]
            changed = [
                Row(row.key, row.order, value)
                for row in state.rows
                if row.key in keys and value is not None
            ]
            return State(kept + changed, state.pending, state.deleted)
        case Become(rows):
            return State(list(rows), state.pending, state.deleted)
        case Rearranged():
            return state
        case Overwrite(rows):
            return State(list(rows))
        case Restore(version):
            return saved[version].copy()
        case Merge(upto):
            merged = State(_without_dead(state), [], dict(state.deleted))
            for append in state.pending:
                if append.instant <= upto:
                    _apply(merged, append, ordered=ordered)
                else:
                    merged.pending.append(append)
            return merged


def view(state: State, *, ordered: bool) -> list[Row]:
    shown = State(_without_dead(state), [], dict(state.deleted))
    for append in state.pending:
        _apply(shown, append, ordered=ordered)
    return sorted(shown.rows, key=lambda row: (row.key, least(row.order), row.value))


def least(order: Order) -> int:
    return -1 if order is None else order


def _without_dead(state: State) -> list[Row]:
    """A merged delete stays in force: it hides lesser rows, also those that others added."""
    return [
        row
        for row in state.rows
        if row.key not in state.deleted or least(row.order) >= least(state.deleted[row.key])
    ]


def _apply(state: State, append: Append, *, ordered: bool) -> None:
    for event in append.events:
        _apply_one(state, event, ordered=ordered)


def _apply_one(state: State, event: Event, *, ordered: bool) -> None:
    mine = [row for row in state.rows if row.key == event.key]
    others = [row for row in state.rows if row.key != event.key]
    if not ordered:
        state.rows = others + ([] if event.value is None else [_row(event)])
        return
    if event.key in state.deleted and least(state.deleted[event.key]) > least(event.order):
        return
    greater = [row for row in mine if least(row.order) > least(event.order)]
    state.rows = others + greater
    if event.value is None:
        state.deleted[event.key] = event.order
    elif not greater:
        state.rows.append(_row(event))


def _row(event: Event) -> Row:
    assert event.value is not None
    return Row(event.key, event.order, event.value)
