"""The Hilbert curve of clusterings: each place once, and neighbours on it are neighbours."""

import itertools

import numpy as np
import pytest

from tandem.spark.jobs.sort_codes import hilbert_places


@pytest.mark.parametrize(("dimensions", "bits"), [(1, 5), (2, 1), (2, 4), (3, 3), (4, 2)])
def test_adjacent_places_differ_by_one_in_one_coordinate(dimensions: int, bits: int) -> None:
    points = np.array(list(itertools.product(range(1 << bits), repeat=dimensions)), np.uint64)
    places = hilbert_places([points[:, axis].copy() for axis in range(dimensions)], bits)
    order = np.argsort(places)
    assert places[order].tolist() == list(range(len(points)))
    steps = np.abs(np.diff(points[order].astype(np.int64), axis=0))
    assert (steps.sum(axis=1) == 1).all()
