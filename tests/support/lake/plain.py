"""Tables without deletion vectors, as `deltalake` makes them by default, and foreign writers that
come at the worst moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import Lake
from support.lake.rows import Rows
from tandem.delta.actions import Protocol
from tandem.delta.protocol import writes_deletion_vectors
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.resources import Operation
from tandem.spec.status import Reconciled

Case = tuple[Callable[[QuickLake], Operation], Callable[[Rows], Rows]]
"""An operation, and what it makes of rows."""

PROTOCOL = Protocol(1, 2)
FEATURE = {"delta.enableDeletionVectors": "true"}


def plain(folder: Path, loads: int = 4) -> QuickLake:
    """Files of ten rows each, without deletion vectors: protocol 1/2."""
    lake = quick_lake.make(folder, loads, properties={})
    assert lake.log.snapshot().protocol == PROTOCOL
    return lake


def assert_edited_out(lake: Lake, *states: Rows, protocol: Protocol = PROTOCOL) -> None:
    """All readers show the last of these states, and the versions before all of them, unless it is
    the only one; nothing is left, no commit of ours added a vector where they were off (R-2), nor
    changed the protocol or the properties."""
    if len(states) > 1:
        lake.assert_states(*states)
    lake.assert_rows(states[-1])
    lake.assert_clean()
    assert lake.log.snapshot().protocol == protocol
    assert_no_vectors_of_ours(lake)


def assert_no_vectors_of_ours(lake: Lake) -> None:
    """R-2."""
    for version in range(lake.first_version + 1, lake.version + 1):
        commit, before = lake.commit(version), lake.log.snapshot(version - 1)
        if commit.info is None or "tandem" not in commit.info.body:
            continue
        if not writes_deletion_vectors(before.protocol, before.metadata):
            assert not [add.path for add in commit.adds if add.deletion_vector], version


def set_vectors(lake: Lake, on: bool) -> None:
    """By deltalake."""
    properties = {"delta.enableDeletionVectors": str(on).lower()}
    lake.foreign().alter.set_table_properties(properties)


def figures(found: Reconciled) -> Mapping[str, int | None]:
    """What a result says about edits."""
    return {
        "dropped": found.bins_dropped,
        "contended": found.bins_contended,
        "gone": found.inputs_gone,
        "rounds": found.edit_rounds,
    }


def edited(
    rounds: int | None = 1, *, gone: int | None = None, contended: int | None = None
) -> Mapping[str, int | None]:
    """The figures of an operation that made edits in so many rounds."""
    return {"dropped": 0, "contended": contended, "gone": gone, "rounds": rounds}


@dataclass
class Hits:
    """An `interceptor`: right before the edits of a round are made, others commit. `acts` are done
    one each round, then no more. `after`: once they are made, right before the put."""

    acts: list[Callable[[], object]]
    after: bool = False
    done: int = 0
    points: list[Point] = field(default_factory=list)

    def __call__(self, effect: Effect, call: Callable[[], Event]) -> Event:
        self.points.append(effect.point)
        at = Point.PUT_COMMIT if self.after else Point.WRITE_SIDECARS
        if effect.point is at and self.done < len(self.acts):
            self.done += 1
            self.acts[self.done - 1]()
        return call()


def updates(lake: Lake, *ids: int) -> list[Callable[[], object]]:
    """For each row an update by deltalake, which makes its file again with another value."""

    def update(id_: int) -> object:
        return lake.foreign().update({"v": "v + 1"}, predicate=f"id = {id_}")

    return [partial(update, id_) for id_ in ids]


def deletes(lake: Lake, *ids: int) -> list[Callable[[], object]]:
    """For each row a delete by deltalake, which makes its file again without it."""
    return [partial(lambda id_: lake.foreign().delete(f"id = {id_}"), id_) for id_ in ids]
