"""Reserves the values of identity columns, before the rows that have them are committed.

The first attempt of an operation begins above the mark, as any writer does, and its values are
reserved once they are all known: none is lost unless another writer was given values meanwhile.
Then the next attempt reserves as many before its job begins, and no other writer comes in between
(R-16). A reservation is a commit of metadata that differs in marks alone, and is tagged so: running
writes of Spark go on, and so do ours (`tandem.reconcile.classify`). Values that are reserved and
never used are a gap, which is legal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tandem.delta.actions import Action
from tandem.delta.identity import (
    SCHEMA_UPDATE,
    IdentityColumn,
    identity_columns,
    value_after,
    with_marks,
)
from tandem.delta.log.snapshot import commit_info
from tandem.jobs.formats import IdentityValues, IngestJob, MergeJob, ReplaceJob
from tandem.operations.model import Work
from tandem.operations.session.commit_actions import origin

OPERATION = "RESERVE IDENTITY VALUES"


@dataclass(frozen=True, slots=True)
class Missing:
    """Values of rows that are not reserved: the last one of each column. `taken` says that another
    writer was given values, so that ours may be among them."""

    last: Mapping[str, int]
    taken: str = ""


def values_of_plan(work: Work) -> dict[str, IdentityValues]:
    """The values that the planned job gives, if it inserts rows: those above the marks of the
    version last read. Raises: CorruptLog."""
    planned = work.planned
    job = None if planned is None else planned.job
    return _above(_columns(work)) if isinstance(job, IngestJob | MergeJob | ReplaceJob) else {}


def _columns(work: Work) -> dict[str, IdentityColumn]:
    """The identity columns of the version last read. Raises: CorruptLog."""
    metadata = work.snapshot.metadata
    return identity_columns(metadata.schema_string, resource=work.identity.display)


def _above(columns: Mapping[str, IdentityColumn]) -> dict[str, IdentityValues]:
    return {
        name: IdentityValues(
            first=each.reserved + each.step, step=each.step, reserved=each.reserved
        )
        for name, each in columns.items()
    }


def ahead(work: Work) -> dict[str, IdentityValues]:
    """The values of an attempt that reserves as many as an earlier one needed, above the marks of
    the version last read. Raises: CorruptLog; StatementFailed if there are none left."""
    found = {}
    for name, values in _above(_columns(work)).items():
        count = work.identity_needs.get(name, 0)
        last = value_after(name, values.reserved, values.step, count)
        found[name] = values.model_copy(update={"reserved": last})
    return found


def missing(work: Work) -> Missing:
    """The values of the attempt's rows that are not reserved at the version last read."""
    known = work.frozen[1].table.identity
    last = dict[str, int]()
    for result in work.results.values():
        for name, value in result.identity.items():
            furthest = max if known[name].step > 0 else min
            last[name] = furthest(last.get(name, value), value)
    if not last:
        return Missing({})
    now = _columns(work)
    found, taken = dict[str, int](), ""
    for name, value in last.items():
        held, column = work.reserved.get(name, known[name].reserved), now.get(name)
        if column is None:
            taken = f"{name} is no identity column any more"
        elif column.beyond(value, held):
            found[name] = value
            if column.reserved != held:
                taken = f"another writer was given values of {name}, up to {column.reserved}"
    return Missing(found, taken)


def need(work: Work, last: Mapping[str, int]) -> None:
    """Remember how many values the attempt needed, for the one after it."""
    known = work.frozen[1].table.identity
    for name, value in last.items():
        values = known[name]
        count = (value - values.first) // values.step + 1
        work.identity_needs[name] = max(count, work.identity_needs.get(name, 0))


def actions(work: Work, marks: Mapping[str, int]) -> list[Action]:
    """The commit that reserves values up to these, after the version last read."""
    metadata = work.snapshot.metadata
    info = commit_info(
        OPERATION,
        {name: str(mark) for name, mark in marks.items()},
        now_ms=work.now_ms,
        previous=work.snapshot,
        blind_append=False,
        tandem=origin(work),
        tags={SCHEMA_UPDATE: "true"},
    )
    return [info, replace(metadata, schema_string=with_marks(metadata.schema_string, marks))]
