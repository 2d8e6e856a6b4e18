"""What a log merge records of rows and winners: one Arrow table, and its reading. Pure.

A row of the table says that a row of the base table has a winner (`input`, `position`, `winner`,
`hidden`, `greater`), or where a winner was written (`winner`, `output`, `output_position`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tandem.distinct import IntArray
from tandem.mergelog.rows.winners import MatchedRows

MATCHES = pa.schema(
    [
        ("input", pa.int32()),
        ("position", pa.int64()),
        ("winner", pa.int64()),
        ("hidden", pa.bool_()),
        ("greater", pa.bool_()),
        ("output", pa.int32()),
        ("output_position", pa.int64()),
    ]
)


def of_matches(input_: int, rows: MatchedRows) -> pa.Table:
    """Rows of input `input_` that have a winner."""
    count = len(rows.positions)
    return pa.table(
        [
            pa.array(np.full(count, input_, np.int32)),
            pa.array(rows.positions),
            pa.array(rows.winners),
            pa.array(rows.hidden),
            pa.array(rows.greater),
            pa.nulls(count, pa.int32()),
            pa.nulls(count, pa.int64()),
        ],
        schema=MATCHES,
    )


def of_places(output: int, winners: IntArray) -> pa.Table:
    """The winners whose rows are those of output `output`, in order."""
    count = len(winners)
    return pa.table(
        [
            pa.nulls(count, pa.int32()),
            pa.nulls(count, pa.int64()),
            pa.array(winners),
            pa.nulls(count, pa.bool_()),
            pa.nulls(count, pa.bool_()),
            pa.array(np.full(count, output, np.int32)),
            pa.array(np.arange(count)),
        ],
        schema=MATCHES,
    )


@dataclass(frozen=True, slots=True)
class MergeMatches:
    """What a job found: for each input its rows with a winner, and for each output the winners of
    its rows, in order."""

    inputs: Mapping[int, MatchedRows]
    outputs: Mapping[int, IntArray]


def read(table: pa.Table) -> MergeMatches:
    """Raises: ValueError if it is not a table of `MATCHES`."""
    if not table.schema.equals(MATCHES):
        raise ValueError(f"columns {table.schema.names}")
    of_rows = table.filter(pc.is_valid(table["input"]))
    of_outputs = table.filter(pc.is_valid(table["output"]))
    inputs = {}
    for number, part in _parts(of_rows, "input"):
        inputs[number] = MatchedRows(
            part["position"].to_numpy(),
            part["winner"].to_numpy(),
            part["hidden"].to_numpy().astype(bool),
            part["greater"].to_numpy().astype(bool),
        )
    outputs = {
        number: part.sort_by("output_position")["winner"].to_numpy()
        for number, part in _parts(of_outputs, "output")
    }
    return MergeMatches(inputs, outputs)


def _parts(table: pa.Table, column: str) -> Sequence[tuple[int, pa.Table]]:
    numbers = table[column].unique().to_pylist()
    return [(number, table.filter(pc.equal(table[column], number))) for number in numbers]


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge changes at a version of the base table.

    Attributes:
        hidden: positions by logged path, of rows that are not deleted yet.
        beaten: winners that are not shown.
    """

    hidden: Mapping[str, BitMap64]
    beaten: frozenset[int]


def at_version(matches: Mapping[str, MatchedRows], dead: Mapping[str, BitMap64]) -> MergeResult:
    """What a merge changes where these rows are deleted: both by logged path of the live files."""
    hidden: dict[str, BitMap64] = {}
    beaten: set[int] = set()
    for path, rows in matches.items():
        gone = dead.get(path, BitMap64())
        positions = BitMap64(rows.positions[rows.hidden].astype(np.uint64)) - gone
        if positions:
            hidden[path] = positions
        for position, winner in zip(
            rows.positions[rows.greater].tolist(), rows.winners[rows.greater].tolist(), strict=True
        ):
            if position not in gone:
                beaten.add(winner)
    return MergeResult(hidden, frozenset(beaten))
