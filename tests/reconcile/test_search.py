"""The search over small histories, and proof that it can fail."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any
from unittest import mock

import pytest
from pyroaring import BitMap64

from reconcile import without_vectors
from reconcile.alphabet import by_value, z_order
from reconcile.obvious import ObviousMap
from reconcile.rewrites import start_rewrite
from reconcile.search import (
    failed,
    interleavings,
    search,
    search_at_random,
    search_without_vectors,
)
from reconcile.theirs import append
from reconcile.world import initial
from support.some import few
from tandem.reconcile.model import ChangeKind, RowMapLike
from tandem.reconcile.rules import (
    CUT,
    MUST_FOLLOW,
    REPLACE,
    REWRITE,
    Age,
    CutRule,
    InputFate,
    OutputMask,
    ReplaceFate,
    RewriteRule,
)
from tandem.rowmap.run_table import to_array
from tandem.spec.replace import Scope
from tandem.spec.update import Isolation


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
    orders = list(interleavings(choice.operations, choice.world()))
    assert len(orders) == choice.histories == 10
    assert not any(orders)


LINES: dict[str, tuple[Any, dict[Any, Any]]] = {
    "deletes are forgotten": (REWRITE, {InputFate.SUPERSET: RewriteRule(OutputMask.NONE, True)}),
    "what came back goes": (REWRITE, {InputFate.OTHER: RewriteRule(OutputMask.ALL, True)}),
    "what came back is doubled": (REWRITE, {InputFate.OTHER: RewriteRule(OutputMask.NONE, False)}),
    "a gone file is revived": (REWRITE, {InputFate.GONE: RewriteRule(OutputMask.NONE, False)}),
    "cuts forget deletes": (CUT, {InputFate.SUPERSET: CutRule(OutputMask.NONE, True)}),
    "changes are ignored": (MUST_FOLLOW, dict.fromkeys(Isolation, frozenset({ChangeKind.GAP}))),
    "gaps are ignored": (MUST_FOLLOW, dict.fromkeys(Isolation, frozenset({ChangeKind.CHANGE}))),
    "unknown rows stay": (REPLACE[Scope.AT_START], {Age.UNKNOWN: ReplaceFate.STAYS}),
    "unknown rows are replaced": (REPLACE[Scope.AT_START], {Age.UNKNOWN: ReplaceFate.REMOVED}),
}
"""Wrong lines in the tables of rules. `tests/mutants/rules.toml` has more bugs for the search."""


@pytest.mark.part(2)
@pytest.mark.parametrize("name", LINES)
def test_the_search_notices_a_wrong_line(name: str) -> None:
    """It publishes wrong rows, unless our own counts refuse them."""
    table, changes = LINES[name]
    with mock.patch.dict(table, changes):
        # Most err within 1,000 small histories; the others in one of a few hundred longer ones,
        # which the search meets sooner than a small one.
        found = search(1_000, stop=failed).failures
        assert found or search_at_random(4_000, seed=3, stop=failed).failures


def test_row_maps_agree_with_the_rows() -> None:
    """The maps of all layouts, beside a list of where each row went."""
    rng = random.Random(5)
    for _ in range(60):
        world = initial()
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
