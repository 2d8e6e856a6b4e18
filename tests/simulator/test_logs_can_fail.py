"""The histories on tables with a log of blocks notice planted bugs in statements and merges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.history import History
from simulator.invariants import Violation
from tandem.operations.kinds.log_merge import LogMergeKind
from tandem.operations.kinds.prerequisite_merge import StatementLog
from tandem.operations.model import CommitContent, Work

SEEDS = 40


def noticed() -> str:
    """What the first history that is wrong says."""
    for seed in range(SEEDS):
        try:
            History(seed, merge_on_read=True).run()
        except Violation as violation:
            return str(violation)
    return ""


def test_a_statement_that_misses_an_acknowledged_upsert_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StatementLog, "prerequisite", lambda *_: None)
    assert "has not seen the instants" in noticed()


def test_an_upsert_that_comes_meanwhile_and_is_lost_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The merge before a statement marks also what came after its plan."""
    real = LogMergeKind.change

    def change(self: LogMergeKind, work: Work) -> CommitContent:
        found = real(self, work)
        newest = self._log_at_plan(work).log.log.latest_version()
        return replace(found, txns=tuple(replace(txn, version=newest) for txn in found.txns))

    monkeypatch.setattr(LogMergeKind, "change", change)
    assert noticed()
