"""Random histories: the first of those that `make matrix` plays."""

from __future__ import annotations

from simulator.history import History

HISTORIES = 15
"""Seeds from 0; each history takes about 0.15 s. `make matrix` plays 3,000."""

LOGGED = 5
"""Seeds of histories on a merge-on-read table, each twice as long."""


def test_histories_leave_the_rows_of_a_serial_order() -> None:
    for seed in range(HISTORIES):
        History(seed).run()


def test_histories_on_a_log_leave_the_view_of_the_serial_model() -> None:
    """Appends of writers and of operations, log compactions, merges, and statements that see what
    was acknowledged before they began."""
    for seed in range(LOGGED):
        History(seed, merge_on_read=True).run()


def test_the_same_seed_gives_the_same_history() -> None:
    stories = []
    for _ in range(2):
        history = History(5)
        history.run()
        stories.append(history.story())
    assert stories[0] == stories[1]
