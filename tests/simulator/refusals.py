"""What others do to a table so that an operation ends before it is begun, and mend again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from simulator.foreign import SPARK, live_rows
from simulator.foreign_table import NO_CHANGE
from simulator.single import SERIALIZABLE, Single
from simulator.two_drivers import Pair
from tandem.operations.machine.events import Ending, Point
from tandem.operations.session.session import Session

each_kind = pytest.mark.parametrize(
    "kind", ["compaction", "sort", "z-order", "update", "delete", SERIALIZABLE]
)


def emptied(single: Single) -> None:
    """Others delete every row: no kind finds anything to do in what is left."""
    while live_rows(single.world):
        single.foreign("delete_by_rewrite")


def upgraded(single: Single) -> None:
    """Others turn something on that we do not know: every kind is refused."""
    _with_features(single, lambda known: known | {UNKNOWN})


def repaired(single: Single) -> None:
    """They drop it again."""
    _with_features(single, lambda known: known - {UNKNOWN})


UNKNOWN = "ofTomorrow"


def _with_features(single: Single, change: Callable[[frozenset[str]], frozenset[str]]) -> None:
    world = single.world
    protocol = world.log.snapshot().protocol
    protocol = replace(protocol, writer_features=change(protocol.writer_features))
    version = world.commit([protocol], "CHANGE FEATURES", SPARK)
    single.checker.intents[version] = NO_CHANGE
    single.checker.catch_up()


def about_to_record_ending(kind: str) -> Pair:
    """The first was refused and has claimed, and stands before it says so; by now the table is
    repaired."""
    pair = Pair(kind)
    upgraded(pair.single)
    pair.until(pair.first, Point.RECORD_RESULT)
    repaired(pair.single)
    return pair


def ended(session: Session) -> Ending:
    """How it ended, which it must have."""
    assert session.ending is not None, f"it hangs at {session.next_effect}"
    return session.ending
