"""Random histories of a log agree with the serial model, and can fail to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from mergelog.search import History
from support.some import some
from tandem.delta.actions import Commit
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import BaseHistoryGap
from tandem.mergelog import base_history
from tandem.mergelog.base_history import Candidates, candidates
from tandem.mergelog.boundaries import (
    BaseChange,
    RestoredTo,
    Unaffected,
    Voided,
    advance,
)
from tandem.mergelog.versions import BlockLogState, LogHistory

# Random histories of appends, log compactions, merges and statements of others agree with the
# serial model (L0-L5, I-37 for each version of the base table and each prefix of the log).


@pytest.mark.part(3)
@pytest.mark.parametrize("first", some(range(0, 240, 40), every=2))
def test_I37_random_histories_agree_with_the_serial_model(first: int) -> None:
    for seed in range(first, first + 40):
        History(seed).run()


@pytest.mark.parametrize("first", some(range(0, 400, 20), every=20))
def test_L11_L15_histories_with_cleanings_agree_with_the_serial_model(first: int) -> None:
    for seed in range(first, first + 20):
        History(seed, steps=24, cleaning=True).run()


@pytest.mark.part(2)
@pytest.mark.parametrize("first", some(range(0, 400, 20), every=10))
def test_I37_histories_whose_deletes_expire_agree_with_the_serial_model(first: int) -> None:
    """Rows that come within `deletesKept` stay behind a greater delete, although it expires."""
    for seed in range(first, first + 20):
        History(seed, steps=24, expiring=True).run()


@pytest.mark.part(2)
@pytest.mark.parametrize("first", some(range(0, 400, 20), every=10))
def test_L11_histories_that_are_cut_agree_with_the_serial_model_or_are_refused(first: int) -> None:
    """Overwrites and restores under the names of engines; the beginning of both logs goes."""
    refused = 0
    for seed in range(first, first + 20):
        history = History(seed, cut=True)
        history.run()
        refused += history.refused
    assert refused < 20


def test_L11_some_histories_that_are_cut_are_refused() -> None:
    histories = [History(seed, cut=True) for seed in range(20)]
    for history in histories:
        history.run()
    assert any(history.refused for history in histories)


# The random histories notice planted bugs in the handling of restores, overwrites and gaps.


SEEDS = 200


def caught() -> bool:
    """Whether one of the histories is wrong. Each takes 20 ms; a few dozen are enough."""
    for seed in range(SEEDS):
        try:
            History(seed, cut=True).run()
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize("ignored", [RestoredTo, Voided], ids=["restore", "overwrite"])
def test_a_boundary_that_is_ignored_is_noticed(
    monkeypatch: pytest.MonkeyPatch, ignored: type[BaseChange]
) -> None:
    def ignoring(
        state: BlockLogState, changes: Sequence[BaseChange], history: LogHistory, *, ordered: bool
    ) -> BlockLogState:
        seen = [Unaffected() if isinstance(change, ignored) else change for change in changes]
        return advance(state, seen, history, ordered=ordered)

    monkeypatch.setattr(base_history, "advance", ignoring)
    assert caught()


def test_a_gap_that_is_taken_for_no_change_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., list[Commit] | None] = base_history.BaseHistory._commits

    def commits(self: base_history.BaseHistory, *of: object) -> list[Commit] | None:
        try:
            return real(self, *of)
        except BaseHistoryGap:
            return []

    monkeypatch.setattr(base_history.BaseHistory, "_commits", commits)
    assert caught()


def test_a_restored_version_that_is_guessed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a time that may lie before the first version that is left."""

    def complete(base: DeltaLog, commit: Commit, time: str) -> Candidates:
        return replace(candidates(base, commit, time), complete=True)

    monkeypatch.setattr(base_history, "candidates", complete)
    assert caught()


def test_a_restored_version_that_is_one_of_several_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a time without a zone."""
    monkeypatch.setattr(base_history.BaseHistory, "_show_the_same", lambda *_: True)
    assert caught()
