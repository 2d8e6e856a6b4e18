"""A table of `reconcile.world` whose segments are files, loaded one by one: for scenarios."""

from __future__ import annotations

from dataclasses import dataclass, field

from reconcile.statements import Statement, finish_statement, start_statement
from reconcile.theirs import append
from reconcile.world import Entry, Row, Serial, World, problem
from tandem.reconcile.model import ChangeKind
from tandem.reconcile.statement import ReadyToCommit


def deletes(*values: int) -> Statement:
    return Statement(f"delete {values}", lambda x: x in values)


def updates(value: int, to: int) -> Statement:
    return Statement(f"{value} becomes {to}", lambda x: x == value, lambda *_: to)


@dataclass
class Table:
    """A table whose segments are files, loaded one by one."""

    world: World = field(default_factory=World)

    def __post_init__(self) -> None:
        empty = Serial("create", lambda _: [])
        self.world.commit(Entry(ChangeKind.CHANGE, frozenset(), empty), {})

    def load(self, *values: int) -> str:
        append(*values)(self.world, None)
        return f"f{self.world.next_file}"

    def visible(self) -> list[str]:
        return sorted(path for path in self.world.views[-1] if self.world.live(path))

    def values(self) -> list[int]:
        return sorted(x for _, x in self.world.rows_at(self.world.latest))

    def rows(self) -> list[Row]:
        return self.world.rows_at(self.world.latest)

    def check(self) -> None:
        assert problem(self.world) == ""

    def run(self, statement: Statement) -> ReadyToCommit:
        outcome = finish_statement(self.world, start_statement(self.world, statement))
        assert outcome is not None
        return outcome
