"""Random histories of appends, log compactions, merges and statements of others agree with the
serial model (L0-L5, I-37 for each version of the base table and each prefix of the log)."""

from __future__ import annotations

import pytest

from mergelog.search import History
from support.some import some


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
