"""Random histories: as many as fit into the time that `make test` gives them."""

from __future__ import annotations

import time

from simulator.history import History

SECONDS = 25.0
AT_LEAST = 60
"""Histories that must have been played even on a slow machine."""


def test_histories_leave_the_rows_of_a_serial_order() -> None:
    began = time.monotonic()
    seed = 0
    while seed < AT_LEAST or time.monotonic() - began < SECONDS:
        History(seed).run()
        seed += 1


def test_the_same_seed_gives_the_same_history() -> None:
    stories = []
    for _ in range(2):
        history = History(5)
        history.run()
        stories.append(history.story())
    assert stories[0] == stories[1]
