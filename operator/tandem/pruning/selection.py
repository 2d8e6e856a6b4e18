"""The files that a condition may affect. A file whose statistics cannot be read is unknown, and
never left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tandem.delta.log.snapshot import Snapshot
from tandem.distinct import BoolArray
from tandem.pruning.files import bounds_of
from tandem.pruning.keys import Keys
from tandem.pruning.predicate import columns_of, may_match
from tandem.statements.tree import Expr


class Selection:
    """A test of files, for one table's schema; without a condition it selects all files.

    Args:
        relation: the table's name in a condition over several relations.
        keys: the values that its columns must have.
    """

    def __init__(
        self, where: Expr | None, snapshot: Snapshot, *, relation: str = "",
        keys: Sequence[Keys] = (),
    ) -> None:  # fmt: skip
        self._where, self._relation = where, relation
        self._keys = tuple(keys) if where is not None else ()
        self._schema, self._partition_columns = snapshot.schema, snapshot.partition_columns

    def mask(self, files: pa.Table) -> BoolArray:
        """One entry per row of `files` (as `Snapshot.files`); False only if the condition is true
        on no row of the file."""
        if self._where is None or not files.num_rows:
            return np.ones(files.num_rows, bool)
        wanted = dict(columns_of(self._where, self._relation))
        wanted |= {key.column: key.type for key in self._keys}
        known = bounds_of(files, self._schema, self._partition_columns, wanted)
        found = may_match(self._where, known, self._relation)
        for key in self._keys:
            found &= key.may_occur(known)
        return found

    def of(self, files: pa.Table) -> pa.Table:
        """The rows of the selected files."""
        return files if self._where is None else files.filter(pa.array(self.mask(files)))

    def paths(self, files: pa.Table) -> frozenset[str]:
        """The logged paths of the selected files."""
        return frozenset(self.of(files.select(_READ))["path"].to_pylist())


_READ = ["path", "partition_values", "stats"]
