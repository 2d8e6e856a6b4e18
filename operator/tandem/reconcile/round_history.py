"""The rounds of a statement: which commits it was moved behind, and what each move cost.

For reports only; no decision depends on it. Bounded, since a table that is written all the time
may need hundreds of rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.reconcile.model import Author, CommitSummary

LONGEST = 8
"""How many of the last rounds are kept."""


@dataclass(frozen=True, slots=True)
class ConflictRound:
    """Once that the statement had to come after others: up to version `at`, the newest of which
    that mattered is `author`'s. `rows` were evaluated for it, `lost` matches had gone; `whole`
    says that it was executed again from the beginning."""

    at: int
    author: Author
    rows: int = 0
    lost: int = 0
    whole: bool = False


RoundHistory = tuple[ConflictRound, ...]


def with_round(
    course: RoundHistory,
    at: int,
    cause: CommitSummary,
    *,
    rows: int = 0,
    lost: int = 0,
    whole: bool = False,
) -> RoundHistory:
    """The history with one more round. A round without effect is left out."""
    if not (rows or lost or whole):
        return course
    turn = ConflictRound(at, cause.author or Author(cause.version), rows, lost, whole)
    return (*course, turn)[-LONGEST:]
