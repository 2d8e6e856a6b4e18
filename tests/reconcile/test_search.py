"""The search over small histories, and proof that it can fail."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice

import pytest
from pyroaring import BitMap64

from reconcile import naive, without_vectors
from reconcile.alphabet import by_value, z_order
from reconcile.obvious import ObviousMap
from reconcile.rewrites import start_rewrite
from reconcile.search import (
    interleavings,
    search,
    search_at_random,
    search_without_vectors,
    wrong,
)
from reconcile.theirs import append
from reconcile.world import Rules, initial
from support.some import few
from tandem.reconcile.model import RowMapLike
from tandem.rowmap.positions import to_array


def test_every_small_history_is_a_serial_one() -> None:
    asked = few(3_000, 8_000)
    report = search(asked)
    assert report.histories >= asked
    assert report.failures == 0, str(report.first)


def test_longer_histories_at_random_are_serial_ones() -> None:
    report = search_at_random(few(700, 2_000), seed=1)
    assert report.failures == 0, str(report.first)


def test_every_history_without_vectors_is_a_serial_one_and_ends() -> None:
    report = search_without_vectors(few(500, 3_000), seed=1)
    assert report.failures == 0, str(report.first)


def test_there_are_as_many_histories_as_the_model_of_tables_without_vectors_had() -> None:
    """`make matrix` runs all of them."""
    found = {each.name: sum(c.histories for c in each.choices) for each in without_vectors.ALL}
    assert found["one operation"] == 841_640
    assert sum(count for name, count in found.items() if "operations" in name) == 506_880
    assert found["row maps lost"] == 142_800
    (choice,) = islice(without_vectors.choices(), 57, 58)
    assert len(choice.theirs) == 2
    orders = list(interleavings(choice.operations, choice.world(Rules())))
    assert len(orders) == choice.histories == 10
    assert not any(orders)


NAIVE: dict[str, Callable[[], Rules]] = {
    "masks accumulate": lambda: Rules(rewrite=naive.AccumulatingMasks()),
    "nothing is ever brought back": lambda: Rules(rewrite=naive.differences_only),
    "inputs are not validated": lambda: Rules(rewrite=naive.no_validation_of_inputs),
    "deletes forgotten in a cut": lambda: Rules(rewrite=naive.cuts_forget_deletes),
    "files that are cut go whole": lambda: Rules(rewrite=naive.cut_files_go_whole),
    "no validation from the read version": lambda: Rules(decide=naive.no_validation_since_read),
    "rerun on changed files only": lambda: Rules(decide=naive.changed_files_only),
    "added files except mapped ones": lambda: Rules(decide=naive.except_mapped_files),
    "gaps ignored": lambda: Rules(decide=naive.ignore_gaps),
    "appends recognized by their actions": lambda: Rules(decide=naive.appends_by_actions),
    "random statements evaluated in part": lambda: Rules(decide=naive.non_deterministic_in_part),
    "merges not executed again": lambda: Rules(decide=naive.merges_look_once),
    "inserts not determined again": lambda: Rules(decide=naive.inserts_stay_as_they_are),
    "unknown rows stay in a replace": lambda: Rules(replace=naive.unknown_rows_stay),
    "unknown rows are replaced": lambda: Rules(replace=naive.unknown_rows_are_removed),
    "files are replaced whole": lambda: Rules(replace=naive.whole_files_are_removed),
    "old and late rows mixed are old": lambda: Rules(ages=naive.MixedRowsAreOld),
    "old and late rows mixed are late": lambda: Rules(ages=naive.MixedRowsAreLate),
    "merged rows are late": lambda: Rules(ages=naive.MergedRowsAreLate),
    "late rows before a change are old": lambda: Rules(ages=naive.LateRowsBeforeAChangeAreOld),
    "the cutoff moves at a retry": lambda: Rules(cutoff_moves=True),
}


@pytest.mark.part(4)
@pytest.mark.parametrize("name", NAIVE)
def test_the_search_catches_naive_rules(name: str) -> None:
    """Each of them publishes wrong rows, which our own counts may not be there to stop."""
    rules = NAIVE[name]
    # Most rules err within 1,000 small histories. The others err in one of a few hundred longer
    # histories, which the search meets sooner than a small one.
    assert (
        search(1_000, rules=rules(), stop=wrong).wrong
        or search_at_random(4_000, seed=3, rules=rules(), stop=wrong).wrong
    )


def test_counts_refuse_a_rule_that_gives_a_row_two_results() -> None:
    """Such a rule never gets to publish: every history in which it errs ends in an error."""
    rules = Rules(decide=naive.evaluate_mixed_files_whole)
    report = search_at_random(1_500, seed=1, rules=rules)
    assert report.failures > 0
    assert report.wrong == 0, str(report.first)


def test_row_maps_agree_with_the_rows() -> None:
    """The maps of all layouts, beside a list of where each row went."""
    rng = random.Random(5)
    for _ in range(60):
        world = initial(Rules())
        append(*(rng.randrange(20) for _ in range(rng.randrange(6))))(world, None)
        job = start_rewrite(
            world,
            rng.sample(sorted(world.views[-1]), rng.randint(1, 4)),
            rng.randint(1, 6),
            layout=rng.choice((None, by_value, z_order)),
            each=rng.random() < 0.3,
        )
        files = {file.path: (file.rows, file.dead_at_read) for file in job.inputs}
        obvious = ObviousMap(files, job.places)
        # Rows that were sorted together are one bin, also where no file shares a row.
        assert all(any(b <= whole for whole in _bins(job.row_map)) for b in _bins(obvious))
        for path in obvious.input_paths:
            some = BitMap64(p for p in range(files[path][0]) if rng.random() < 0.5)
            assert job.row_map.input(path) == obvious.input(path)
            assert job.row_map.forward(path, some) == obvious.forward(path, some)
            assert job.row_map.forward_all(path) == obvious.forward_all(path)
            assert _named(job.row_map, path, some) == _named(obvious, path, some)
        for file in obvious.outputs:
            some = BitMap64(p for p in range(file.rows) if rng.random() < 0.5)
            assert set(job.row_map.sources(file.path)) == set(obvious.sources(file.path))
            assert job.row_map.backward(file.path, some) == obvious.backward(file.path, some)


def _bins(row_map: RowMapLike) -> list[set[str]]:
    return [{*inputs, *outputs} for inputs, outputs in row_map.bins()]


def _named(row_map: RowMapLike, path: str, rows: BitMap64) -> list[tuple[str, int]]:
    """`locate`, with the outputs' paths in place of their numbers."""
    outputs, places = row_map.locate(path, to_array(rows))
    return [
        (row_map.outputs[output].path if output >= 0 else "", place)
        for output, place in zip(outputs.tolist(), places.tolist(), strict=True)
    ]
