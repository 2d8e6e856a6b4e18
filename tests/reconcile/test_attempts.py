"""Which rounds count, and that every statement ends, whatever others do."""

from __future__ import annotations

from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.reconcile.outcomes import SMALL_ROUNDS, Attempts

MOST = 5
"""`conflict.maxAttempts`, as it is by default."""

WHOLE = 0
"""Stands for an execution from the beginning: no round has no rows."""


def counted(rounds: list[int]) -> list[int]:
    """How many count, after each round of so many rows."""
    attempts, found = Attempts(), list[int]()
    for rows in rounds:
        attempts = attempts.after_whole() if rows == WHOLE else attempts.after_round(rows)
        found.append(attempts.counted)
    return found


@pytest.mark.parametrize(
    ("rounds", "counts"),
    [
        ([800, 50, 20, 8, 3, 1], [0, 0, 0, 0, 0, 0]),
        # As many each time: nothing shows an end. The first of them has nothing to be like.
        ([8, 8, 8, 8], [0, 1, 2, 3]),
        # Progress takes back what came before it: only rounds in a row are too many.
        ([8, 8, 8, 7, 7, 6], [0, 1, 2, 0, 1, 0]),
        # Two files and one file by turns are no progress, and every second round counts.
        ([2, 1, 2, 1, 2, 1], [0, 0, 1, 1, 2, 2]),
        # Executed from the beginning: never taken back, and what came before does not compare.
        ([8, 8, WHOLE, 9, 3, 3, 2], [0, 1, 2, 2, 2, 3, 2]),
        ([WHOLE, WHOLE, WHOLE], [1, 2, 3]),
    ],
)
def test_rounds_without_progress_count(rounds: list[int], counts: list[int]) -> None:
    assert counted(rounds) == counts


def obvious(rounds: list[int]) -> list[int]:
    """The same, computed slowly: from the last round that had fewer rows than any before it."""
    found: list[int] = []
    for end in range(1, len(rounds) + 1):
        whole = [i for i in range(end) if rounds[i] == WHOLE]
        part = rounds[whole[-1] + 1 : end] if whole else rounds[:end]
        # Whatever had been counted when it was executed from the beginning stays counted.
        lasting = 1 + (found[whole[-1] - 1] if whole[-1] else 0) if whole else 0
        records = [i for i in range(len(part)) if part[i] < min(part[:i], default=part[i] + 1)]
        since = range(records[-1] + 1, len(part)) if records else range(0)
        found.append(lasting + sum(part[i] >= part[i - 1] for i in since))
    return found


@given(st.lists(st.integers(WHOLE, 6), max_size=40))
def test_the_count_is_that_of_a_simple_model(rounds: list[int]) -> None:
    assert counted(rounds) == obvious(rounds)


@given(st.lists(st.integers(WHOLE, 6), min_size=1, max_size=12))
def test_a_statement_ends_whatever_others_repeat(others: list[int]) -> None:
    """No table grows for ever here: a round has at most six rows. So there are at most six
    rounds with progress between two executions from the beginning, of which there are at most
    `MOST`; and of the others at most six in a row become smaller until one of them counts."""
    most_rounds = MOST * 6 * MOST * 6
    counts = counted(list(islice(cycle(others), most_rounds)))
    assert max(counts) >= MOST


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=40, unique=True))
def test_a_statement_with_ever_less_to_do_is_never_given_up(rows: list[int]) -> None:
    assert set(counted(sorted(rows, reverse=True))) == {0}


def test_small_rounds_count_in_hundreds_and_progress_does_not_take_them_back() -> None:
    attempts = Attempts().after_round(8).after_round(8)
    for number in range(1, 2 * SMALL_ROUNDS + 1):
        attempts = attempts.after_small_round()
        assert attempts.counted == 1 + number // SMALL_ROUNDS
    assert attempts.after_round(3).counted == 2
    assert attempts.after_round(9).counted == 4
    assert attempts.after_whole().counted == 4
    # What is evaluated in between does not begin their count again.
    between = attempts.after_round(3).after_whole()
    assert between.small == 2 * SMALL_ROUNDS


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 6))
def test_small_rounds_end_whatever_other_rounds_occur(jobs: list[bool], rows: int) -> None:
    attempts = Attempts()
    for number in range(MOST * SMALL_ROUNDS):
        if jobs and jobs[number % len(jobs)]:
            attempts = attempts.after_round(max(1, rows - number))
        attempts = attempts.after_small_round()
    assert attempts.counted >= MOST
