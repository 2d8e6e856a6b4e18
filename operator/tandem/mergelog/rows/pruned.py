"""Which files of the base table can have rows of the keys of a log, by their statistics. Pure."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.log.snapshot import Snapshot
from tandem.distinct import BoolArray
from tandem.mergelog.rows.records import Records
from tandem.mergelog.state.log_table import LogSettings
from tandem.pruning.files import bounds_of
from tandem.pruning.keys import keys_of
from tandem.statements.types import Schema

MOST_KEYS: Final = 100_000
"""Of more keys only the least and the greatest are compared with statistics."""


def may_hold(
    base: Snapshot, settings: LogSettings, records: Records, files: pa.Table | None = None
) -> BoolArray:
    """For each of some files, by default all of `base`, whether it can have rows of the keys of
    some records."""
    types = {c.name: c.type for c in Schema.from_json(base.metadata.schema_string).columns}
    keys = []
    for name, values in zip(settings.keys, records.keys, strict=True):
        complete = len(values) <= MOST_KEYS
        if not complete:
            ascending = pc.array_sort_indices(values)
            values = values.take(ascending.take(pa.array([0, len(values) - 1])))
        found = keys_of(name, types[name], values, complete=complete)
        if found is not None:
            keys.append(found)
    wanted = {key.column: key.type for key in keys}
    known = bounds_of(
        base.files if files is None else files, base.schema, base.partition_columns, wanted
    )
    mask: BoolArray = ~known.empty
    for key in keys:
        mask &= key.may_occur(known)
    return mask
