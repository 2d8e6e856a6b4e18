"""The search over small histories, and proof that it can fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reconcile import naive
from reconcile.search import search, search_at_random
from reconcile.world import Rules


def test_every_small_history_is_a_serial_one() -> None:
    report = search(12_000)
    assert report.histories >= 12_000
    assert report.failures == 0, str(report.first)


def test_longer_histories_at_random_are_serial_ones() -> None:
    report = search_at_random(2_500, seed=1)
    assert report.failures == 0, str(report.first)


@pytest.mark.parametrize(
    "rules",
    [
        lambda: Rules(rewrite=naive.AccumulatingMasks()),
        lambda: Rules(rewrite=naive.differences_only),
        lambda: Rules(rewrite=naive.no_validation_of_inputs),
        lambda: Rules(decide=naive.no_validation_since_read),
        lambda: Rules(decide=naive.changed_files_only),
        lambda: Rules(decide=naive.except_mapped_files),
        lambda: Rules(decide=naive.ignore_gaps),
        lambda: Rules(decide=naive.appends_by_actions),
        lambda: Rules(decide=naive.non_deterministic_in_part),
    ],
    ids=[
        "masks accumulate",
        "nothing is ever brought back",
        "inputs are not validated",
        "no validation from the read version",
        "rerun on changed files only",
        "added files except mapped ones",
        "gaps ignored",
        "appends told by their actions",
        "random statements evaluated in part",
    ],
)
def test_the_search_catches_naive_rules(rules: Callable[[], Rules]) -> None:
    """Each of them publishes wrong rows, which our own counts may not be there to stop."""
    assert search(60_000, rules=rules(), stop_when_wrong=True).wrong > 0


def test_counts_refuse_a_rule_that_gives_a_row_two_results() -> None:
    """Such a rule never gets to publish: every history in which it errs ends in an error."""
    rules = Rules(decide=naive.evaluate_mixed_files_whole)
    report = search(12_000, rules=rules)
    assert report.failures > 0
    assert report.wrong == 0, str(report.first)
