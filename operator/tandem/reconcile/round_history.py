"""The rounds of a statement: which commits it was reordered after, and the cost of each round.

For reports only; no decision depends on it. Bounded, since a table with continuous writes may need
hundreds of rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.reconcile.model import Author, CommitSummary

MAX_ROUNDS = 8
"""How many of the last rounds are kept."""


@dataclass(frozen=True, slots=True)
class ConflictRound:
    """A round in which the statement was moved after other commits, up to version `at`; `author`
    made the newest one that mattered. `rows` were evaluated, `lost` matches were gone; `whole`:
    the statement was executed again from the beginning."""

    at: int
    author: Author
    rows: int = 0
    lost: int = 0
    whole: bool = False


RoundHistory = tuple[ConflictRound, ...]


def with_round(
    round_history: RoundHistory,
    at: int,
    cause: CommitSummary,
    *,
    rows: int = 0,
    lost: int = 0,
    whole: bool = False,
) -> RoundHistory:
    """The history with one more round. A round without effect is left out."""
    if not (rows or lost or whole):
        return round_history
    turn = ConflictRound(at, cause.author or Author(cause.version), rows, lost, whole)
    return (*round_history, turn)[-MAX_ROUNDS:]
