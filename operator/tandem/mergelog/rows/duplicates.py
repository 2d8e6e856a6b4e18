"""The greatest row of each key, and the keys that occur twice where no ordering column decides.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from tandem.delta.calendar import python_values
from tandem.distinct import IntArray
from tandem.errors import DuplicateKeys
from tandem.mergelog.rows.records import Records, number_keys, rank
from tandem.mergelog.state.log_table import LogSettings

EXAMPLES: Final = 3
"""How many of the keys are shown."""
_LONGEST: Final = 80
"""Characters of a value that are shown."""
_COLUMNS: Final = 5
"""Columns of a row that are shown."""


class Greatest(NamedTuple):
    """Indexes of rows, ascending. `rows` has one for each key, of the greatest rank; `tied` are
    those of them whose rank another row of the key has, too."""

    rows: IntArray
    tied: IntArray


def greatest_rows(keys: IntArray, ranks: IntArray) -> Greatest:
    order = np.lexsort((ranks, keys))
    keys, ranks = keys[order], ranks[order]
    repeated = keys[1:] == keys[:-1]
    last = np.append(~repeated, True)[: len(keys)]
    tie = np.append(False, repeated & (ranks[1:] == ranks[:-1]))[: len(keys)]
    return Greatest(np.sort(order[last]), np.sort(order[last & tie]))


def undecided(records: Records) -> IntArray:
    """Indexes of records, one for each key of which several have the greatest value of the
    ordering column; ascending."""
    if not len(records):
        return np.empty(0, np.int64)
    keys = number_keys(records.keys)
    ranks = np.zeros(len(records), np.int64) if records.order is None else rank(records.order)
    return greatest_rows(keys, ranks).tied


def require_decided(records: Records, settings: LogSettings, location: str) -> None:
    """Raises: DuplicateKeys, if no order decides which record of a key wins."""
    found = undecided(records)
    if not len(found):
        return
    texts = key_texts(records.take(found[:EXAMPLES]).keys, settings)
    rest = len(found) - len(texts)
    raise DuplicateKeys(
        "several rows of an append have the same key",
        resource=location,
        field=", ".join(settings.keys),
        found="; ".join(texts)[:300] + (f"; {rest} more" if rest else ""),
        expected=f"rows of a key that differ in {settings.ordering_column}"
        if settings.ordered
        else "one row of each key, since rows have no order here",
        remedy="Keep one row of each key and retry; nothing was committed",
    )


def row_text(row: pa.RecordBatch) -> str:
    """The values of the first columns of one row, for a message."""
    names = row.column_names[:_COLUMNS]
    values = [python_values(row.column(name))[0] for name in names]
    return ", ".join(
        f"{name} = {'NULL' if value is None else str(value)[:_LONGEST]}"
        for name, value in zip(names, values, strict=True)
    )


def key_texts(keys: Sequence[pa.Array], settings: LogSettings) -> list[str]:
    """Keys as texts of a message. The columns are those of `settings.keys`."""
    rows = zip(*map(python_values, keys), strict=True)
    return [
        ", ".join(
            f"{name} = {str(value)[:_LONGEST]}"
            for name, value in zip(settings.keys, row, strict=True)
        )
        for row in rows
    ]
