"""Bugs in compactions that are committed in batches."""

from __future__ import annotations

from mutants.model import Check, Mutant

_BATCHES = (Check.BATCHES,)
_PROGRESS = "operations/kinds/batches.py"

BATCHES = (
    Mutant(
        "batch-not-marked",
        "batches: the log says which are committed",
        "operations/kinds/compaction.py",
        "txns=(*change.txns, mark)",
        "txns=change.txns",
        _BATCHES,
    ),
    Mutant(
        "batch-done-again",
        "batches: one that is done is not done again",
        _PROGRESS,
        "while number < self.count and self._is_over(snapshot, number):\n            number += 1\n"
        "        return number",
        "return min(number, 2)",
        _BATCHES,
    ),
    Mutant(
        "batch-left-out",
        "batches: each is committed before the last one",
        _PROGRESS,
        "number = done + 1",
        "number = done + 2",
        _BATCHES,
    ),
    Mutant(
        "batch-after-the-end",
        "batches: none commits once its operation has ended",
        _PROGRESS,
        "return markers.succeeded > 0 or markers.closed",
        "return False",
        _BATCHES,
    ),
)
