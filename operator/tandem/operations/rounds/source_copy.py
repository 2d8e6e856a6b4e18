"""The job's copy of a merge's source, from which the engine prunes files and runs small rounds.

The job copies a source of few rows whole (the columns that the merge reads, and the identity of
each row), and of a larger one the least and the greatest key. The engine has neither credentials
for the source nor Spark's readers; with the copy it needs neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tandem.errors import ManifestInvalid
from tandem.jobs.formats import SOURCE_IDS, SOURCE_IS_WHOLE, SOURCE_SCHEMA, MergeJob
from tandem.jobs.results import SidecarRef
from tandem.operations.attempt.records import read_sidecar
from tandem.pruning.selection import KEY_TYPES, Keys, keys_of
from tandem.reconcile.matches import Sources
from tandem.statements.local.rows import COLLATED
from tandem.statements.merge import MergeStatement, parse_merge
from tandem.statements.types import Schema

if TYPE_CHECKING:
    from tandem.operations.model import Work


@dataclass(frozen=True)
class SourceCopy:
    """`rows` have the columns that the merge reads; if `whole` all rows, else the least and the
    greatest value of each column. `statement` is the merge, resolved with the source's columns.
    `schemas` are those of the table and of the source, as JSON with the columns' metadata."""

    rows: pa.Table
    whole: bool
    statement: MergeStatement
    schemas: tuple[str, str]

    def has(self, *metadata: str) -> bool:
        """Whether a column of either side, at any level, has one of these metadata keys."""
        return any(key in schema for key in metadata for schema in self.schemas)

    @cached_property
    def identities(self) -> Sources:
        """The identity of each row as matches record it; shape (rows, 2). Only if `identified`: a
        merge may need none."""
        return np.stack([self.rows[name].to_numpy() for name in SOURCE_IDS], axis=1)

    @property
    def identified(self) -> bool:
        return self.whole and set(SOURCE_IDS) <= set(self.rows.column_names)

    @cached_property
    def keys(self) -> tuple[Keys, ...]:
        """For each column that must equal one of the source, the values in the source. Empty if
        texts with different bytes may be equal."""
        if self.has(COLLATED):
            return ()
        found = []
        for column, source_column in self.statement.equal_columns():
            if column.type.name not in KEY_TYPES:
                continue
            values = self.rows[source_column.parts[1]]
            keys = keys_of(column.parts[1], column.type, values, complete=self.whole)
            if keys is not None:
                found.append(keys)
        return tuple(found)


def newest_copy(work: Work, before: int | None = None) -> SourceCopy | None:
    """The copy of the newest result that has one; if `before` is given, of the rounds before it.
    Raises: ManifestInvalid."""
    for round_ in sorted(work.results, reverse=True):
        ref = work.results[round_].source
        if ref is not None and (before is None or round_ < before):
            if ref.path not in work.sources:
                work.sources[ref.path] = _load(work, ref)
            return work.sources[ref.path]
    return None


def _load(work: Work, ref: SidecarRef) -> SourceCopy:
    _, spec = work.frozen
    assert isinstance(spec.job, MergeJob)
    try:
        with pa.ipc.open_file(pa.BufferReader(read_sidecar(work.table.store, ref))) as reader:
            rows = reader.read_all()
        metadata = rows.schema.metadata or {}
        schema = metadata[SOURCE_SCHEMA].decode()
        columns = Schema.from_json(schema)
        whole = metadata[SOURCE_IS_WHOLE] == b"true"
    except (pa.ArrowInvalid, KeyError, ValueError) as error:
        raise ManifestInvalid(
            "the copy of the source cannot be read",
            resource=ref.path,
            found=f"{type(error).__name__}: {error}"[:300],
            expected="an Arrow file with the source's schema",
        ) from error
    statement = parse_merge(
        spec.job.on,
        spec.job.clauses,
        Schema.from_json(spec.table.schema_string),
        columns,
        resource=work.identity.display,
    )
    return SourceCopy(rows, whole, statement, (spec.table.schema_string, schema))
